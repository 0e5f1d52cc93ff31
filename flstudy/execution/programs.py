"""Several local steps of all lanes as one mapped program, eager or compiled.

Compiled programs belong to the process, not to a run: the trials of a study that one worker runs share them, since
hyper-parameters are 0-d tensors and the task's parameters are arguments. On disk torch keeps its own cache, which
makes the compilation of another worker several times shorter.
"""

import hashlib
import io
import os
import pickle
import shutil
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.parts.rules import traced
from flstudy.execution.devices import accelerated, numbers
from flstudy.execution.executor import TrainingContext, gradient
from flstudy.execution.trees import join, leaves, take
from flstudy.population import ExampleStore
from flstudy.tasks import TaskFunction

WINDOW = 256  # local steps for which a compiled loop is given rows
BLOCK, BLOCKS = 64, 16  # validation examples of one of its steps, and how many of these it is given rows for
STEPS = 4  # local steps of a compiled program without a loop: compilation grows with them

COST_S = 15.0  # of compiling one program, measured on two cores: 6 to 20
SAVED = 0.8  # share of an eager round's time that compiled programs save, measured on small models


class NotCompiled(Exception):
    """Torch could not compile a program: it runs eagerly instead."""


Compile = bool | Literal["auto"]
Program = Callable[..., tuple[Any, Tensor]]
while_loop: Any = None  # torch's, once something is compiled: importing it takes seconds
_compiled: dict[Any, Program] = {}  # by task, algorithm, structure and shapes
_task_functions: dict[Any, TaskFunction] = {}  # by fingerprint: the one whose module the programs call


def compilations() -> int:
    """How many programs this process has compiled."""
    return len(_compiled)


class Programs:
    """Runs local steps of all lanes.

    Args:
        context: task and examples.
        compile: whether steps are compiled. It costs seconds for each (task, algorithm, number of lanes, batch shape)
            and serves every value of the hyper-parameters. ``auto`` starts eagerly and lets ``weigh`` decide.
    """

    def __init__(self, context: TrainingContext, compile: Compile = False) -> None:
        self.task_function, self.store = context
        self.undecided, self.compiled = compile == "auto", False
        self._last: tuple[Any, Algorithm] | None = None
        if compile is True:
            self.decide(True)

    def decide(self, compile: bool) -> None:
        """Compile from now on, or never."""
        self.undecided, self.compiled = False, compile and has_compiler()
        if self.compiled:
            # One that nobody else can have where the task cannot be compared: shared programs must compute the same.
            self._task: Any = fingerprint(self.task_function) or object()

    @property
    def looped(self) -> bool:
        """Whether a compiled program is a loop; on a GPU that would ask the host after every step."""
        return not accelerated(self.store.x.device)

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
        """All steps of every lane, each its own number of them: fewer and fewer lanes run.

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
        width = len(todo)
        widths = (width,) if together else halvings(width)
        if self.compiled and self.looped:
            return self._loops(algorithm, local, rows, concept, todo, msg, client, widths)
        state, finished = (local, torch.zeros_like(local.steps)), list[Any]()
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
            local, losses = self._call(unrolled, algorithm, state[0], lines, concept[:width], left, msg, client)
            state = local, state[1] + losses
            executed += width * (until - done)
            done = until
        local, losses = join([state, *reversed(finished)]) if finished else state
        return local, losses, executed

    def _loops(
        self,
        algorithm: Algorithm,
        local: Any,
        rows: Tensor,
        concept: Tensor,
        todo: Sequence[int],
        msg: Any,
        client: Any,
        widths: Sequence[int],
    ) -> tuple[Any, Tensor, int]:
        """All steps in as few calls as windows hold them, whose widths fall inside."""
        total, executed = torch.zeros_like(local.steps), 0
        for begin in range(0, todo[0], WINDOW):
            left = [min(max(steps - begin, 0), WINDOW) for steps in todo]
            ends = [*(left[narrower] for narrower in widths[1:]), left[0]]
            executed += sum(w * (end - start) for w, start, end in zip(widths, [0, *ends[:-1]], ends, strict=True))
            lines = rows[:, begin : begin + WINDOW]
            lines = functional.pad(lines, (0, 0, 0, WINDOW - lines.shape[1]), value=-1).contiguous()
            steps = numbers(left, concept.device)
            local, losses = self._call(looped, algorithm, local, lines, concept, steps, msg, client, widths)
            total = total + losses
        return local, total, executed

    def validation_sums(
        self, algorithm: Algorithm, models: Tensor, rows: Tensor, concept: Tensor, counts: Sequence[int]
    ) -> Tensor:
        """[A]: sums of the losses of models on their lanes' validation examples, in blocks that fewer and fewer lanes
        reach, so that the device with the most examples costs the others nothing.

        Args:
            algorithm: the method.
            models: [A, n].
            rows: [A, V] rows of the examples, -1 for padding, which comes last.
            concept: [A] concept of each lane's device.
            counts: how many of the V rows are real, by lane, falling.
        """
        sums, widths = models.new_zeros(len(models)), halvings(len(models))
        with self.task_function.evaluating():
            if not (self.compiled and self.looped and self.task_function.per_example):
                begin = 0
                for width, narrower in zip(widths, (*widths[1:], 0), strict=True):
                    if (end := counts[narrower]) > begin:
                        some = rows[:width, begin:end], concept[:width], models[:width]
                        sums[:width] += block_sums(self.task_function, self.store, *some)
                        begin = end
                return sums
            for begin in range(0, counts[0], BLOCK * BLOCKS):
                part = rows[:, begin : begin + BLOCK * BLOCKS]
                part = functional.pad(part, (0, BLOCK * BLOCKS - part.shape[1]), value=-1)
                part = part.reshape(-1, BLOCKS, BLOCK).contiguous()
                left = [min(max(-(-(count - begin) // BLOCK), 0), BLOCKS) for count in counts]
                todo = numbers(left, concept.device)
                sums = sums + self._call(validated, algorithm, models, part, concept, todo, widths)
        return sums

    def _call(self, function: Any, algorithm: Algorithm, *arguments: Any) -> Any:
        """A function of many steps, as it is or compiled."""
        if not self.compiled:
            return function(self.task_function, algorithm, self.store, *arguments)
        task_function = _task_functions.setdefault(self._task, self.task_function)
        given = leaves((arguments, self.store))
        shapes = tuple((x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in given)
        key = (self._task, type(algorithm), structure(algorithm), shapes, function.__name__)
        if key not in _compiled:
            import_compiler()
            _compiled[key] = torch.compile(copy_function(function), dynamic=False)
        like = self._traced(algorithm, given[0])
        try:
            return _compiled[key](task_function, like, self.store, *arguments)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException  # seconds of imports, which compiling has done by now

            if not isinstance(error, TorchDynamoException):
                raise
            raise NotCompiled(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error

    def _traced(self, algorithm: Algorithm, like: Tensor) -> Algorithm:
        """The method with tensors for numbers, made once for all calls of a run."""
        key = algorithm, like.dtype, like.device
        if self._last is None or self._last[0] != key:
            self._last = key, traced(algorithm, like)
        return self._last[1]


def halvings(lanes: int) -> tuple[int, ...]:
    """Widths from ``lanes`` down to 1, each half of the one before: few, so that few shapes are compiled."""
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
    """One local step of one lane: its examples are gathered here. ``real`` []: False keeps the state; None is True."""
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
    """The program as K copies of a step: eagerly, and on GPUs, where a loop would ask the host after every step.
    ``todo`` None: all are real."""

    def lane(local: Any, rows: Tensor, concept: Tensor, todo: Any, msg: Any, client: Any) -> tuple[Any, Tensor]:
        total = torch.zeros_like(local.steps)
        for k, line in enumerate(rows.unbind(0)):
            real = None if todo is None else todo > k
            local, loss = one_step(task_function, algorithm, store, local, line, concept, real, msg, client)
            total = total + loss
        return local, total

    axes = (0, 0, 0, None if todo is None else 0, 0, 0)
    return torch.vmap(lane, axes, randomness="different")(local, rows, concept, todo, msg, client)


def looped(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    local: Any,
    rows: Tensor,
    concept: Tensor,
    todo: Tensor,
    msg: Any,
    client: Any,
    widths: Sequence[int],
) -> tuple[Any, Tensor]:
    """The program as a loop around one step for each of the falling widths: steps are all that has to be compiled."""

    def one(local: Any, line: Tensor, concept: Tensor, real: Tensor, msg: Any, client: Any) -> tuple[Any, Tensor]:
        return one_step(task_function, algorithm, store, local, line, concept, real, msg, client)

    def loop(k: Tensor, state: Any, width: int, last: Tensor) -> Any:
        """The steps until ``last`` of the first lanes."""
        lines, concepts, steps, sent, kept = take((rows, concept, todo, msg, client), slice(0, width))

        def goes_on(k: Tensor, local: Any, total: Tensor) -> Tensor:
            return k < last

        def body(k: Tensor, local: Any, total: Tensor) -> tuple[Tensor, Any, Tensor]:
            line = lines.index_select(1, k.reshape(1)).squeeze(1)
            local, loss = torch.vmap(one, randomness="different")(local, line, concepts, k < steps, sent, kept)
            return k + 1, local, total + loss

        # Copies, since a loop must not hand on its own input; contiguous, as its results will be.
        start = pytree.tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), (k, *state))
        k, local, total = while_loop(goes_on, body, start)
        return k, (local, total)

    finished: list[Any] = []
    k, state = torch.zeros_like(todo[0]), (local, torch.zeros_like(local.steps))
    for width, narrower in zip(widths, (*widths[1:], 0), strict=True):
        last = todo[narrower].clone()  # a loop's inputs must not share memory
        k, state = loop(k, state, width, last)  # until the next width holds all that are left; in the end all
        if narrower:
            finished.append(take(state, slice(narrower, width)))
            state = take(state, slice(0, narrower))
    local, total = join([state, *reversed(finished)]) if finished else state
    return local, total


def block_sums(
    task_function: TaskFunction, store: ExampleStore, rows: Tensor, concept: Tensor, models: Tensor
) -> Tensor:
    """[A]: sums of the losses of models [A, n] on examples [A, B], of which rows -1 are padding."""
    batch = Batch(*store.gather(rows, concept), rows >= 0)
    if len(models) == 1:  # mapping costs more than such a loss does
        means = task_function.fit(models[0], take(batch, 0)).unsqueeze(0)
    else:
        means = torch.vmap(task_function.fit, randomness="different")(models, batch)
    return means * (rows >= 0).sum(1)


def validated(
    task_function: TaskFunction,
    algorithm: Algorithm,
    store: ExampleStore,
    models: Tensor,
    rows: Tensor,
    concept: Tensor,
    todo: Tensor,
    widths: Sequence[int],
) -> Tensor:
    """The program that sums losses over blocks of validation examples [A, T, B], ``todo`` [A] of which are real."""
    k, sums, finished = torch.zeros_like(todo[0]), torch.zeros_like(models[:, 0]), []
    for width, narrower in zip(widths, (*widths[1:], 0), strict=True):
        some, lines, concepts, last = models[:width], rows[:width], concept[:width], todo[narrower].clone()

        def goes_on(k: Tensor, sums: Tensor, last: Tensor = last) -> Tensor:
            return k < last

        def body(
            k: Tensor, sums: Tensor, some: Tensor = some, lines: Tensor = lines, concepts: Tensor = concepts
        ) -> tuple[Tensor, Tensor]:
            block = lines.index_select(1, k.reshape(1)).squeeze(1)
            return k + 1, sums + block_sums(task_function, store, block, concepts, some)

        k, sums = while_loop(goes_on, body, (k.clone(), sums.clone()))
        if narrower:
            finished.append(sums[narrower:])
            sums = sums[:narrower]
    return torch.cat([sums, *reversed(finished)])


def import_compiler() -> None:
    """Import what compiled loops need."""
    global while_loop
    from torch._inductor import config

    if while_loop is None:
        from torch._higher_order_ops.while_loop import while_loop
    # Torch's disk cache leaves out programs with loops unless told that they depend on nothing but their code.
    config.unsafe_marked_cacheable_functions["torch.ops.higher_order.while_loop"] = torch.__version__


def copy_function(function: Any) -> Program:
    """The same function with a code object of its own: torch keeps compiled variants, and gives up compiling after a
    few of them, by code object."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def structure(algorithm: Algorithm) -> tuple[Any, ...]:
    """What of a method's hyper-parameters shapes its program: which are switched off, and which are no numbers."""
    fields = vars(algorithm).items()
    return tuple((name, "number" if isinstance(value, float) and value != 0 else value) for name, value in fields)


class Plain(pickle.Pickler):
    """Pickles tensors by their values: torch's own pickles name the addresses of storages."""

    def reducer_override(self, value: Any) -> Any:
        """Called for every object."""
        if isinstance(value, Tensor):
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return tuple, ((str(value.dtype), tuple(value.shape), str(value.device), value.requires_grad, content),)
        return NotImplemented


def fingerprint(task_function: TaskFunction) -> bytes | None:
    """Equal for tasks that compute the same; None for one that cannot be pickled and so is shared with nobody."""
    written = io.BytesIO()
    try:
        Plain(written).dump(task_function.module)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return None
    return hashlib.sha256(written.getvalue()).digest()


def has_compiler() -> bool:
    """Whether torch.compile can work here; warns if it cannot."""
    if torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"):
        return True
    warnings.warn("no C++ compiler found: local steps run eagerly; install g++ for compiled ones", stacklevel=2)
    return False
