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
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.hyper import traced
from flstudy.execution.executor import Ground, gradient
from flstudy.execution.trees import leaves
from flstudy.population import Stack
from flstudy.tasks import Objective

STEPS = 4  # local steps of a compiled program: calls cost as much as small steps do, compilation grows with them

COST_S = 15.0  # of compiling one program, measured on two cores: 6 to 20
SAVED = 0.8  # share of an eager round's time that compiled programs save, measured on small models

Compile = bool | Literal["auto"]
Program = Callable[..., tuple[Any, Tensor]]
_compiled: dict[Any, Program] = {}  # by task, algorithm, structure and shapes
_objectives: dict[Any, Objective] = {}  # by fingerprint: the one whose module the programs call


def compilations() -> int:
    """How many programs this process has compiled."""
    return len(_compiled)


class Programs:
    """Runs local steps of all lanes.

    Args:
        ground: task and examples.
        compile: whether steps are compiled. It costs seconds for each (task, algorithm, number of lanes, batch shape)
            and serves every value of the hyper-parameters. ``auto`` starts eagerly and lets ``weigh`` decide.
    """

    def __init__(self, ground: Ground, compile: Compile = False) -> None:
        self.objective, self.stack = ground
        self.undecided, self.compiled = compile == "auto", False
        if compile is True:
            self.decide(True)

    def decide(self, compile: bool) -> None:
        """Compile from now on, or never."""
        self.undecided, self.compiled = False, compile and has_compiler()
        if self.compiled:
            # One that nobody else can have where the task cannot be compared: shared programs must compute the same.
            self._task: Any = fingerprint(self.objective) or object()

    def weigh(self, seconds: float, lanes: int, rounds_left: float) -> None:
        """Compile if that saves more than it costs.

        Args:
            seconds: what the fits of an eager round took.
            lanes: full width; each of its halvings may have to be compiled too.
            rounds_left: rounds ahead.
        """
        if self.undecided:
            programs = max(1, lanes.bit_length() - 1)
            self.decide(seconds * SAVED * rounds_left > COST_S * programs)

    @property
    def steps(self) -> int | None:
        """Steps of one call; None where any number will do."""
        return STEPS if self.compiled else None

    def width(self, active: int, lanes: int) -> int:
        """Lanes to run when ``active`` of ``lanes`` still train: just those when eager; when compiled a halving of
        the full width, so that few shapes are compiled."""
        if not self.compiled:
            return active
        while lanes // 2 >= max(active, 2):
            lanes //= 2
        return lanes

    def until(self, lengths: list[int]) -> int:
        """The step before which no lane can leave, given the steps of the lanes that run."""
        if not self.compiled:
            return min(lengths)
        half = len(lengths) // 2
        return sorted(lengths, reverse=True)[half if half >= 2 else 0]

    def run(
        self, algorithm: Algorithm, local: Any, rows: Tensor, concept: Tensor, todo: Tensor, msg: Any, client: Any
    ) -> tuple[Any, Tensor]:
        """Up to K steps of every lane.

        Args:
            algorithm: the method.
            local: leaves [A, ...].
            rows: [A, K, B] rows of the examples of each step, -1 for padding.
            concept: [A] concept of each lane's device.
            todo: [A] how many of the K steps are real; a lane with none left keeps its state. Eager programs are never
                asked for steps that are not.
            msg: leaves [A, ...].
            client: leaves [A, ...].

        Returns:
            The states, and the sum of the losses of the real steps [A].
        """
        if not self.compiled:
            return advance(self.objective, algorithm, self.stack, local, rows, concept, None, msg, client)
        program, objective = self._program(algorithm, local, rows, msg, client)
        return program(objective, traced(algorithm, local.y), self.stack, local, rows, concept, todo, msg, client)

    def _program(
        self, algorithm: Algorithm, local: Any, rows: Tensor, msg: Any, client: Any
    ) -> tuple[Program, Objective]:
        objective = _objectives.setdefault(self._task, self.objective)
        shapes = tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves((local, rows, msg, client, self.stack)))
        key = (self._task, type(algorithm), structure(algorithm), shapes)
        if key not in _compiled:
            _compiled[key] = torch.compile(twin(advance), dynamic=False)
        return _compiled[key], objective


def advance(
    objective: Objective,
    algorithm: Algorithm,
    stack: Stack,
    local: Any,
    rows: Tensor,
    concept: Tensor,
    todo: Tensor | None,
    msg: Any,
    client: Any,
) -> tuple[Any, Tensor]:
    """The program: K steps of one lane, mapped over lanes. Examples are gathered inside it. ``todo`` None: all real."""

    def lane(local: Any, rows: Tensor, concept: Tensor, todo: Any, msg: Any, client: Any) -> tuple[Any, Tensor]:
        grad = gradient(algorithm, objective, msg, client)
        total = torch.zeros_like(local.steps)
        for step, line in enumerate(rows.unbind(0)):
            x, y = stack.gather(line, concept)
            stepped, loss = algorithm.local_step(local, Batch(x, y, line >= 0), grad, msg, client)
            if todo is None:
                local, total = stepped, total + loss
            else:
                real = todo > step
                local = pytree.tree_map(lambda new, old, real=real: torch.where(real, new, old), stepped, local)
                total = total + torch.where(real, loss, 0)
        return local, total

    axes = (0, 0, 0, None if todo is None else 0, 0, 0)
    return torch.vmap(lane, axes, randomness="different")(local, rows, concept, todo, msg, client)


def twin(function: Any) -> Program:
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


def fingerprint(objective: Objective) -> bytes | None:
    """Equal for tasks that compute the same; None for one that cannot be pickled and so is shared with nobody."""
    written = io.BytesIO()
    try:
        Plain(written).dump(objective.module)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return None
    return hashlib.sha256(written.getvalue()).digest()


def has_compiler() -> bool:
    """Whether torch.compile can work here; warns if it cannot."""
    if torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"):
        return True
    warnings.warn("no C++ compiler found: local steps run eagerly; install g++ for compiled ones", stacklevel=2)
    return False
