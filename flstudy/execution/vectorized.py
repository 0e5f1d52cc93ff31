"""Replicas × jobs as lanes of one mapped program: the default executor."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Batch, Job
from flstudy.execution.executor import Executor, Fit, TrainingContext, validation_loss
from flstudy.execution.programs import COST_S, SAVED, NotCompiled, Programs
from flstudy.execution.trees import grid, join, lanes, nbytes, take
from flstudy.population import Batches


class Running(NamedTuple):
    """Lanes that still train, longest first."""

    lane: Tensor  # [A] which of the chunk's lanes
    local: Any  # leaves [A, ...]
    msg: Any
    client: Any
    previous: Tensor  # [A] validation loss after the last epoch


class Vectorized(Executor):
    """Maps one local step over all lanes. Ragged devices are masked; lanes are sorted by length and leave the program
    when their steps are done or early stopping ends them, so that nobody waits for the longest job.

    When lanes leave is known to the host beforehand, but for early stopping, which asks once per epoch: otherwise a
    round waits for the device nowhere.

    Args:
        context: task and examples.
        programs: the mapped step, eager or compiled.
        max_lanes: most lanes that train at once; null trains all. Halved, with a warning, when memory runs out.
    """

    def __init__(
        self, context: TrainingContext, programs: Programs | None = None, max_lanes: int | None = None
    ) -> None:
        self.task_function, self.store = context
        self.programs = programs or Programs(context)
        self.max_lanes = max_lanes
        self._widths = 1  # programs that a round needs

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        if not self.task_function.per_example and ragged(algorithm, batches):
            raise ValueError(
                "executor: the task defines only training_step, so ragged batches cannot be masked when vectorised; "
                "add example_losses(batch) -> [B] to the task, or set executor: sequential"
            )
        replicas, count = jobs.client.shape
        sent = torch.vmap(torch.vmap(algorithm.broadcast, in_dims=(None, 0)))(servers, jobs)
        msg, client, work = lanes(sent), lanes(clients), lanes(batches)
        lengths = work.steps.tolist()
        order = sorted(range(len(lengths)), key=lambda lane: -lengths[lane])
        together = algorithm.gamma is None and lengths[order[0]] == lengths[order[-1]]
        self._widths = 1 if together else self.chunk(len(order)).bit_length()
        parts: list[Any] = []
        executed = place = 0
        while place < len(order):
            chunk = order[place : place + self.chunk(len(order) - place)]
            try:
                *part, lane_steps = self._train(algorithm, *take((msg, client, work), chunk))
            except NotCompiled as error:
                self.programs.decide(False)
                trouble = f"local steps run eagerly, since torch could not compile them: {error}"
            except RuntimeError as error:
                if not out_of_memory(error) or len(chunk) == 1:
                    raise
                self.max_lanes = (len(chunk) + 1) // 2
                trouble = f"out of memory with {len(chunk)} lanes at once: going on with max_lanes {self.max_lanes}"
            else:
                parts.append(part)
                executed += lane_steps
                place += len(chunk)
                continue
            warnings.warn(trouble, stacklevel=2)  # here, where the error and the memory that it holds are gone
            if self.store.x.is_cuda:
                torch.cuda.empty_cache()
        back = sorted(range(len(order)), key=order.__getitem__)
        results = take(parts[0] if len(parts) == 1 else join(parts), shorten(back))
        uploads, clients, personal, steps, losses = grid(results, replicas)
        down, up = nbytes(sent, replicas * count), nbytes(uploads, replicas * count)
        return Fit(uploads, clients, personal, steps, losses / steps, down, up, executed)

    def weigh(self, seconds: float, lanes: int, rounds_left: float) -> None:
        """Compile if that saves more than it costs, where it was left open."""
        if self.programs.undecided:
            self.programs.decide(seconds * SAVED * rounds_left > self.cost_s())

    def cost_s(self) -> float:
        """Seconds that compiling would take; known after the first fit."""
        return COST_S * self._widths

    def choices(self) -> dict[str, Any]:
        """Whether the steps are compiled (None before that is decided), and how many lanes fit into memory."""
        compiled = None if self.programs.undecided else self.programs.compiled
        return {"compile": compiled, "max_lanes": self.max_lanes}

    def choose(self, choices: dict[str, Any]) -> None:
        """Compile, or not, as the checkpoint's run did, with as many lanes."""
        self.max_lanes = choices["max_lanes"]
        if choices["compile"] is not None:
            self.programs.decide(choices["compile"])

    def chunk(self, count: int) -> int:
        """Lanes of the next chunk when ``count`` wait: chunks of about equal sizes, so that few shapes are compiled."""
        most = self.max_lanes or count
        return -(-count // -(-count // most))

    def _train(self, algorithm: Algorithm, msg: Any, client: Any, work: Batches) -> tuple[Any, ...]:
        """All fits of a chunk: its uploads, clients, personal models, steps done [L], sums of losses [L], and the lane
        steps executed.

        The program runs from one event to the next: a lane that leaves, or an epoch whose end is validated.
        """
        layout, programs = self.task_function.layout, self.programs
        start = torch.vmap(lambda m, c: algorithm.local_start(m, c, layout))(msg, client)
        # Copies: its y is the message's x itself, which must not be written to, and for which, as for every tensor that
        # is another one too, programs would be compiled anew.
        final, local = (pytree.tree_map(torch.clone, start) for _ in range(2))
        losses = torch.zeros(len(work.steps), dtype=final.y.dtype, device=final.y.device)
        running = Running(torch.arange(len(losses), device=losses.device), local, msg, client, losses + torch.inf)
        if algorithm.gamma is not None and algorithm.first_epoch == "eval_received":
            running = running._replace(previous=self._validate(algorithm, final.y, range(len(losses)), work))
        lengths = work.steps.tolist()
        events = epoch_ends(work) if algorithm.gamma is not None else {}
        upcoming = sorted(events, reverse=True)
        places = list(range(len(lengths)))  # lane at each place
        done = executed = 0
        while any(lengths[lane] > done for lane in places):
            width = programs.width(sum(lengths[lane] > done for lane in places), len(places))
            if width < len(places):
                order = sorted(range(len(places)), key=lambda place: lengths[places[place]] <= done)
                self._land(final, running, order[width:])
                running, places = take(running, shorten(order[:width])), [places[place] for place in order[:width]]
            left = sorted((lengths[lane] for lane in places), reverse=True)
            while upcoming and (
                upcoming[-1] <= done or all(lengths[lane] <= upcoming[-1] for lane in events[upcoming[-1]])
            ):
                upcoming.pop()  # all of its lanes have left or would not go on anyway
            end = min([left[programs.narrower(width)], *upcoming[-1:]])
            size = programs.steps or end - done
            rows = functional.pad(work.rows[running.lane, done:end], (0, 0, 0, -(end - done) % size), value=-1)
            todo = torch.tensor([lengths[lane] for lane in places]).clamp(max=end) - done
            for part in torch.split(rows, size, dim=1):
                lines = part.clone(memory_format=torch.contiguous_format)  # other strides would be another program
                concept = work.concept[running.lane]
                state = programs.run(
                    algorithm, running.local, lines, concept, todo.to(losses.device), running.msg, running.client
                )
                running = running._replace(local=state[0])
                losses[running.lane] += state[1]
                executed += width * (min(size, int(todo.max())) if programs.looped else size)
                todo = todo - size
            done = end
            if upcoming and done == upcoming[-1]:
                ending = [place for place, lane in enumerate(places) if lane in events[done] and lengths[lane] > done]
                ended = [places[place] for place in ending]
                for place in self._stopped(algorithm, running, work, ending, ended, done - 1):
                    lengths[places[place]] = done
        self._land(final, running, slice(None))
        uploads, clients = torch.vmap(algorithm.local_end)(final, msg, client)
        personal = torch.vmap(algorithm.personal)(final, clients)
        return uploads, clients, personal, torch.tensor(lengths, device=losses.device), losses, executed

    def _stopped(
        self, algorithm: Algorithm, running: Running, work: Batches, places: list[int], lanes: list[int], step: int
    ) -> list[int]:
        """Places of those lanes, of the ones that end an epoch with this step, that stop early."""
        current = self._validate(algorithm, running.local.y[places], lanes, work)
        epoch = work.epoch[lanes, step].to(current.device)
        goes_on = algorithm.goes_on(epoch, running.previous[places], current).tolist()
        running.previous[places] = current
        return [place for place, more in zip(places, goes_on, strict=True) if not more]

    def _validate(self, algorithm: Algorithm, models: Tensor, lanes: Sequence[int], work: Batches) -> Tensor:
        """[A]: losses of the models [A, n] on the validation examples of their lanes."""
        rows, concept = work.valid[list(lanes)], work.concept[list(lanes)]
        rows = rows[:, : int((rows >= 0).sum(1).max())]  # the longest device of these, not of the population
        batch = Batch(*self.store.gather(rows, concept), rows >= 0)
        if len(models) == 1:  # as most often when devices are ragged; mapping costs more than such a loss does
            return validation_loss(algorithm, self.task_function, models[0], take(batch, 0)).unsqueeze(0)
        measure = torch.vmap(
            lambda model, batch: validation_loss(algorithm, self.task_function, model, batch), randomness="different"
        )
        return measure(models, batch)

    @staticmethod
    def _land(final: Any, running: Running, chosen: Any) -> None:
        """Copy the state of finished lanes to where they belong."""
        lane = running.lane[chosen]
        for target, leaf in zip(pytree.tree_leaves(final), pytree.tree_leaves(running.local), strict=True):
            target[lane] = leaf[chosen]


def ragged(algorithm: Algorithm, batches: Batches) -> bool:
    """Whether some batch is not full, or some device's validation examples are fewer than others'."""
    short = (batches.rows[..., :1] < 0).ne(batches.rows < 0).any()
    return bool(short | (algorithm.gamma is not None) & (batches.valid < 0).any())


def epoch_ends(work: Batches) -> dict[int, set[int]]:
    """The lanes that end an epoch, by the number of steps done then."""
    events: dict[int, set[int]] = {}
    for lane, step in work.epoch.nonzero().tolist():
        events.setdefault(step + 1, set()).add(lane)
    return events


def out_of_memory(error: Exception) -> bool:
    """Whether a device's, or the host's, memory ran out."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in told or "not enough memory" in told


def shorten(places: Sequence[int]) -> Any:
    """The same places as a slice if they are the first ones, which then copies nothing."""
    return slice(0, len(places)) if list(places) == list(range(len(places))) else list(places)
