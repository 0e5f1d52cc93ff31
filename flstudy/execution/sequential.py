"""Executors that specify a local fit: each job by itself, step by step, one after another or in a thread per core."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Batch, Job
from flstudy.execution.context import TrainingContext
from flstudy.execution.executor import Executor, Fit, divided, one_by_one
from flstudy.execution.local_objective import gradient, validation_loss
from flstudy.execution.torch_threads import threads_for_parts
from flstudy.population import Batches
from flstudy.process_state import usable_cores
from flstudy.tasks.stand_in_trainer import StandInTrainer
from flstudy.user_error import UserError


class Sequential(Executor):
    """Executor without masks, lanes or compilation, on exactly the examples of each batch."""

    maps = False

    def __init__(self, context: TrainingContext) -> None:
        self.task_function, self.store = context

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        return one_by_one(self.one, algorithm, servers, clients, jobs, batches)

    def one(self, algorithm: Algorithm, server: Any, client: Any, job: Job, batches: Batches) -> tuple[Any, ...]:
        """Play one device's round, whose number the task may read, and return what `one_by_one` expects."""
        with self.task_function.stand_in.at(int(batches.round) - 1) as clock:
            return self.round_of(algorithm, server, client, job, batches, clock)

    def round_of(
        self, algorithm: Algorithm, server: Any, client: Any, job: Job, batches: Batches, clock: StandInTrainer
    ) -> tuple[Any, ...]:
        """Play FLASH, Alg. 1 lines 4-14, for any algorithm."""
        msg = algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, client, self.task_function.layout)
        grad = gradient(algorithm, self.task_function, msg, client)
        valid = self.batch(batches.valid, batches.concept)
        previous = torch.tensor(torch.inf)
        if algorithm.gamma is not None and algorithm.first_epoch == "eval_received":
            previous = validation_loss(algorithm, self.task_function, algorithm.in_training(local), valid)
        losses, begin, ends_epoch = [], 0, (batches.epoch > 0).tolist()
        for step in range(int(batches.steps)):
            clock.step, clock.batch = step, step - begin
            batch = self.batch(batches.rows[step], batches.concept)
            local, loss = algorithm.local_step(local, batch, grad, msg, client)
            losses.append(loss)
            begin = step + 1 if ends_epoch[step] else begin
            if ends_epoch[step] and algorithm.gamma is not None:
                current = validation_loss(algorithm, self.task_function, algorithm.in_training(local), valid)
                if not algorithm.goes_on(batches.epoch[step], previous, current):
                    break
                previous = current
        self.task_function.refuse_changed()
        upload, client = algorithm.local_end(local, msg, client)
        personal = algorithm.local_model(local, client)
        loss, logged = divided(torch.stack(losses), self.task_function.findings.training_logs)
        sums = {name: values.sum(0) for name, values in logged.items()}
        return msg, upload, client, personal, torch.tensor(len(losses)), loss.mean(), sums

    def batch(self, rows: Tensor, concept: Tensor) -> Batch:
        """Return the real examples at these rows [B], -1 where there is none, under a concept []."""
        return Batch(*self.store.gather(rows[rows >= 0], concept))


class Threads(Executor):
    """Executor of sequential fits in a pool of threads, each on one core and with a task of its own.

    Mapping a convolution over devices makes a grouped one, which the CPU's libraries run no faster than one device
    after another; a step of such a model is long enough for Python to stand aside.

    Args:
        context: task and examples.
        workers: threads; null takes as many as torch may use.

    Raises:
        UserError: for a task with random numbers, as dropout's masks, which would be drawn in no fixed order.
    """

    maps = False

    def __init__(self, context: TrainingContext, workers: int | None = None) -> None:
        if context.task_function.findings.draws:
            raise UserError(
                "executor: threads draw random numbers, as dropout's masks, in no fixed order; use sequential or "
                "vectorized"
            )
        self.context = context
        self.workers = workers or min(threads_for_parts(), usable_cores())
        self._own = threading.local()

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        with ThreadPoolExecutor(self.workers, initializer=self._start) as pool:
            return one_by_one(self._one, algorithm, servers, clients, jobs, batches, pool.map)

    def _start(self) -> None:
        torch.set_num_threads(1)  # of this thread: several per fit would fight for the same cores
        # Parameters are swapped in while a task is called, so threads must not share one.
        task_function = copy.deepcopy(self.context.task_function)
        self._own.sequential = Sequential(TrainingContext(task_function, self.context.store))

    def _one(self, *arguments: Any) -> tuple[Any, ...]:
        result: tuple[Any, ...] = self._own.sequential.one(*arguments)
        return result
