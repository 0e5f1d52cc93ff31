"""A task seen as functions of its parameters: what executors differentiate, whatever LightningModule it is."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from flstudy.algorithms import Algorithm, Batch, Layout
from flstudy.algorithms.parts.buffers import BufferMode
from flstudy.tasks.buffers import TaskBuffers
from flstudy.tasks.task import Penalty


class TaskFunction:
    """Losses and accuracies of a task at given parameters.

    Args:
        task: any LightningModule with ``example_losses(batch) -> [B]`` or, failing that, ``training_step``; batches
            are (x, y). A ``regulariser`` (`Penalty`) is added to the mean of ``example_losses``. It is copied; the
            copy's ``log`` is silent, since no trainer stands behind it. Methods that compare representations also ask
            for ``features(x) -> [B, d]``.
        buffers: what becomes of its buffers.

    Raises:
        ValueError: if the task has neither, or has no trainable parameter.
    """

    def __init__(self, task: L.LightningModule, buffers: BufferMode = "average") -> None:
        name = type(task).__name__
        self.per_example = hasattr(task, "example_losses")
        if not self.per_example and not overrides(task, "training_step"):
            raise ValueError(
                f"task: {name} defines neither example_losses nor training_step, so it has no loss; add "
                f"`def example_losses(self, batch): x, y = batch; return cross_entropy(self(x), y, reduction='none')`"
            )
        trainer, task._trainer = task._trainer, None  # a copy of the trainer would be a copy of everything
        self.module = copy.deepcopy(task)
        task._trainer = trainer
        self.module.log = self.module.log_dict = silent  # type: ignore
        self.layout = Layout.of((name, p) for name, p in self.module.named_parameters() if p.requires_grad)
        with torch.no_grad():  # always given as arguments; zeroed, the copies of equal tasks are equal
            for parameter in self.module.parameters():
                if parameter.requires_grad:
                    parameter.zero_()
        if self.layout.n == 0:
            raise ValueError(f"task: {name} has no trainable parameter")
        own = getattr(task, "regulariser", None) if self.per_example else None  # a training_step has its own by itself
        self.regulariser = own if isinstance(own, Penalty) else Penalty()
        self.scores_accuracy = hasattr(task, "example_correct") or overrides(task, "forward")
        self.buffers = TaskBuffers(self.module, buffers)
        norms = any(isinstance(part, _BatchNorm) and part.training for part in self.module.modules())
        self.couples = norms or self.buffers.change
        """Whether the examples of a batch change each other's losses, so that padding must not be among them."""
        self._call = Call(self.module)
        # A module of its own, since switching modes to and fro would keep a step from being compiled.
        compared = hasattr(task, "features") or overrides(task, "forward")
        self._fixed = Call(copy.deepcopy(self.module).eval()) if compared else None

    def to(self, device: torch.device, dtype: torch.dtype) -> "TaskFunction":
        """Move the module's frozen parts; trained parameters come as arguments."""
        self.module.to(device=device, dtype=dtype)
        if self._fixed is not None:
            self._fixed.task.to(device=device, dtype=dtype)
        return self

    def serves(self, algorithm: Algorithm) -> None:
        """Raise ValueError if the task lacks what the method asks of it."""
        name, method = type(self.module).__name__, type(algorithm).__name__
        if "features" in algorithm.needs and not hasattr(self.module, "features"):
            raise ValueError(
                f"task: {name} defines no features(x), which {method} compares; add `def features(self, x)`, the "
                f"representations [B, d] that its classifier is given, or use Mlp, Cnn, Vgg, ResNet18, ResNet34, "
                f"FastText or Lstm"
            )
        if "forward" in algorithm.needs and not overrides(self.module, "forward"):
            raise ValueError(
                f"task: {name} defines no forward(x), whose logits {method} compares; add `def forward(self, x)` that "
                f"returns them, [B, classes]"
            )

    def holding(self, b: Tensor) -> "TaskFunction":
        """This task, whose models [n] without buffers have these, [b]."""
        held = copy.copy(self)
        held.buffers = self.buffers.holding(b)
        return held

    def example_losses(self, y: Any, batch: Batch) -> Tensor:
        """[B] losses at parameters y, flat [n] or as named tensors."""
        return self._at(y, "example_losses", (batch.x, batch.y))

    def __call__(self, y: Any, batch: Batch) -> Tensor:
        """[] mean loss over the batch's real examples, and the task's penalty."""
        return self.regularised(self.fit(y, batch), y)

    def regularised(self, loss: Tensor, y: Any) -> Tensor:
        """[] a loss and the task's penalty on parameters y, flat [n] or as named tensors."""
        if not self.regulariser:
            return loss
        n = self.layout.n
        return loss + self.regulariser([y[name] for name in self.layout.names] if isinstance(y, Mapping) else [y[:n]])

    def fit(self, y: Any, batch: Batch) -> Tensor:
        """[] mean loss over the batch's real examples, without a penalty; a task that knows no losses of single
        examples is taken at the word of its ``training_step``."""
        if not self.per_example:
            loss = self._at(y, "training_step", (batch.x, batch.y), 0)
            return loss["loss"] if isinstance(loss, Mapping) else loss
        return batch.mean(self.example_losses(y, batch))

    def features(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """[B, d]: the task's representations of inputs x [B, ...] at parameters y, flat [n] or as named tensors;
        ``fixed``: of a model that does not train, in evaluation mode, without dropout."""
        return self._output("features", y, x, fixed).flatten(1)

    def logits(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """[B, ..., classes]: the task's ``forward``, as `features`."""
        return self._output("forward", y, x, fixed)

    def _output(self, method: str, y: Any, x: Tensor, fixed: bool) -> Tensor:
        assert self._fixed is not None, "serves was not asked"
        return self._at(y, method, x, call=self._fixed if fixed else self._call)

    def example_correct(self, y: Any, batch: Batch) -> Tensor:
        """[B] 1 where the task is right, at parameters y; by default where the largest logit is the label's."""
        if hasattr(self.module, "example_correct"):
            return self._at(y, "example_correct", (batch.x, batch.y))
        return (self._at(y, "forward", batch.x).argmax(-1) == batch.y).to(torch.get_default_dtype())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The module in evaluation mode: dropout is off."""
        training = [part for part in self.module.modules() if part.training]
        self.module.eval()
        try:
            yield
        finally:
            for part in training:  # and no other: a frozen BatchNorm stays as it is
                part.training = True

    def tensors(self, y: Tensor) -> dict[str, Tensor]:
        """The named tensors of a model: of its parameters [n], and of buffers that lie behind them [n + b]."""
        if len(y) == self.layout.n:
            return self.layout.split(y)
        x, b = torch.split(y, [self.layout.n, len(y) - self.layout.n])
        return self.layout.split(x) | self.buffers.split(b)

    def _at(self, y: Any, method: str, *arguments: Any, call: nn.Module | None = None) -> Any:
        tensors = self.buffers.given(y if isinstance(y, Mapping) else self.tensors(y))
        named = {f"task.{name}": tensor for name, tensor in tensors.items()}
        return functional_call(call or self._call, named, (method, *arguments))


def silent(*_: Any, **__: Any) -> None:
    """A log call without a trainer."""


class Call(nn.Module):
    """Calls any method of a task, so that ``functional_call`` can reach it."""

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task

    def forward(self, method: str, *arguments: Any) -> Any:
        """The method's result."""
        return getattr(self.task, method)(*arguments)


def overrides(task: L.LightningModule, method: str) -> bool:
    """Whether a module defines a method that LightningModule only declares."""
    return getattr(type(task), method, None) is not getattr(L.LightningModule, method, None)


def inside_out(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module before itself, so that it has the last word on how they begin."""
    for child in module.children():
        yield from inside_out(child)
    yield module


def initial_parameters(task: L.LightningModule, layout: Layout, seed: int | None) -> Tensor:
    """x⁰ [n]: the task's parameters as they are, or (with a seed) as its modules' ``reset_parameters`` draw them."""
    module = copy.deepcopy(task)
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(seed)
            for part in dict.fromkeys(inside_out(module)):
                reset: Callable[[], None] | None = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
    return layout.flat({name: p.detach() for name, p in module.named_parameters() if p.requires_grad})
