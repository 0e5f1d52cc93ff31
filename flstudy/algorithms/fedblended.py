"""Federated blended optimization (FedAda², Lee et al. 2024, app. D, Alg. 5): every device and round has its strategy.

    server: l = strategy of device i in round t, of its resources;   send x and l
    device: K(O_l) steps of the optimizer O_l from fresh statistics;   send Δ_i = ω(O_l) (y - x)        lines 5-7
    server: the mean of all Δ_i, then ``joint``'s                                                       lines 10-14

x and the strategy's number travel down, Δ up.

Laws: with one strategy it is JointAdaptivity, or FedOpt over SGD; who chooses what changes nothing else.
Differs: a device whose K asks for more than the world plans does what is planned. All lanes run one program, which
takes the gradient once and steps every distinct optimizer: O of them cost O elementwise updates a step, and the
simulator, not the device, keeps the states of all. Rounds are the server's own, from 1 again after a restart.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.blend import Strategy, blend, drawn, pick
from flstudy.algorithms.parts.joint import Joint
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.rules import sgd
from flstudy.algorithms.parts.signatures import Job, Local, Rule, State, Upload
from flstudy.hyper import hyper


class Message(NamedTuple):
    x: Tensor  # [n]
    strategy: Tensor  # [] number of it
    per_epoch: Any = ()  # [] steps of a local epoch


@dataclass(frozen=True, kw_only=True)
class FedBlended(Joint):
    """Devices with optimizers, steps and delays of their own under an adaptive server."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    strategies: tuple[Strategy, ...] = (Strategy("adam"), Strategy("adagrad"), Strategy("sgd"))
    """O_1, …, O_Op; what one leaves open is the method's."""
    resources: tuple[tuple[int, ...], ...] | None = None
    """Numbers of strategies from 0 by round and device, both repeated when they end; null draws evenly."""
    seed: int = hyper(0, "[0, inf)")
    """Of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strategies:
            raise ValueError("FedBlended: strategies must name at least one strategy, got none; name an optimizer")
        last, rows = len(self.strategies) - 1, self.resources
        if rows is not None and (not rows or not rows[0] or len({len(row) for row in rows}) > 1):
            raise ValueError("FedBlended: resources must be rows of one length, a round each, with a strategy's number "
                             f"for every device, got {rows}")  # fmt: skip
        if rows is not None and not all(0 <= number <= last for row in rows for number in row):
            raise ValueError(f"FedBlended: resources must name strategies from 0 to {last}, got {rows}")

    @property
    def by_epochs(self) -> bool:
        return self.delay_unit == "epoch" and any(self.z(strategy) > 1 for strategy in self.strategies)

    def z(self, strategy: Strategy) -> int:
        """Its delay."""
        return self.delay if strategy.delay is None else strategy.delay

    def chosen(self, server: State, client: Tensor) -> Tensor:
        """[...]: the strategy of devices client [...] in the round that follows server."""
        number = server.t.to(torch.int64)
        if self.resources is None:
            return drawn(self.seed, number, client, len(self.strategies))
        rows, columns = len(self.resources), len(self.resources[0])
        table = [strategy for row in self.resources for strategy in row]
        return pick(table, number % rows * columns + client % columns)

    def workload(self, server: State, jobs: Job, planned: Tensor) -> Tensor:
        number, none = self.chosen(server, jobs.client).to(planned.device), 2**31
        steps = pick([none if s.steps is None else s.steps for s in self.strategies], number)
        epochs = pick([none if s.epochs is None else s.epochs for s in self.strategies], number)
        return torch.minimum(torch.minimum(planned, steps), epochs * jobs.per_epoch.to(planned.device))

    def kinds(self) -> list[tuple[Any, ...]]:
        """What tells the strategies' rules apart."""
        return [(s.optimizer, s.scale, self.z(s)) for s in self.strategies]

    def device_rules(self) -> tuple[Rule, ...]:
        return tuple(
            sgd(self.lr * scale, 0.0, self.weight_decay)
            if optimizer == "sgd"
            else self.rule(optimizer, self.lr * scale, delay)
            for optimizer, scale, delay in dict.fromkeys(self.kinds())
        )

    def device_rule(self) -> Rule:
        return blend(self.device_rules())

    def broadcast(self, server: State, job: Job) -> Message:  # type: ignore[override]
        x = server.x
        per_epoch = job.per_epoch.to(x.dtype) if self.by_epochs else ()
        return Message(x, self.chosen(server, job.client).to(x.dtype), per_epoch)

    def local_start(self, msg: Any, client: State, layout: Layout) -> Local:
        rules, kinds = self.device_rule().init(msg.x, layout), self.kinds()
        places = list(dict.fromkeys(kinds))
        chosen = pick([places.index(kind) for kind in kinds], msg.strategy.to(torch.int64))
        return Local(msg.x, rules.start(chosen, msg.per_epoch), msg.x.new_zeros(()))

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Upload, State]:
        weight = pick([s.weight for s in self.strategies], msg.strategy.to(torch.int64), msg.x.dtype)
        return Upload(weight * (local.y - msg.x)), client
