"""A module's own optimizer as the rule of a method's device step, its state being one more part of a device's row.

An optimizer of `torch_twins` is mapped over devices. Of others, and of those with a schedule, torch itself takes the
step, one device at a time: it is given y, the direction that the method steps along, and the row's state. Momenta and
step counts persist over rounds (``reset``: begin anew in every round), and so does the place in a learning-rate
schedule, which counts local steps, or epochs of the device's own data.

Laws: one device that takes part always, and one epoch a round, make rounds the epochs of a Trainer.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.buffers import derived, extended, inner
from flstudy.algorithms.parts.signatures import Job, Layout, Rule, State
from flstudy.algorithms.parts.torch_twins import FlatRule, OptimizerState, before_steps, twin
from flstudy.user_error import UserError

SCHEDULED = ("lr", "momentum", "betas")  # what schedulers change


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
    """A module's optimizer and its learning-rate schedulers."""

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
        module: a copy of the task, whose parameters the optimizer holds from now on.
        configured: what its ``configure_optimizers`` returned.

    Raises:
        UserError: for an optimizer whose steps are no function of a gradient and tensors.
    """

    def __init__(self, module: nn.Module, configure: Callable[[Any], Configured]) -> None:
        self.module, self.configure = module, configure
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
            raise UserError(f"local_optimizer: {name} needs a closure, which a device's step has none of") from error
        self.places = [
            (k, key) for k, p in enumerate(held) for key, value in trial.state[p].items() if value is not None
        ]
        self.empty = [trial.state[held[k]][key] for k, key in self.places]
        if not all(isinstance(value, Tensor) for value in self.empty):
            raise UserError(
                f"local_optimizer: {name} keeps other things than tensors; use SGD, Adam, AdamW or the like"
            )
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


if TYPE_CHECKING:
    from flstudy.algorithms.fedavg import FedAvg as Wrapped
else:
    Wrapped = object


class ModuleOptimizer(Wrapped):
    """Devices that step by the module's own optimizer."""

    own_rule: ClassVar[TorchRule | FlatRule]
    layout: ClassVar[Layout]
    reset: ClassVar[bool]

    def device_rule(self) -> Rule:
        rule, layout = self.own_rule, self.layout
        return Rule(rule.init, lambda u, state, x: rule.update(u, state, x, layout))

    def client_init(self, x: Tensor) -> Any:
        return extended(super().client_init(x), optimizer=self.own_rule.init(x, self.layout))

    def prepare(self, server: Any, clients: Any, survey: Any, jobs: Job, round: Any) -> tuple[Any, Any, Tensor]:
        server, rows, model = super().prepare(server, inner(clients), survey, jobs, round)
        return server, extended(rows, optimizer=clients.optimizer), model

    def broadcast(self, server: Any, job: Job) -> Any:
        msg = super().broadcast(server, job)
        return extended(msg, per_epoch=torch.as_tensor(job.per_epoch).to(server.x.dtype))

    def local_start(self, msg: Any, client: Any, layout: Layout) -> Any:
        start, optimizer = super().local_start(inner(msg), inner(client), layout), client.optimizer
        if self.reset:
            anew = tuple(map(torch.zeros_like, optimizer.tensors))
            optimizer = optimizer._replace(tensors=anew, steps=torch.zeros_like(optimizer.steps))
        return start._replace(rule=optimizer._replace(per_epoch=msg.per_epoch))

    def local_step(self, local: Any, batch: Any, grad: Any, msg: Any, client: Any) -> tuple[Any, Tensor]:
        return super().local_step(local, batch, grad, inner(msg), inner(client))

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Any, State]:
        upload, row = super().local_end(local, inner(msg), inner(client))
        return upload, extended(row, optimizer=local.rule)

    def personal(self, local: Any, client: Any) -> Tensor:
        return super().personal(local, inner(client))

    def deployed(self, server: Any, client: Any) -> Tensor:
        return super().deployed(server, inner(client))


def plain_class(algorithm: Algorithm) -> type[Algorithm]:
    """Return the method's class as it was before anything was derived from it here."""
    return next(
        kind for kind in type(algorithm).__mro__ if issubclass(kind, Algorithm) and not vars(kind).get("derived")
    )


def rule_of(module: nn.Module, configure: Callable[[Any], Configured], layout: Layout) -> TorchRule | FlatRule:
    """Return the rule of the optimizer that ``configure_optimizers`` of a ``module`` returns, a copy that is free to be
    used.

    Raises:
        UserError: for an optimizer whose steps are no function of a gradient and tensors.
    """
    optimizer, schedule = configure(module)
    names = {id(p): name for name, p in module.named_parameters()}
    flat = None if schedule else twin(optimizer, names, layout)
    return flat or TorchRule(module, configure)


def with_module_optimizer(
    algorithm: Algorithm, rule: TorchRule | FlatRule, layout: Layout, reset: bool = False
) -> Algorithm:
    """Return the method, whose devices step by a module's own optimizer.

    Raises:
        UserError: for a method whose mathematics needs a device step of its own.
    """
    name, why = type(algorithm).__name__, algorithm.steps_by_sgd
    plain = plain_class(algorithm)
    if not why and any(getattr(plain, part) is not getattr(Algorithm, part) for part in ("local_step", "device_rule")):
        why = "its devices have a step of their own"
    if not why and algorithm.jobs_per_device > 1:
        why = "its devices train several models at once"
    if why:
        raise UserError(f"local_optimizer: module makes no sense for {name}: {why}; use local_optimizer: rule")
    alone = isinstance(rule, TorchRule)
    return derived(algorithm, ModuleOptimizer, own_rule=rule, layout=layout, reset=reset, steps_by_torch=alone)
