"""A task's buffers as a flat vector, and copies for steps that write to buffers which must stay."""

import ast
import copy
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from flstudy.algorithms import Layout
from flstudy.run_settings import BufferMode


def is_batch_norm(part: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm, of torch's or by others: torch has no public name for their common
    base."""
    return isinstance(part, _BatchNorm)


class TaskBuffers:
    """Buffers of a task as one vector b [b], the numbers that a module's own steps change: running statistics, and
    persistent buffers that the source of some class writes to. Buffers that nobody writes to are constants of the task.

    Counts are real numbers in b, rounded where the module reads them. In training BatchNorm uses a batch's
    statistics, but for a batch of one number per channel, which torch refuses: that one is normalised as in evaluation.
    With ``freeze`` nothing changes, and BatchNorm uses the task's own statistics in training, too.

    Args:
        module: a copy of the task; ``freeze`` puts its BatchNorm layers in evaluation mode.
        mode: whether buffers are averaged over devices, local to them, or frozen.
    """

    def __init__(self, module: nn.Module, mode: BufferMode) -> None:
        for part in module.modules():
            if mode == "freeze" and isinstance(part, _NormBase) and part.track_running_stats:
                part.eval()
            if is_batch_norm(part) and part.track_running_stats:
                part.register_forward_pre_hook(look_up_one)
                part.register_forward_hook(look_on, always_call=True)
        norms = {name for name, part in module.named_modules() if isinstance(part, _NormBase)}
        changed = dict(changing(module, norms))
        carried = {} if mode == "freeze" else changed
        self.layout = Layout.of(carried.items())
        self.dtypes = {name: buffer.dtype for name, buffer in carried.items()}
        # Other layers than BatchNorm may write to theirs in training, frozen or not: they write to copies.
        self._frozen = [name for name in changed if name not in carried and name.rpartition(".")[0] not in norms]
        self.change = bool(carried) or bool(self._frozen)  # whether some part of training writes to buffers
        self._held: Tensor | None = None
        self._module = module

    def named_first(self) -> dict[str, Tensor]:
        """Return the named buffers of b, shaped as in the module and with its values."""
        return {name: self._module.get_buffer(name).detach() for name in self.layout.names}

    def first(self) -> Tensor:
        """Return the vector b [b] with the values that the module has, in double precision."""
        return self.flat(self.named_first(), torch.empty(0, dtype=torch.float64))

    def of_normalisation(self) -> list[str]:
        """Return the names of all buffers and of BatchNorm's weights, which devices keep by FedBN."""
        norms = {id(p) for part in self._module.modules() if is_batch_norm(part) for p in part.parameters()}
        return [*self.layout.names, *(name for name, p in self._module.named_parameters() if id(p) in norms)]

    def split(self, b: Tensor) -> dict[str, Tensor]:
        """Return the named buffers of b [b], each of its own type."""
        return {name: self._as(part, self.dtypes[name]) for name, part in self.layout.split(b).items()}

    def flat(self, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """Return the vector b [b] of named buffers, of the type and device of another tensor [...]."""
        parts = [tensors[name].reshape(-1).to(like) for name in self.layout.names]
        return torch.cat(parts) if parts else like.new_empty(0)

    def holding(self, b: Tensor) -> Self:
        """Return these buffers, with the values of b [b] for models that come without any."""
        held = copy.copy(self)
        held._held = b
        return held

    def given(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a model's tensors by name with the buffers that it comes without, shaped as in the module."""
        if self._held is not None and self.layout.names[0] not in tensors:
            tensors = {**tensors, **self.split(self._held)}
        if self._frozen:
            like = next(iter(tensors.values()))
            copies = {name: b + like.new_zeros((), dtype=b.dtype) for name, b in self.frozen().items()}
            tensors = {**tensors, **copies}
        return tensors

    def frozen(self) -> dict[str, Tensor]:
        """Return the named buffers to which steps write, but which must stay, shaped as in the module."""
        return {name: self._module.get_buffer(name) for name in self._frozen}

    def _as(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        return part if dtype.is_floating_point else part.round().to(dtype)


def changing(module: nn.Module, norms: set[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and buffer, shaped as in the module, where a step may change it.

    ``norms`` are the names of layers with running statistics, all of whose buffers it may change.
    """
    state = module.state_dict(keep_vars=True)
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    for name, buffer in module.named_buffers():
        owner, _, last = name.rpartition(".")
        if owner in norms or (
            name in state and buffer.dtype != torch.bool and any(last in attributes_written(k) for k in kinds)
        ):
            yield name, buffer


@cache
def attributes_written(kind: type) -> frozenset[str]:
    """Return the names of attributes to which a class writes after it was made, by its source; none where there is
    none."""
    if kind is nn.Module or kind.__module__.split(".")[0] in ("builtins", "lightning", "typing", "abc"):
        return frozenset()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    targets: list[ast.AST] = []
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets.append(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and in_place(node.func.attr):
            targets.append(node.func.value)
    return frozenset(part.attr for node in targets for part in ast.walk(node) if isinstance(part, ast.Attribute))


def in_place(method: str) -> bool:
    """Return whether a tensor's method of that name writes to it."""
    return method.endswith("_") and not method.endswith("__")


def look_up_one(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Set BatchNorm to evaluation before its pass over inputs [B, C, ...], if each channel has a single number, which
    has no variance."""
    x = inputs[0]
    norm.one = norm.training and x.numel() == x.shape[1]  # type: ignore[assignment]
    norm.training = norm.training and not norm.one


def look_on(norm: nn.Module, *_: object) -> None:
    """Set BatchNorm back to training after its pass, if `look_up_one` has set it to evaluation."""
    norm.training = norm.training or norm.one  # type: ignore[assignment]
