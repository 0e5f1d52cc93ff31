"""One job after another, one step after another: the specification of a local fit."""

from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Batch, Job
from flstudy.execution.executor import Executor, Fit, TrainingContext, gradient, one_by_one, validation_loss
from flstudy.population import Batches


class Sequential(Executor):
    """Trains without masks, lanes or compilation, on exactly the examples of each batch."""

    def __init__(self, context: TrainingContext) -> None:
        self.task_function, self.store = context

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        return one_by_one(self.one, algorithm, servers, clients, jobs, batches)

    def one(self, algorithm: Algorithm, server: Any, client: Any, job: Job, batches: Batches) -> tuple[Any, ...]:
        """One device's round: FLASH, Alg. 1 lines 4-14, for any algorithm."""
        msg = algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, client, self.task_function.layout)
        grad = gradient(algorithm, self.task_function, msg, client)
        valid = self.batch(batches.valid, batches.concept)
        previous = torch.tensor(torch.inf)
        if algorithm.gamma is not None and algorithm.first_epoch == "eval_received":
            previous = validation_loss(algorithm, self.task_function, local.y, valid)
        losses = []
        for step in range(int(batches.steps)):
            local, loss = algorithm.local_step(
                local, self.batch(batches.rows[step], batches.concept), grad, msg, client
            )
            losses.append(loss)
            epoch = batches.epoch[step]
            if epoch > 0 and algorithm.gamma is not None:
                current = validation_loss(algorithm, self.task_function, local.y, valid)
                if not algorithm.goes_on(epoch, previous, current):
                    break
                previous = current
        upload, client = algorithm.local_end(local, msg, client)
        personal = algorithm.personal(local, client)
        return msg, upload, client, personal, torch.tensor(len(losses)), torch.stack(losses).mean()

    def batch(self, rows: Tensor, concept: Tensor) -> Batch:
        """The real examples at these rows."""
        return Batch(*self.store.gather(rows[rows >= 0], concept))
