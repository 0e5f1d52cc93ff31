"""Replicas × jobs as lanes of one mapped program: the default executor."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Batch, Job
from flstudy.execution.executor import Executor, Fit, Ground, validation_loss
from flstudy.execution.programs import Programs
from flstudy.execution.trees import grid, lanes, nbytes, take
from flstudy.population import Batches


class Running(NamedTuple):
    """Lanes that still train, longest first."""

    lane: Tensor  # [A] which of the S·J lanes
    local: Any  # leaves [A, ...]
    msg: Any
    client: Any
    previous: Tensor  # [A] validation loss after the last epoch


class Vectorized(Executor):
    """Maps one local step over all lanes. Ragged devices are masked; lanes are sorted by length and leave the program
    when their steps are done or early stopping ends them, so that nobody waits for the longest job.

    Args:
        ground: task and examples.
        programs: the mapped step, eager or compiled.
    """

    def __init__(self, ground: Ground, programs: Programs | None = None) -> None:
        self.objective, self.stack = ground
        self.programs = programs or Programs(ground)

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        ragged = (batches.rows[..., :1] < 0).ne(batches.rows < 0).any()
        if algorithm.gamma is not None:
            ragged |= (batches.valid < 0).any()
        if ragged and not self.objective.per_example:
            raise ValueError(
                "executor: the task defines only training_step, so ragged batches cannot be masked when vectorised; "
                "add example_losses(batch) -> [B] to the task, or set executor: sequential"
            )
        replicas, count = jobs.client.shape
        layout = self.objective.layout
        sent = torch.vmap(torch.vmap(algorithm.broadcast, in_dims=(None, 0)))(servers, jobs)
        msg, client, work = lanes(sent), lanes(clients), lanes(batches)
        local = torch.vmap(lambda m, c: algorithm.local_start(m, c, layout))(msg, client)
        order = torch.argsort(work.steps, descending=True, stable=True)
        previous = torch.full_like(work.steps, torch.inf, dtype=local.y.dtype)
        running = take(Running(torch.arange(len(order), device=order.device), local, msg, client, previous), order)
        if algorithm.gamma is not None and algorithm.first_epoch == "eval_received":
            running = running._replace(previous=self._validate(algorithm, running, work))
        final = pytree.tree_map(torch.clone, local)
        steps, losses, lane_steps = self._train(algorithm, running, work, final)
        uploads, clients = torch.vmap(algorithm.local_end)(final, msg, client)
        personal = torch.vmap(algorithm.personal)(final, clients)
        uploads, clients, personal, done, loss = grid((uploads, clients, personal, steps, losses / steps), replicas)
        down, up = nbytes(sent, replicas * count), nbytes(uploads, replicas * count)
        return Fit(uploads, clients, personal, done, loss, down, up, lane_steps)

    def weigh(self, seconds: float, lanes: int, rounds_left: float) -> None:
        """Decide whether compiling pays, where that was left open."""
        self.programs.weigh(seconds, lanes, rounds_left)

    def choices(self) -> dict[str, Any]:
        """Whether the steps are compiled; None before that is decided."""
        return {"compile": None if self.programs.undecided else self.programs.compiled}

    def choose(self, choices: dict[str, Any]) -> None:
        """Compile, or not, as the checkpoint's run did."""
        if choices["compile"] is not None:
            self.programs.decide(choices["compile"])

    def _train(self, algorithm: Algorithm, running: Running, work: Batches, final: Any) -> tuple[Tensor, Tensor, int]:
        """Train all lanes into ``final``; returns steps done [L], sums of losses [L], and lane steps executed.

        The program runs from one event to the next: a lane that leaves, or an epoch whose end is validated.
        """
        steps, losses = work.steps.clone(), torch.zeros_like(running.previous)
        lengths = steps[running.lane].tolist()
        epoch_ends = (work.epoch > 0).any(0).nonzero().flatten().tolist() if algorithm.gamma is not None else []
        step = executed = 0
        while any(length > step for length in lengths):
            running, lengths = self._compact(final, running, lengths, step)
            validated = next((end + 1 for end in epoch_ends if end >= step), lengths[0])
            end = min(self.programs.until(lengths), validated)
            size = self.programs.steps or end - step
            rows = functional.pad(work.rows[running.lane, step:end], (0, 0, 0, -(end - step) % size), value=-1)
            todo = steps[running.lane].clamp(max=end) - step
            for part in torch.split(rows, size, dim=1):
                concept = work.concept[running.lane]
                state = self.programs.run(algorithm, running.local, part, concept, todo, running.msg, running.client)
                running = running._replace(local=state[0])
                losses[running.lane] += state[1]
                todo = todo - size
                executed += part.shape[0] * size
            step = end
            if end == validated and epoch_ends:
                for place in self._stopped(algorithm, running, work, steps, step - 1):
                    steps[running.lane[place]] = lengths[place] = step
        self._land(final, running, slice(None))
        return steps, losses, executed

    def _compact(self, final: Any, running: Running, lengths: list[int], step: int) -> tuple[Running, list[int]]:
        """Let finished lanes leave as far as the programs can be narrower; the others keep their order."""
        width = self.programs.width(sum(length > step for length in lengths), len(lengths))
        if width == len(lengths):
            return running, lengths
        places = sorted(range(len(lengths)), key=lambda place: lengths[place] <= step)
        self._land(final, running, places[width:])
        return take(running, shorten(places[:width])), [lengths[place] for place in places[:width]]

    def _stopped(self, algorithm: Algorithm, running: Running, work: Batches, steps: Tensor, step: int) -> list[int]:
        """Places of the lanes that end an epoch with this step and stop early."""
        epoch = work.epoch[running.lane, step]
        ending = ((epoch > 0) & (steps[running.lane] > step)).nonzero().squeeze(1)
        if len(ending) == 0:
            return []
        current = self._validate(algorithm, take(running, ending), work)
        goes_on = algorithm.goes_on(epoch[ending], running.previous[ending], current)
        running.previous[ending] = current
        stopped: list[int] = ending[~goes_on].tolist()
        return stopped

    def _validate(self, algorithm: Algorithm, running: Running, work: Batches) -> Tensor:
        rows = work.valid[running.lane]
        x, y = self.stack.gather(rows, work.concept[running.lane])
        measure = torch.vmap(
            lambda model, batch: validation_loss(algorithm, self.objective, model, batch), randomness="different"
        )
        return measure(running.local.y, Batch(x, y, rows >= 0))

    @staticmethod
    def _land(final: Any, running: Running, chosen: Any) -> None:
        """Copy the state of finished lanes to where they belong."""
        lane = running.lane[chosen]
        for target, leaf in zip(pytree.tree_leaves(final), pytree.tree_leaves(running.local), strict=True):
            target[lane] = leaf[chosen]


def shorten(places: list[int]) -> Any:
    """The same places as a slice if they are the first ones, which then copies nothing."""
    return slice(0, len(places)) if places == list(range(len(places))) else places
