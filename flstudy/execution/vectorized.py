"""The default executor: replicas × jobs as lanes of one mapped program."""

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Job, Layout
from flstudy.execution.compile_policy import CompilePolicy
from flstudy.execution.context import TrainingContext
from flstudy.execution.devices import numbers, release_memory
from flstudy.execution.executor import Executor, Fit, divided
from flstudy.execution.loops import NotCompiled
from flstudy.execution.programs import COST_S, SAVED, Programs
from flstudy.execution.trace_cache import TraceCache
from flstudy.execution.trees import grid, lanes, nbytes, over_leaves, replaced, take
from flstudy.population import Batches
from flstudy.tasks.attention import mappable_attention

log = logging.getLogger(__name__)


class Vectorized(Executor):
    """Executor that maps one local step over all lanes. Ragged devices are masked; lanes are sorted by length and leave
    the program when their steps are done or early stopping ends them, so that nobody waits for the longest job.

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
        self._traces = TraceCache()
        self._widths = 1  # programs that a round needs
        self._policy = CompilePolicy()
        self._done: Tensor | None = None  # [S, J] of the last fit

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        replicas, count = jobs.client.shape
        sent = self._traces("broadcast", algorithm, partial(sent_to_all, algorithm), servers, jobs)
        msg, client, work = lanes(sent), lanes(clients), lanes(batches)
        lengths = work.steps.tolist()
        order = sorted(range(len(lengths)), key=lambda lane: -lengths[lane])
        together = algorithm.gamma is None and lengths[order[0]] == lengths[order[-1]]
        if self.programs.looped:
            self._widths = 1 if algorithm.gamma is None else 2
        else:
            self._widths = 1 if together else self.chunk(len(order)).bit_length()
        results: Any = None
        executed = place = 0
        while place < len(order):
            chunk = order[place : place + self.chunk(len(order) - place)]
            try:
                with self.programs.threads_for_parts(), mappable_attention(self.store.x.device):
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
                results = filled(results, part, chunk, len(order))
                executed += lane_steps
                place += len(chunk)
                continue
            warnings.warn(trouble, stacklevel=2)  # here, where the error and the memory that it holds are gone
            release_memory(self.store.x.device)
        self.task_function.refuse_changed()
        uploads, clients, personal, steps, losses = grid(results, replicas)
        down, up = nbytes(sent, replicas * count), nbytes(uploads, replicas * count)
        self._done = steps
        sums, logged = divided(losses, self.task_function.findings.training_logs)
        return Fit(uploads, clients, personal, steps, sums / steps, logged, down, up, executed)

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """Compile when that saves more seconds than it costs, where it was left open, and go back if it turns out
        slower. The arguments are those of `Executor.weigh`."""
        steps = 0.0 if self._done is None else float(self._done.sum())
        if self.programs.undecided:
            if self._policy.pays(seconds, steps, rounds_left, SAVED, self.cost_s()):
                self.programs.decide(True)
        elif self.programs.compiled and self._policy.lost(seconds, steps):
            self.programs.decide(False)
            log.info("local steps run eagerly again, which turned out to be faster than compiled ones")
        return not (self.programs.undecided or (self.programs.compiled and self._policy.open))

    def cost_s(self) -> float:
        """Return the seconds that compiling would take; known after the first fit."""
        return COST_S * self._widths

    def loops(self) -> Programs | None:
        return self.programs if self.programs.compiled and self.programs.looped else None

    def choices(self) -> dict[str, Any]:
        """Return whether the steps are compiled (None before that is decided), how many lanes fit into memory, and how
        many of them a thread takes."""
        compiled = None if self.programs.undecided else self.programs.compiled
        return {"compile": compiled, "max_lanes": self.max_lanes, "part_lanes": self.programs.part_lanes}

    def choose(self, choices: dict[str, Any]) -> None:
        """Compile, or not, as the checkpoint's run did, with as many lanes."""
        self.max_lanes, self.programs.part_lanes = choices["max_lanes"], choices["part_lanes"]
        if choices["compile"] is not None:
            self.programs.decide(choices["compile"])

    def chunk(self, count: int) -> int:
        """Return the lanes of the next chunk when ``count`` wait: chunks of about equal sizes, so that few shapes are
        compiled."""
        most = self.max_lanes or count
        return -(-count // -(-count // most))

    def _train(self, algorithm: Algorithm, msg: Any, client: Any, work: Batches) -> tuple[Any, ...]:
        """Train a chunk; returns its uploads, clients, personal models, steps done [L], sums of losses [L], and the
        lane steps executed."""
        start = self._traces("start", algorithm, partial(started, algorithm, self.task_function.layout), msg, client)
        local = over_leaves(torch.clone, start)  # its y is the message's x itself, which must not be written to
        local, losses, lengths, executed = self._steps(algorithm, local, msg, client, work)
        ended = self._traces("end", algorithm, partial(ended_fits, algorithm), local, msg, client)
        return *ended, numbers(lengths, losses.device), losses, executed

    def _steps(
        self, algorithm: Algorithm, local: Any, msg: Any, client: Any, work: Batches
    ) -> tuple[Any, Tensor, list[int], int]:
        """Take all local steps of some lanes; returns states, sums of losses, steps done, and lane steps executed.

        Nothing ties lanes together before the aggregation: with early stopping each goes from one end of an epoch to
        the next, whenever that is, and otherwise to its end.
        """
        programs, count, device = self.programs, len(work.steps), local.y.device
        losses = self.task_function.no_losses(local.y.new_zeros(count))
        lengths, done, executed = work.steps.tolist(), [0] * count, 0
        stops = algorithm.gamma is not None
        ends = epoch_ends(work) if stops else [[]] * count
        valid = Validation(algorithm, programs, work) if stops else None
        previous = local.y.new_full((count,), torch.inf)
        lanes = list(range(count))
        if valid is not None and algorithm.first_epoch == "eval_received":
            previous = valid(algorithm.in_training(local), lanes)
        while lanes:
            until = [min([end for end in ends[lane] if end > done[lane]] + [lengths[lane]]) for lane in lanes]
            todo = {lane: end - done[lane] for lane, end in zip(lanes, until, strict=True)}
            lanes.sort(key=lambda lane: -todo[lane])  # stable
            # A program of one width has that of the chunk; in the place of lanes that stopped, one does nothing.
            placed = [*lanes, *lanes[:1] * (count - len(lanes))] if programs.one_width else lanes
            steps = [todo[lane] for lane in lanes] + [0] * (len(placed) - len(lanes))
            rows = upcoming(work.rows, placed, [done[lane] for lane in placed], steps[0])
            state = programs.run(
                algorithm,
                *(take(local, shorten(placed)), rows, take(work.concept, shorten(placed)), steps),
                *take((msg, client), shorten(placed)),
                together=not stops and lengths[-1] == lengths[0],
            )
            executed += state[2]
            if len(lanes) == count and lanes == sorted(lanes):
                local, losses = state[0], losses + state[1]
            else:
                here, stepped = numbers(lanes, device), take(state[:2], slice(0, len(lanes)))
                local = replaced(local, here, stepped[0])
                losses = losses.index_add(0, here, stepped[1])
            for lane in lanes:
                done[lane] += todo[lane]
            lanes = sorted(lane for lane in lanes if done[lane] < lengths[lane])
            if valid is not None and lanes:
                current = valid(algorithm.in_training(take(local, lanes)), lanes)
                epochs = numbers([int(work.epoch[lane, done[lane] - 1]) for lane in lanes], device)
                goes_on = algorithm.goes_on(epochs, take(previous, lanes), current).tolist()
                previous = previous.index_copy(0, numbers(lanes, device), current)
                for lane, more in zip(lanes, goes_on, strict=True):
                    lengths[lane] = lengths[lane] if more else done[lane]
                lanes = [lane for lane, more in zip(lanes, goes_on, strict=True) if more]
        return local, losses, lengths, executed


def sent_to_all(algorithm: Algorithm, servers: Any, jobs: Job) -> Any:
    """Return the messages of all jobs, leaves [S, J, ...]."""
    return torch.vmap(torch.vmap(algorithm.broadcast, in_dims=(None, 0)))(servers, jobs)


def started(algorithm: Algorithm, layout: Layout, msg: Any, client: Any) -> Any:
    """Return the states with which lanes begin, leaves [L, ...]."""
    return torch.vmap(lambda m, c: algorithm.local_start(m, c, layout))(msg, client)


def ended_fits(algorithm: Algorithm, local: Any, msg: Any, client: Any) -> tuple[Any, Any, Any]:
    """Return the uploads, clients and personal models of lanes that are done, leaves [L, ...]."""
    uploads, clients = torch.vmap(algorithm.local_end)(local, msg, client)
    return uploads, clients, torch.vmap(algorithm.local_model)(local, clients)


class Validation:
    """The rule by which devices stop early: losses on the validation examples of a chunk's lanes."""

    def __init__(self, algorithm: Algorithm, programs: Programs, work: Batches) -> None:
        self.algorithm, self.programs, self.work = algorithm, programs, work
        self.counts: list[int] = work.validated.tolist()

    def __call__(self, models: Tensor, lanes: Sequence[int]) -> Tensor:
        """Return [A]: losses of the models [A, n], one for each of the lanes (FLASH, Alg. 1 line 9)."""
        order = sorted(range(len(lanes)), key=lambda place: -self.counts[lanes[place]])
        there = [lanes[place] for place in order]
        counts = [self.counts[lane] for lane in there]
        missing = (len(self.counts) - len(there)) * self.programs.one_width  # which is that of the chunk
        placed, padded = [*order, *order[:1] * missing], [*there, *there[:1] * missing]
        work = *take((self.work.valid, self.work.concept), padded), [*counts, *[0] * missing]
        sums = self.programs.validation_sums(self.algorithm, take(models, placed), *work)[: len(there)]
        if self.algorithm.valid_loss == "mean":
            sums = sums / numbers(counts, sums.device).clamp(min=1)
        return torch.empty_like(sums).index_copy(0, numbers(order, sums.device), sums)


def epoch_ends(work: Batches) -> list[list[int]]:
    """Return the numbers of steps after which epochs of each lane end."""
    ends: list[list[int]] = [[] for _ in work.steps]
    for lane, step in work.epoch.nonzero().tolist():
        ends[lane].append(step + 1)
    return ends


def upcoming(rows: Tensor, lanes: Sequence[int], done: Sequence[int], steps: int) -> Tensor:
    """Return [A, steps, B]: the rows [L, T, B] of the next steps of some lanes, after the ``done`` ones of each; lanes
    with fewer steps left repeat their last one."""
    if not any(done):
        first: Tensor = take(rows[:, :steps], shorten(lanes))
        return first
    at = numbers(done, rows.device)[:, None] + torch.arange(steps, device=rows.device)
    return rows[numbers(lanes, rows.device)[:, None], at.clamp(max=rows.shape[1] - 1)]


def filled(whole: Any, part: Any, places: Sequence[int], count: int) -> Any:
    """Return the results of ``count`` lanes, leaves [count, ...], with those of the lanes at some places written to
    them; None has none yet. Nothing is held twice, since this comes when memory has run out, too."""
    if list(places) == list(range(count)):
        return part
    if whole is None:
        whole = over_leaves(lambda leaf: leaf.new_empty((count, *leaf.shape[1:])), part)
    return over_leaves(lambda all_, some: all_.index_copy_(0, numbers(places, all_.device), some), whole, part)


def out_of_memory(error: Exception) -> bool:
    """Return whether a device's, or the host's, memory ran out."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text or "not enough memory" in text


def shorten(places: Sequence[int]) -> Any:
    """Return the places as a slice if they are the first ones, which then copies nothing."""
    return slice(0, len(places)) if list(places) == list(range(len(places))) else list(places)
