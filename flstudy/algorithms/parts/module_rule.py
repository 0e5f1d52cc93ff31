"""A module's own optimizer as the rule of a method's device step, its state being one more part of a device's row.

An optimizer of `torch_twins` is mapped over devices. Of others, and of those with a schedule, torch itself takes the
step, one device at a time: it is given y, the direction that the method steps along, and the row's state. Momenta and
step counts persist over rounds (``reset``: begin anew in every round), and so does the place in a learning-rate
schedule, which counts local steps, or epochs of the device's own data.

Laws: one device that takes part always, and one epoch a round, make rounds the epochs of a Trainer.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.buffers import derived, extended, inner
from flstudy.algorithms.parts.signatures import Job, Layout, Rule, State
from flstudy.algorithms.parts.torch_rule import Configured, TorchRule
from flstudy.algorithms.parts.torch_twins import FlatRule, twin
from flstudy.user_error import UserError

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

    def local_model(self, local: Any, client: Any) -> Tensor:
        return super().local_model(local, inner(client))

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
    return flat or TorchRule(module, configure, "local_optimizer")


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
