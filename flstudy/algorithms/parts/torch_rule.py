"""An optimizer of torch, with any learning-rate schedule, as a function of its state: torch itself takes the step.

Laws: steps are torch's own.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from flstudy.algorithms.parts.signatures import Layout
from flstudy.algorithms.parts.torch_twins import OptimizerState, before_steps
from flstudy.user_error import UserError

SCHEDULED = ("lr", "momentum", "betas")  # what schedulers change
ORDINARY = "use SGD, Adam, AdamW or the like"


class Scheduled(NamedTuple):
    """Learning-rate scheduler, and when it steps."""

    scheduler: Any  # of torch.optim.lr_scheduler
    every: int = 1  # epochs, or steps of an epoch, between two of its steps
    by_epoch: bool = True

    def due(self, step: int, per_epoch: int) -> bool:
        """Return whether it steps after local step ``step`` (from 1), where an epoch has ``per_epoch`` steps: Lightning
        counts the steps of each epoch anew."""
        epoch, batch = divmod(step - 1, per_epoch)
        return (batch + 1 == per_epoch and (epoch + 1) % self.every == 0) if self.by_epoch else (
            (batch + 1) % self.every == 0)  # fmt: skip


class Configured(NamedTuple):
    """An optimizer of a module and its learning-rate schedulers."""

    optimizer: torch.optim.Optimizer
    schedule: tuple[Scheduled, ...] = ()


class SteppedRates:
    """Settings by a module's schedulers, where an epoch has ``per_epoch`` steps.

    Args:
        configured: of a module of its own.
        per_epoch: local steps of an epoch.
    """

    def __init__(self, configured: Configured, per_epoch: int) -> None:
        (self.optimizer, self.schedule), self.per_epoch = configured, per_epoch
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        self._known = [self._settings()]

    def _settings(self) -> list[dict[str, Any]]:
        return [{key: group[key] for key in SCHEDULED if key in group} for group in self.optimizer.param_groups]

    def after(self, steps: int) -> list[dict[str, Any]]:
        """Return the settings of each group of parameters after ``steps`` local steps."""
        while self.schedule and len(self._known) <= steps:
            done = len(self._known)
            inside = [scheduled for scheduled in self.schedule if not scheduled.by_epoch]
            for scheduled in (*inside, *(scheduled for scheduled in self.schedule if scheduled.by_epoch)):
                if scheduled.due(done, self.per_epoch):
                    scheduled.scheduler.step()
            self._known.append(self._settings())
        return self._known[min(steps, len(self._known) - 1)]


class TorchRule:
    """Steps of an optimizer of torch as a function of its state.

    Args:
        module: holds the parameters; the optimizer steps copies of them.
        configure: returns the optimizer of a copy of the module.
        key: of a config, for messages.

    Raises:
        UserError: for an optimizer whose steps are no function of a gradient and tensors.
    """

    def __init__(self, module: nn.Module, configure: Callable[[Any], Configured], key: str) -> None:
        self.module, self.configure, self.key = module, configure, key
        self._made: tuple[torch.dtype, torch.device] | None = None
        self._rates: dict[int, SteppedRates] = {}
        self._make(torch.empty(0))

    def _make(self, like: Tensor) -> None:
        """Make the optimizer of parameters of a kind, and find the tensors that it keeps after a step."""
        if self._made == (like.dtype, like.device):
            return
        module = copy.deepcopy(self.module).to(device=like.device, dtype=like.dtype)
        self.optimizer, schedule = self.configure(module)
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._by_step = any(not scheduled.by_epoch for scheduled in schedule)
        trial = copy.deepcopy(self.optimizer)
        held, name = [p for group in trial.param_groups for p in group["params"]], type(trial).__name__
        for p in held:
            p.grad = torch.zeros_like(p) if p.requires_grad else None  # a frozen one has no state, as while training
        try:
            trial.step()
        except TypeError as error:
            raise UserError(
                f"{self.key}: {name} needs a closure, which a step along one gradient has none of: {ORDINARY}"
            ) from error
        except RuntimeError as error:
            raise UserError(f"{self.key}: {name} takes no such step ({error}): {ORDINARY}") from error
        self.places = [
            (k, key) for k, p in enumerate(held) for key, value in trial.state[p].items() if value is not None
        ]
        self.empty = [trial.state[held[k]][key] for k, key in self.places]
        if not all(isinstance(value, Tensor) for value in self.empty):
            raise UserError(f"{self.key}: {name} keeps other things than tensors: {ORDINARY}")
        self._made = like.dtype, like.device

    def settings(self, taken: int, per_epoch: int) -> list[dict[str, Any]]:
        """Return the schedulers' settings of each group of parameters after ``taken`` local steps of a device."""
        if not self._by_step:
            taken, per_epoch = taken // per_epoch, 1
        if per_epoch not in self._rates:
            self._rates[per_epoch] = SteppedRates(self.configure(copy.deepcopy(self.module)), per_epoch)
        return self._rates[per_epoch].after(taken)

    def init(self, x: Tensor, layout: Layout) -> OptimizerState:
        """Return the state before the first step from x [n]; UserError for an optimizer that cannot be followed."""
        self._make(x)
        return before_steps(map(torch.zeros_like, self.empty), x)

    @torch.no_grad()
    def update(self, u: Tensor, state: OptimizerState, x: Tensor, layout: Layout) -> tuple[Tensor, OptimizerState]:
        """Return the step from x [n] along a gradient u [n], which is subtracted."""
        self._make(x)
        tensors, gradients = layout.split(x), layout.split(u)
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[name])
            parameter.grad = gradients[name].clone()
        settings = self.settings(int(state.before), int(state.per_epoch))
        for group, rates in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(rates)
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.optimizer.state.clear()
        if int(state.steps) > 0:  # torch begins its buffers at the first step
            for (k, key), value in zip(self.places, state.tensors, strict=True):
                self.optimizer.state[held[k]][key] = value.clone()
        self.optimizer.step()
        kept_tensors = tuple(self.optimizer.state[held[k]][key].clone() for k, key in self.places)
        after = layout.flat({name: p.detach() for name, p in self.parameters.items()})
        return x - after, state._replace(tensors=kept_tensors, steps=state.steps + 1, before=state.before + 1)
