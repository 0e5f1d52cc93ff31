"""FedOpt (Reddi et al. 2021, Alg. 1) whose ServerOpt is any optimizer with torch's interface.

    Δ = Σ_c p_c Δ_c
    x, s ← ServerOpt(x, -Δ, s)            -Δ stands for the gradient
    ServerOpt's learning rate in round t is that after t - 1 steps of ``lr_scheduler``

The optimizer holds the model's tensors, shaped as the task has them, in one group. A new initial model begins s and
the schedule anew.

Laws: torch.optim.SGD with a learning rate of 1 is FedAvg; the server's steps are torch's own.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.lanes import lane_by_lane
from flstudy.algorithms.parts.signatures import Inbox, Layout, Round
from flstudy.algorithms.parts.torch_rule import Configured, Scheduled, TorchRule
from flstudy.algorithms.parts.torch_twins import OptimizerState
from flstudy.user_error import UserError

SGD_AT_ONE = partial(torch.optim.SGD, lr=1.0)
OptimizerOf = Callable[[Iterable[Tensor]], Optimizer]
SchedulerOf = Callable[[Optimizer], LRScheduler]


class Server(NamedTuple):
    x: Tensor  # [n]
    optimizer: OptimizerState
    shapes: tuple[Tensor, ...]  # [0, ...] of the tensors that x is made of


@dataclass(frozen=True, kw_only=True)
class FedOpt(Algorithm):
    """FedOpt (Reddi et al. 2021): any optimizer of torch on the server."""

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    optimizer: OptimizerOf = SGD_AT_ONE
    """Optimizer of the server, such as torch.optim.NAdam: a class, in Python a function of parameters that makes it."""
    lr_scheduler: SchedulerOf | None = None
    """Schedule of the optimizer's learning rate over rounds, such as torch.optim.lr_scheduler.CosineAnnealingLR."""
    server_lr: float = field(default=1.0, init=False)  # the optimizer has its own

    def __post_init__(self) -> None:
        super().__post_init__()
        torch_rule(self.optimizer, self.lr_scheduler, (torch.Size((2, 2)),))  # refuses what takes no such steps

    def rule(self, shapes: Iterable[torch.Size]) -> tuple[TorchRule, Layout]:
        """Return the optimizer of tensors of these shapes, and their layout."""
        layout = Layout.of((str(place), torch.empty(shape, device="meta")) for place, shape in enumerate(shapes))
        return torch_rule(self.optimizer, self.lr_scheduler, layout.shapes), layout

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        rule, layout = self.rule(layout.shapes)
        optimizer = lane_by_lane(lambda x: rule.init(x, layout), x)  # torch makes no parameters while it maps
        return Server(x, optimizer, tuple(x.new_empty((0, *shape)) for shape in layout.shapes))

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        rule, layout = self.rule(part.shape[1:] for part in server.shapes)

        def step(gradient: Tensor, optimizer: OptimizerState, x: Tensor) -> tuple[Tensor, OptimizerState]:
            with STEPPING:
                return rule.update(gradient, optimizer, x, layout)

        step_taken, optimizer = lane_by_lane(step, -inbox.mean().delta, server.optimizer, server.x)
        return server._replace(x=server.x - step_taken, optimizer=optimizer)

    def diagnostics(self, before: Server, after: Server, inbox: Inbox) -> dict[str, Tensor]:
        """Give as the learning rate [] the length of the server's step by that of the mean update; 0 without one."""
        moved, length = (after.x - before.x).norm(), inbox.mean().delta.norm()
        rate = torch.where(length > 0, moved / length, 0.0)
        return {**super().diagnostics(before, after, inbox), "effective_lr": rate}


STEPPING = threading.Lock()
"""Held while a rule steps, since runs of several threads may share it."""


def instance_of(key: str, make: Callable[[Any], Any], argument: Any) -> Any:
    """Return what a function of the user's makes of an argument; UserError, naming the key, where it cannot."""
    try:
        return make(argument)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key} cannot be made: {error}") from error


@lru_cache(maxsize=16)
def torch_rule(optimizer: OptimizerOf, lr_scheduler: SchedulerOf | None, shapes: tuple[torch.Size, ...]) -> TorchRule:
    """Return an optimizer of tensors of these shapes as a function of its state.

    Raises:
        UserError: for an optimizer or a schedule whose steps are no function of a gradient and tensors.
    """

    def configure(module: nn.Module) -> Configured:
        of_server = instance_of("algorithm.optimizer", optimizer, module.parameters())
        scheduler = None if lr_scheduler is None else instance_of("algorithm.lr_scheduler", lr_scheduler, of_server)
        for group in of_server.param_groups:  # beside an accelerator Adafactor of torch 2.15 asks for it, and has none
            group.setdefault("capturable", False)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UserError(
                "algorithm.lr_scheduler must be a function of rounds, but ReduceLROnPlateau asks for a metric: use "
                "another of torch.optim.lr_scheduler"
            )
        return Configured(of_server, () if scheduler is None else (Scheduled(scheduler),))

    parameters = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)
    return TorchRule(parameters, configure, "algorithm.optimizer")
