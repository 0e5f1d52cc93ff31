"""Federated blended optimization (FedAda², Lee et al. 2024, app. D, Alg. 5): every device and round has its strategy.

    server: l = strategy of device i in round t, of its resources;   send x and l
    device: K(O_l) steps of the optimizer O_l from fresh statistics;   send Δ_i = ω(O_l) (y - x)        lines 5-7
    server: the mean of all Δ_i, then ``joint``'s                                                       lines 10-14

x and the strategy's number travel down, Δ up.

Laws: with one strategy it is JointAdaptivity, or an adaptive server over SGD; who chooses what changes nothing else.
Differs: a device whose K asks for more than the world plans does what is planned. All lanes run one program, which
takes the gradient once and steps every distinct optimizer: O of them cost O elementwise updates a step, and the
simulator, not the device, keeps the states of all. Rounds are the server's own, from 1 again after a restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive import AdaptiveState
from flstudy.algorithms.parts.joint import Joint
from flstudy.algorithms.parts.rules import sgd
from flstudy.algorithms.parts.signatures import Job, Layout, Local, Rule, State, Upload
from flstudy.hyper import check, hyper
from flstudy.user_error import UserError

PRIME = 2**31 - 1  # products of two smaller numbers fit into 64 bits


@dataclass(frozen=True)
class Strategy:
    """Strategy of a device: an optimizer with its settings, which are compiled in: no tensors stand for them.

    Raises:
        UserError: for a number outside its domain.
    """

    optimizer: Literal["sgd", "adagrad", "adam", "sm3_adagrad", "sm3_adam"]
    """The devices' rule."""
    steps: int | None = hyper(None, "[1, 1e6]")
    """Most local steps; null: as many as the world plans."""
    epochs: int | None = hyper(None, "[1, 1e6]")
    """Most local epochs; null: as many as the world plans."""
    delay: int | None = hyper(None, "[1, 1e6]")
    """z, delay of the second moment's updates; null: the method's."""
    scale: float = hyper(1.0, "(0, 1e12]")
    """Factor on the method's learning rate."""
    weight: float = hyper(1.0, "(0, 1e12]")
    """ω, factor on the update that is sent."""

    def __post_init__(self) -> None:
        check(self)


def values_at(values: Sequence[float], place: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return [...]: values at place [...]."""
    table = torch.tensor(values, dtype=dtype).to(place.device, non_blocking=True)  # nobody waits for the device
    return table.index_select(0, place.reshape(-1)).view(place.shape)


def drawn(seed: int, round: Tensor, client: Tensor, count: int) -> Tensor:
    """Return [...]: one of 0 … count - 1, evenly, for devices client [...] in a round []; a pure function."""
    h = torch.full_like(client, seed % PRIME)
    for value in (round, client):
        for factor in (48271, 1_103_515_245):
            h = (h + value + 1) % PRIME * factor % PRIME
            h = (h ^ (h >> 15)) % PRIME
    return h % count


class Blended(NamedTuple):
    chosen: Tensor  # [] which of the rules is the device's
    states: tuple[Any, ...]  # of every rule

    def start(self, chosen: Tensor, per_epoch: Any) -> "Blended":
        """Return the state of a device with one of the rules, ``chosen`` [], and ``per_epoch`` [] steps an epoch, ()
        where they do not matter."""
        states = (
            state._replace(per_epoch=per_epoch)
            if isinstance(state, AdaptiveState) and isinstance(state.per_epoch, Tensor)
            else state
            for state in self.states
        )
        return Blended(chosen, tuple(states))


def blend(rules: Sequence[Rule]) -> Rule:
    """Return all rules at once, of which ``chosen`` says whose step is taken; the others' states mean nothing."""

    def init(x: Tensor, layout: Layout) -> Blended:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return Blended(zero, tuple(rule.init(x, layout) for rule in rules))

    def update(u: Tensor, state: Any, x: Tensor) -> tuple[Tensor, Blended]:
        pairs = [rule.update(u, rule_state, x) for rule, rule_state in zip(rules, state.states, strict=True)]
        step = pairs[0][0]
        for number, (other, _) in enumerate(pairs[1:], start=1):
            step = torch.where(state.chosen == number, other, step)
        return step, Blended(state.chosen, tuple(rule_state for _, rule_state in pairs))

    return Rule(init, update)


class Message(NamedTuple):
    x: Tensor  # [n]
    strategy: Tensor  # [] number of it
    per_epoch: Any = ()  # [] steps of a local epoch


@dataclass(frozen=True, kw_only=True)
class FedBlended(Joint):
    """Federated blended optimization (Lee et al. 2024): optimizers, steps and delays by device; adaptive server."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    strategies: tuple[Strategy, ...] = (Strategy("adam"), Strategy("adagrad"), Strategy("sgd"))
    """O_1, …, O_Op; settings that one leaves open are the method's."""
    resources: tuple[tuple[int, ...], ...] | None = None
    """Numbers of strategies from 0, a row for each round with a number for each device; both repeat when they end. Null
    draws evenly."""
    seed: int = hyper(0, "[0, 2e9]")
    """Seed of the draws."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strategies:
            raise UserError("FedBlended: strategies must name at least one strategy, got none; name an optimizer")
        last, rows = len(self.strategies) - 1, self.resources
        if rows is not None and (not rows or not rows[0] or len({len(row) for row in rows}) > 1):
            raise UserError("FedBlended: resources must be rows of one length, a round each, with a strategy's number "
                             f"for every device, got {rows}")  # fmt: skip
        if rows is not None and not all(0 <= number <= last for row in rows for number in row):
            raise UserError(f"FedBlended: resources must name strategies from 0 to {last}, got {rows}")

    @property
    def by_epochs(self) -> bool:
        return self.delay_unit == "epoch" and any(self.z(strategy) > 1 for strategy in self.strategies)

    def z(self, strategy: Strategy) -> int:
        """Return the strategy's delay."""
        return self.delay if strategy.delay is None else strategy.delay

    def chosen(self, server: State, client: Tensor) -> Tensor:
        """Return [...]: the strategy of devices client [...] in the round that follows server."""
        number = server.t.to(torch.int64)
        if self.resources is None:
            return drawn(self.seed, number, client, len(self.strategies))
        rows, columns = len(self.resources), len(self.resources[0])
        table = [strategy for row in self.resources for strategy in row]
        return values_at(table, number % rows * columns + client % columns)

    def workload(self, server: State, jobs: Job, planned: Tensor) -> Tensor:
        number, none = self.chosen(server, jobs.client).to(planned.device), 2**31
        steps = values_at([none if s.steps is None else s.steps for s in self.strategies], number)
        epochs = values_at([none if s.epochs is None else s.epochs for s in self.strategies], number)
        return torch.minimum(torch.minimum(planned, steps), epochs * jobs.per_epoch.to(planned.device))

    def kinds(self) -> list[tuple[Any, ...]]:
        """Return optimizer, scale and delay of each strategy, which define its rule."""
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
        chosen = values_at([places.index(kind) for kind in kinds], msg.strategy.to(torch.int64))
        return Local(msg.x, rules.start(chosen, msg.per_epoch), msg.x.new_zeros(()))

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Upload, State]:
        weight = values_at([s.weight for s in self.strategies], msg.strategy.to(torch.int64), msg.x.dtype)
        return Upload(weight * (local.y - msg.x)), client
