"""Keys of compiled programs: the operations that a function of tensors ran, with all of their constants.

Names say nothing about code: a notebook's cell defines a class anew, a method is patched, a global that it reads has
another value. What a function did is all that it computes: two functions with equal keys ran the same operations on the
same inputs, with the same numbers and the same tensors from elsewhere.
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flstudy import pytree
from flstudy.algorithms import Algorithm
from flstudy.execution.loops import NotCompiled, Step, reason
from flstudy.execution.trees import leaves, names_of

Method = TypeVar("Method", Algorithm, Algorithm | None)
Numbered = tuple[Algorithm, dict[str, Tensor]]  # a method, and those of its fields that are tensors in programs


class Unrepeatable(Exception):
    """Error of a function that runs other operations when it is called again, so that no program can stand for it."""


def program_key(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Return the key of ``function`` for arguments of these kinds, and its result. It is called twice; no random number
    is used up.

    Args:
        function: of trees of tensors. What else it reads (attributes, globals, buffers) is constant to it.
        arguments: trees of tensors.

    Raises:
        Unrepeatable: if it is another function in its second call, as with numbers drawn by numpy.
    """
    with isolate_rng():
        first, second = (Operations(arguments) for _ in range(2))
        result = first.of(function, arguments)
        second.of(function, arguments)
    if first.key != second.key:
        raise Unrepeatable("its operations, or numbers in them, change from call to call")
    return first.key, result


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that notes every operation by its name, its numbers, and the tensors that it takes and returns.

    Args:
        inputs: tree of tensors that may have other values in another call.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._noted = hashlib.sha256()
        self._numbers = dict[int, int]()  # of tensors by their identity
        self._tensors = list[Tensor]()  # held, since an identity is a tensor's only while that lives
        self._note("inputs", inputs)

    @property
    def key(self) -> str:
        """Hash of all that was noted."""
        return self._noted.hexdigest()

    def of(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Call a function and note its operations and what it returns."""
        with self:
            result = function(*arguments)
        self._note_constants(result)
        self._note("result", result)
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note it; torch calls this for each."""
        self._note_constants((args, kwargs))
        arguments = pytree.tree_map(self._named, (args, kwargs))  # before it runs: some write into their arguments
        result = func(*args, **(kwargs or {}))
        self._note(str(func), arguments, result)
        return result

    def _note(self, name: str, *values: Any) -> None:
        self._noted.update(repr((name, pytree.tree_map(self._named, values))).encode())

    def _note_constants(self, values: Any) -> None:
        """Note the values of tensors that neither came as inputs nor out of an operation."""
        for value in pytree.tree_leaves(values):
            if isinstance(value, Tensor) and id(value) not in self._numbers:
                content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
                self._note("constant", hashlib.sha256(content).hexdigest(), value)

    def _named(self, value: Any) -> Any:
        """Return a tensor as its number and kind; anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        return self._number(value), tuple(value.shape), value.stride(), str(value.dtype), str(value.device)

    def _number(self, tensor: Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        return self._numbers[id(tensor)]


def specs_of(tree: Any, axes: int = 0) -> tuple[Any, ...]:
    """Return the shapes, without the first axes, types and devices of a tree's tensors."""
    return tuple((leaf.shape[axes:], leaf.dtype, leaf.device) for leaf in leaves(tree))


def differ_in_numbers(before: Numbered, now: Numbered) -> bool:
    """Return whether two methods differ in nothing but numbers, as where a schedule changes one from round to round."""
    constants, now_constants = [
        {"class": type(algorithm)} | {name: value for name, value in vars(algorithm).items() if name not in numbers}
        for algorithm, numbers in (before, now)
    ]
    same_names = constants.keys() == now_constants.keys()
    return same_names and all(value is now_constants[name] for name, value in constants.items())


def with_numbers(algorithm: Method, numbers: dict[str, Tensor]) -> Method:
    """Return a copy of a method with tensors [] for its numbers, by name; these were checked before, and others derived
    of them."""
    numbered = copy.copy(algorithm)
    for name, value in numbers.items():
        object.__setattr__(numbered, name, value)
    return numbered


def key_of(lane_step: Step, algorithm: Algorithm | None, carried: Any, *others: Any) -> str:
    """Return the key of the step of one lane, under which runs share its program.

    Raises:
        NotCompiled: where the step has none, or returns other kinds of tensors than it is given.
    """
    try:
        key, after = program_key(lane_step, carried, *others)
    except Exception as error:  # of a method or a task, which have any; eager steps tell it better
        raise NotCompiled(reason(error)) from error
    old, new = specs_of(carried), specs_of(after)
    if len(old) != len(new):
        raise NotCompiled(
            f"a step of {type(algorithm).__name__} returns {len(new)} tensors for the {len(old)} it takes"
        )
    for name, (shape, dtype, _), (other_shape, other_dtype, _) in zip(names_of(carried), old, new, strict=True):
        if (shape, dtype) != (other_shape, other_dtype):
            kinds = f"from {dtype} {list(shape)} to {other_dtype} {list(other_shape)}"
            raise NotCompiled(f"a step of {type(algorithm).__name__} changes {name} {kinds}; begin with the latter")
    return key
