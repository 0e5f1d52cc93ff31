"""The local steps of all lanes, eager or compiled: as loops on a CPU, as copies of a step on an accelerator.

Compiled programs belong to the process, not to a run: the trials of a study that one worker runs share them, since
hyper-parameters are 0-d tensors and the task's parameters are arguments. A run finds them by what its own step does,
which it notes once for each kind of program. Other workers find them on disk.
"""

import logging
import os
import shutil
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial, reduce
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flstudy import pytree
from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.parts.rules import traced
from flstudy.execution.context import TrainingContext
from flstudy.execution.devices import accelerated, numbers
from flstudy.execution.local_objective import gradient
from flstudy.execution.loops import LoopProgram, NotCompiled, Step, reason
from flstudy.execution.program_key import Numbered, differ_in_numbers, key_of, specs_of, with_numbers
from flstudy.execution.torch_threads import one_thread, threads_for_parts
from flstudy.execution.trees import join, leaves, replaced, take
from flstudy.population import ExampleStore
from flstudy.run_settings import Compile
from flstudy.tasks import TaskFunction, compiler
from flstudy.tasks.attention import mappable_attention
from flstudy.tasks.findings import TO_DECLARE

log = logging.getLogger(__name__)

BLOCK = 64  # validation examples of one step of a compiled loop
STEPS = 4  # local steps of a compiled program without a loop: compilation grows with them
ENTRY = 12  # steps of one lane that take as long as one more call of a compiled loop, of a model
SMALL = 2**12  # of so many parameters; of a larger one there are fewer

COST_S = 15.0  # of compiling one program, measured on two cores: 9 to 25
TOUCHED = 4  # times a model's size that a step of a lane reads and writes: its gradient and what lies between
CACHE = 2**20  # bytes of a core's own cache where the system does not say
SAVED = 0.8  # share of an eager round's time that compiled programs save, measured on small models

Program = Callable[..., Any]
_compiled: dict[Any, Program] = {}  # by the operations of a step
_compiling = Lock()  # one program at a time: two threads would compile the same one


def compilations() -> int:
    """Return the number of programs that this process has compiled."""
    return len(_compiled)


class Counts(NamedTuple):
    """Counters of executed programs and steps."""

    calls: int = 0  # of programs, or of the mapped steps that take their place
    sequential_steps: int = 0  # one after another, whatever their widths
    lane_steps: int = 0  # masked ones included

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of two counters."""
        return Counts(*(count + more for count, more in zip(self, other, strict=True)))


class Programs:
    """Runner of the local steps of all lanes.

    Args:
        context: task and examples.
        compile: whether steps are compiled. It costs seconds for each (task, algorithm, batch shape), on accelerators
            also for each number of lanes, and serves every value of the hyper-parameters. ``auto`` starts eagerly and
            lets ``weigh`` decide.
    """

    def __init__(self, context: TrainingContext, compile: Compile = False) -> None:
        self.task_function, self.store = context
        self.undecided, self.compiled = compile == "auto" and not self.task_function.couples, False
        self.calls = self.validations = self.sequential_steps = 0  # so far: of training, but for the second
        self.part_lanes: int | None = None  # lanes of a part that one thread takes, once loops are compiled
        self._threads = threads_for_parts()
        self._own = dict[Any, Program]()  # by the kinds of tensors that they take
        self._numbered: Numbered | None = None
        if compile is True:
            self.decide(True)

    def decide(self, compile: bool) -> None:
        """Compile from now on, or never."""
        self.undecided, self.compiled = False, compile and has_compiler() and not coupled(self.task_function)

    @property
    def looped(self) -> bool:
        """Return whether a compiled program is a loop; on an accelerator that would ask the host after every step."""
        return not accelerated(self.store.x.device)

    @contextmanager
    def threads_for_parts(self) -> Iterator[None]:
        """Let torch's own threads stand aside while parts run on others: they wait for work by spinning, on the same
        cores."""
        if not (self.compiled and self.looped):
            yield
            return
        self._threads = threads_for_parts()
        with one_thread():
            yield

    def fitting(self, carried: Any) -> int:
        """Return the number of lanes whose states fit into a core's cache."""
        return cache_bytes() // (TOUCHED * self.task_function.layout.n * leaves(carried)[0].element_size())

    def alone(self, carried: Any) -> bool:
        """Return whether a program is of one lane: there is nothing to gain by several where not even two fit into a
        cache."""
        return self.fitting(carried) < 2

    @property
    def entry(self) -> int:
        """Steps of one lane that take as long as one more call of a compiled loop."""
        return max(min(ENTRY, ENTRY * SMALL // self.task_function.layout.n), 1)

    @property
    def one_width(self) -> bool:
        """Return whether each number of lanes is another program to compile."""
        return self.compiled and not self.looped

    def run(
        self,
        algorithm: Algorithm,
        local: Any,
        rows: Tensor,
        concept: Tensor,
        todo: Sequence[int],
        msg: Any,
        client: Any,
        *,
        together: bool = False,
    ) -> tuple[Any, Tensor, int]:
        """Run all steps of every lane, each its own number of them: fewer and fewer lanes run.

        Args:
            algorithm: the method.
            local: leaves [A, ...].
            rows: [A, T, B] rows of the examples of each step, -1 for padding.
            concept: [A] concept of each lane's device.
            todo: how many of the T steps are real, by lane, falling; a lane with none keeps its state.
            msg: leaves [A, ...].
            client: leaves [A, ...].
            together: whether all lanes take the same number of steps, in every call.

        Returns:
            The states, the sum of the losses of the real steps [A], and the lane steps executed, masked ones included.
        """
        if self.compiled and self.looped:
            start, constants = (local, no_losses(self.task_function, local)), (concept, msg, client)
            (local, losses), counts = self._loop(trained, algorithm, start, rows, todo, constants, local.y)
            return local, losses, self._count(counts).lane_steps
        width = len(todo)
        widths = (width,) if together else halvings(width)
        state, finished = (local, no_losses(self.task_function, local)), list[Any]()
        done = executed = 0
        while done < todo[0]:
            active = sum(steps > done for steps in todo)
            following = min(w for w in widths if w >= active) if self.compiled else active
            if following < width:
                finished.append(take(state, slice(following, width)))
                state, msg, client = take((state, msg, client), slice(0, following))
                width = following
            until = done + STEPS if self.compiled else todo[active - 1]
            lines = functional.pad(rows[:width, done:until], (0, 0, 0, max(until - rows.shape[1], 0)), value=-1)
            lines = lines.contiguous()  # other strides would be another program
            left = numbers(todo[:width], concept.device) - done if self.compiled else None
            step = self._of_one_size if self.task_function.couples else self._unrolled
            local, losses = step(algorithm, state[0], lines, concept[:width], left, msg, client)
            state = local, state[1] + losses
            executed += self._count(Counts(1, until - done, width * (until - done))).lane_steps
            done = until
        local, losses = join([state, *reversed(finished)]) if finished else state
        return local, losses, executed

    def validation_sums(
        self, algorithm: Algorithm, models: Tensor, rows: Tensor, concept: Tensor, counts: Sequence[int]
    ) -> Tensor:
        """Return [A]: sums of the losses of models on their lanes' validation examples, in blocks that fewer and fewer
        lanes reach, so that the device with the most examples costs the others nothing. Losses that are known of whole
        batches alone are those of all examples of a lane at once, times their number.

        Args:
            algorithm: the method.
            models: [A, n].
            rows: [A, V] rows of the examples, -1 for padding, which comes last.
            concept: [A] concept of each lane's device.
            counts: how many of the V rows are real, by lane, falling.
        """
        sums = models.new_zeros(len(models))
        if self.compiled and self.looped and self.task_function.per_example:
            blocks = -(-rows.shape[1] // BLOCK)
            rows = functional.pad(rows, (0, blocks * BLOCK - rows.shape[1]), value=-1)
            rows = rows.reshape(len(rows), blocks, BLOCK)
            todo = [-(-count // BLOCK) for count in counts]
            result: tuple[Tensor, Counts] = self._loop(
                validated, algorithm, sums, rows, todo, (concept, models), models
            )
            self.validations += result[1].calls
            return result[0]
        self.validations += 1
        with self.task_function.evaluating():
            if not self.task_function.per_example:
                return whole_sums(self.task_function, self.store, rows, concept, models, counts)
            widths, begin = halvings(len(models)), 0
            for width, narrower in zip(widths, (*widths[1:], 0), strict=True):
                if (end := counts[narrower]) > begin:
                    some = rows[:width, begin:end], concept[:width], models[:width]
                    sums[:width] += block_sums(self.task_function, self.store, *some)
                    begin = end
        return sums

    def measured(
        self, step: Any, start: Tensor, rows: Tensor, todo: Sequence[int], concept: Tensor, models: Tensor
    ) -> Tensor:
        """Return the result of a step without a method, from ``start`` [A, ...] over all blocks of examples, by a
        compiled loop.

        Args:
            step: called with the task, None, the store, and what follows, of one lane.
            start: before the first block.
            rows: [A, T, B] rows of the examples, -1 for padding.
            todo: how many of the T blocks hold examples, by lane, falling.
            concept: [A] concept of each lane's device.
            models: [A, n].

        Raises:
            NotCompiled: with the reason.
        """
        with self.threads_for_parts(), mappable_attention(models.device):
            result: tuple[Tensor, Counts] = self._loop(step, None, start, rows, todo, (concept, models), models)
        return result[0]

    def _count(self, executed: Counts) -> Counts:
        """Add to the run's counters; returns what was added."""
        self.calls, self.sequential_steps = (
            self.calls + executed.calls,
            self.sequential_steps + executed.sequential_steps,
        )
        return executed

    def _loop(
        self,
        step: Any,
        algorithm: Algorithm | None,
        carried: Any,
        rows: Tensor,
        todo: Sequence[int],
        constants: Any,
        models: Tensor,
    ) -> tuple[Any, Counts]:
        """Return the carried leaves [A, ...] after all steps of a compiled loop, and what was run."""
        rows = functional.pad(rows, (0, 0, 0, max(2 - rows.shape[1], 0)), value=-1)
        shared = self.store, {} if algorithm is None else self._numbers(algorithm, models)
        program = self._program(step, algorithm, carried, rows, constants, shared)
        parts = self._parts(carried, todo)

        def part(place: slice) -> tuple[Any, Counts]:
            state, lines, part_constants = take((carried, rows, constants), place)
            return all_steps(program, state, lines, todo[place], part_constants, shared, self.entry)

        if len(parts) == 1:
            return all_steps(program, carried, rows, todo, constants, shared, self.entry)
        mapped = threads(self._threads).map if program.side_by_side else map
        done = list(mapped(part, parts))
        return join([result for result, _ in done]), reduce(Counts.plus, (run for _, run in done))

    def _parts(self, carried: Any, todo: Sequence[int]) -> list[slice]:
        """Return the lanes, which fall in steps, in parts of about equal work: they run side by side on cores, few
        enough lanes in each that their states stay in its cache."""
        count, total = len(todo), sum(todo)
        if self.alone(carried):
            return [slice(lane, lane + 1) for lane in range(count)]
        if self.part_lanes is None:
            self.part_lanes = max(min(self.fitting(carried), -(-count // self._threads)), 1)
        parts = min(-(-count // self.part_lanes), max(total // (8 * self.entry), 1))
        places, begin, reached = list[slice](), 0, 0
        for lane, steps in enumerate(todo):
            reached += steps
            full = reached * parts >= total * (len(places) + 1)
            if len(places) < parts - 1 and lane + 1 < count and full:
                places.append(slice(begin, lane + 1))
                begin = lane + 1
        return [*places, slice(begin, count)]

    def _program(
        self, step: Any, algorithm: Algorithm | None, carried: Any, rows: Tensor, constants: Any, shared: Any
    ) -> Any:
        """Return the compiled loop of a step, of no algorithm where it only measures."""
        alone = self.alone(carried)
        kinds = step, specs_of((carried, constants, rows[:, 0]), 1), specs_of(shared), alone
        if kinds not in self._own:
            lane_step = self._lane_step(step, algorithm)
            state, line, lane_constants = take((carried, rows[:, 0], constants), 0)
            key = key_of(lane_step, algorithm, state, line, torch.tensor(True), lane_constants, shared), alone
            with _compiling:
                if key not in _compiled:
                    start, owner = time.perf_counter(), "" if algorithm is None else f" of {type(algorithm).__name__}"
                    _compiled[key] = LoopProgram(lane_step, carried, rows, constants, shared, alone=alone)
                    module = type(self.task_function.module).__name__
                    timing = step.__name__, owner, module, time.perf_counter() - start
                    log.info("compiled %s%s for %s in %.1f s, or found it on disk", *timing)
            self._own[kinds] = _compiled[key]
        return self._own[kinds]

    def _lane_step(self, step: Any, algorithm: Algorithm | None) -> Step:
        """Return a step as a function of one lane's tensors, and of those that all lanes share."""
        task_function = self.task_function

        def lane_step(carried: Any, line: Tensor, real: Tensor, constants: Any, shared: Any) -> Any:
            store, numbers = shared
            return step(task_function, with_numbers(algorithm, numbers), store, carried, line, real, *constants)

        return lane_step

    def _unrolled(
        self, algorithm: Algorithm, local: Any, lines: Tensor, concept: Tensor, left: Any, msg: Any, client: Any
    ) -> tuple[Any, Tensor]:
        """Take some steps eagerly, or compiled for an accelerator."""
        arguments = local, lines, concept, left, msg, client
        if not self.compiled:
            return unrolled(self.task_function, algorithm, self.store, *arguments)
        shared = self.store, self._numbers(algorithm, local.y)
        kinds = specs_of((arguments, shared))
        if kinds not in self._own:
            state = local, no_losses(self.task_function, local)
            first = take((state, lines[:, 0], left > 0, (concept, msg, client)), 0)
            key = key_of(self._lane_step(trained, algorithm), algorithm, *first, shared), kinds
            if key not in _compiled:
                _compiled[key] = partial(torch.compile(copy_function(unrolled), dynamic=False), self.task_function)
            self._own[kinds] = _compiled[key]
        try:
            numbered = with_numbers(algorithm, shared[1])
            result: tuple[Any, Tensor] = self._own[kinds](numbered, self.store, *arguments)
            return result
        except Exception as error:
            if not compiler.gave_up(error):
                raise
            raise NotCompiled(reason(error)) from error

    def _of_one_size(
        self, algorithm: Algorithm, local: Any, lines: Tensor, concept: Tensor, left: Any, msg: Any, client: Any
    ) -> tuple[Any, Tensor]:
        """Take some eager steps on batches without padding: lanes whose batches have the same size are mapped."""
        sizes, losses = (lines >= 0).sum(2), no_losses(self.task_function, local)
        first = 0
        while first < lines.shape[1]:
            same = (sizes[:, first:] == sizes[:, first : first + 1]).all(0).tolist()
            until = first + (same.index(False) if False in same else len(same))
            for size in torch.unique(sizes[:, first]).tolist():
                here = (sizes[:, first] == size).nonzero().squeeze(1)
                start, *rest = take((local, concept, msg, client), here)
                done = self._unrolled(algorithm, start, lines[here, first:until, :size], rest[0], left, *rest[1:])
                local = replaced(local, here, done[0])
                losses = losses.index_add(0, here, done[1])
            first = until
        return local, losses

    def _numbers(self, algorithm: Algorithm, models: Tensor) -> dict[str, Tensor]:
        """Return the method's numbers as tensors of the models' type, made once for all calls of a round."""
        if self._numbered is None or self._numbered[0] is not algorithm:
            before, tensors = self._numbered, vars(traced(algorithm, models))
            self._numbered = algorithm, {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
            if before is None or not differ_in_numbers(before, self._numbered):
                self._own.clear()
        return self._numbered[1]


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """Return the pool of ``count`` threads for parts of a round, each on one core, as long as the process lives."""
    # By its thread alone: torch gives each new one all cores, which would then wait for each other.
    return ThreadPoolExecutor(count, "lanes", lambda: torch.set_num_threads(1))


@cache
def cache_bytes() -> int:
    """Return the size of a core's own cache (level 2)."""
    try:
        return max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), CACHE)
    except (OSError, ValueError, AttributeError):  # not a name of this system
        return CACHE


def all_steps(
    program: Program, carried: Any, rows: Tensor, todo: Sequence[int], constants: Any, shared: Any, entry: int
) -> tuple[Any, Counts]:
    """Return the carried leaves [A, ...] after all steps, and what was run.

    Args:
        program: a `LoopProgram`.
        carried: leaves [A, ...].
        rows: [A, T, B] rows of the examples, -1 for padding.
        todo: how many of the T steps are real, by lane, falling.
        constants: leaves [A, ...].
        shared: leaves of all lanes.
        entry: as in `cuts`.
    """
    left, finished, begin, executed, width = torch.tensor(todo), list[Any](), 0, Counts(), len(todo)
    for active, end in cuts(todo, entry):
        if active < width:
            finished.append(take(carried, slice(active, width)))
            carried, width = take(carried, slice(0, active)), active
            rows, constants = take((rows, constants), slice(0, active))
        carried = program(carried, torch.tensor(begin), rows, left[:width].clamp(max=end), constants, shared)
        executed = executed.plus(Counts(1, end - begin, width * (end - begin)))
        begin = end
    return (join([carried, *reversed(finished)]) if finished else carried), executed


def cuts(todo: Sequence[int], entry: int = ENTRY) -> list[tuple[int, int]]:
    """Return the calls of a loop that lanes with falling numbers of steps leave: (lanes, last step) of each. A call
    ends where the lanes that are done would waste more steps than another call costs, its ``entry``."""
    calls, width, waste = list[tuple[int, int]](), len(todo), 0
    ends = sorted({steps for steps in todo if steps > 0})
    for end, following in zip(ends, [*ends[1:], None], strict=True):
        active = sum(steps > end for steps in todo)
        waste += (width - active) * ((following or end) - end)
        if following is None or waste > entry:
            calls.append((width, end))
            width, waste = active, 0
    return calls


def halvings(lanes: int) -> tuple[int, ...]:
    """Return the widths from ``lanes`` down to 1, each half of the one before: few, so that few shapes are compiled."""
    return tuple(lanes >> k for k in range(lanes.bit_length()))


def one_step(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    local: Any,
    line: Tensor,
    concept: Tensor,
    real: Any,
    msg: Any,
    client: Any,
) -> tuple[Any, Tensor]:
    """Take one local step of one lane, whose examples are gathered here, and return its state and loss.

    Args:
        task_function: of the task.
        algorithm: the method.
        store: all examples.
        local: the device's state.
        line: [B] rows of the examples, -1 for padding.
        concept: [] of the device.
        real: []; False keeps the state, and the loss is 0; None is True.
        msg: the server's message.
        client: the device's row.

    Returns:
        The state, and the loss [], or [1 + 2 L] where ``training_step`` logs L names (`TaskFunction.no_losses`).
    """
    x, y = store.gather(line, concept)
    grad = gradient(algorithm, task_function, msg, client)
    stepped, loss = algorithm.local_step(local, Batch(x, y, line >= 0), grad, msg, client)
    if real is None:
        return stepped, loss
    return pytree.tree_map(lambda new, old: torch.where(real, new, old), stepped, local), torch.where(real, loss, 0)


def unrolled(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    local: Any,
    rows: Tensor,
    concept: Tensor,
    todo: Any,
    msg: Any,
    client: Any,
) -> tuple[Any, Tensor]:
    """Run K copies of a step as a program: eagerly, and on GPUs, where a loop would ask the host after every step.

    Args:
        task_function: of the task.
        algorithm: the method.
        store: all examples.
        local: leaves [A, ...].
        rows: [A, K, B] rows of the examples, -1 for padding.
        concept: [A] of each lane's device.
        todo: [A] how many of the K steps are real; None: all.
        msg: leaves [A, ...].
        client: leaves [A, ...].

    Returns:
        The states, and the sums of losses [A], or [A, 1 + 2 L] as in `one_step`.
    """

    def lane(local: Any, rows: Tensor, concept: Tensor, todo: Any, msg: Any, client: Any) -> tuple[Any, Tensor]:
        total = no_losses(task_function, local)
        for k, line in enumerate(rows.unbind(0)):
            real = None if todo is None else todo > k
            local, loss = one_step(task_function, algorithm, store, local, line, concept, real, msg, client)
            total = total + loss
        return local, total

    axes = (0, 0, 0, None if todo is None else 0, 0, 0)
    return torch.vmap(lane, axes, randomness="different")(local, rows, concept, todo, msg, client)


def trained(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    carried: tuple[Any, Tensor],
    line: Tensor,
    real: Tensor,
    concept: Tensor,
    msg: Any,
    client: Any,
) -> tuple[Any, Tensor]:
    """Take a step of a compiled loop that trains: the state and the sum of losses of one lane become those after it.

    The arguments are those of `one_step`; the sum of losses is [], or [1 + 2 L].
    """
    local, total = carried
    local, loss = one_step(task_function, algorithm, store, local, line, concept, real, msg, client)
    return local, total + loss


def block_sums(
    task_function: TaskFunction, store: ExampleStore, rows: Tensor, concept: Tensor, models: Tensor
) -> Tensor:
    """Return [A]: sums of the losses of models [A, n] on examples rows [A, B], -1 for padding, under concept [A]."""
    batch = Batch(*store.gather(rows, concept), rows >= 0)
    if len(models) == 1:  # mapping costs more than such a loss does
        means = task_function.fit(models[0], take(batch, 0)).unsqueeze(0)
    else:
        means = torch.vmap(task_function.fit, randomness="different")(models, batch)
    return means * (rows >= 0).sum(1)


def whole_sums(
    task_function: TaskFunction,
    store: ExampleStore,
    rows: Tensor,
    concept: Tensor,
    models: Tensor,
    counts: Sequence[int],
) -> Tensor:
    """Return [A]: the losses of models [A, n] on all examples of their lanes at once, times their number: of rows [A,
    V] the first ``counts``, under concept [A]. Lanes with equally many are mapped together."""
    sums, by_lane = models.new_zeros(len(models)), numbers(counts, models.device)
    for count in dict.fromkeys(count for count in counts if count):
        lanes = (by_lane == count).nonzero().squeeze(1)
        losses = block_sums(task_function, store, rows[lanes, :count], concept[lanes], models[lanes])
        sums = sums.index_copy(0, lanes, losses.to(sums.dtype))
    return sums


def validated(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    total: Tensor,
    line: Tensor,
    real: Tensor,
    concept: Tensor,
    model: Tensor,
) -> Tensor:
    """Take a step of a compiled loop that validates: add a block's losses to the sum [] of one lane.

    Args:
        task_function: of the task.
        algorithm: unused.
        store: all examples.
        total: [] the sum before.
        line: [B] rows of the block's examples, -1 for padding.
        real: [] unused, since lines that are not real are padding.
        concept: [] of the device.
        model: [n].
    """
    batch = Batch(*store.gather(line, concept), line >= 0)
    with task_function.evaluating():
        return total + task_function.fit(model, batch) * (line >= 0).sum()


def no_losses(task_function: TaskFunction, local: Any) -> Tensor:
    """Return the sums of losses [...] before the first step of lanes whose models are y [..., n]."""
    return task_function.no_losses(local.y.new_zeros(local.y.shape[:-1]))


def copy_function(function: Any) -> Program:
    """Return a copy of a function with a code object of its own: torch keeps compiled variants, and gives up compiling
    after a few of them, by code object."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def coupled(task_function: TaskFunction) -> bool:
    """Return whether a task's steps cannot be compiled, since padding would change them; warns if so."""
    if task_function.couples:
        name = type(task_function.module).__name__
        reason = f"{name} has BatchNorm, or buffers that training changes; use buffers: freeze or GroupNorm"
        if not task_function.per_example and task_function.findings.why:
            reason = f"of {name}, {task_function.findings.why}; {TO_DECLARE}"
        warnings.warn(f"local steps run eagerly and are not compiled: {reason}", stacklevel=3)
    return task_function.couples


def has_compiler() -> bool:
    """Return whether torch.compile can work here; warns if it cannot."""
    if torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"):
        return True
    warnings.warn("no C++ compiler found: local steps run eagerly; install g++ for compiled ones", stacklevel=2)
    return False
