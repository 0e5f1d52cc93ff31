"""What FedBlended is made of: strategies, who has which, and several rules as one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive import State
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.signatures import Rule
from flstudy.hyper import check, hyper

PRIME = 2**31 - 1  # products of two smaller numbers fit into 64 bits


@dataclass(frozen=True)
class Strategy:
    """An optimizer with its settings, which are compiled in: no tensors stand for them.

    Raises:
        ValueError: for a number outside its domain.
    """

    optimizer: Literal["sgd", "adagrad", "adam", "sm3_adagrad", "sm3_adam"]
    steps: int | None = hyper(None, "[1, inf)")
    """Most local steps; null: as many as the world plans."""
    epochs: int | None = hyper(None, "[1, inf)")
    """Most local epochs; null: as many as the world plans."""
    delay: int | None = hyper(None, "[1, inf)")
    """z; null: the method's."""
    scale: float = hyper(1.0, "(0, inf)")
    """Times the method's learning rate."""
    weight: float = hyper(1.0, "(0, inf)")
    """ω, times the update that is sent."""

    def __post_init__(self) -> None:
        check(self)


def pick(values: Sequence[float], place: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
    """[...]: values at place [...]."""
    return torch.tensor(values, dtype=dtype, device=place.device).index_select(0, place.reshape(-1)).view(place.shape)


def drawn(seed: int, round: Tensor, client: Tensor, count: int) -> Tensor:
    """[...]: evenly one of 0 … count - 1 for devices client [...] in a round []; a pure function."""
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
        """Of a device with one of the rules, and so many steps in an epoch (() where that does not matter)."""
        states = (
            state._replace(per_epoch=per_epoch)
            if isinstance(state, State) and isinstance(state.per_epoch, Tensor)
            else state
            for state in self.states
        )
        return Blended(chosen, tuple(states))


def blend(rules: Sequence[Rule]) -> Rule:
    """All rules at once, of which ``chosen`` says whose step is taken; the others' states mean nothing."""

    def init(x: Tensor, layout: Layout) -> Blended:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return Blended(zero, tuple(rule.init(x, layout) for rule in rules))

    def update(u: Tensor, state: Any, x: Tensor) -> tuple[Tensor, Blended]:
        pairs = [rule.update(u, own, x) for rule, own in zip(rules, state.states, strict=True)]
        step = pairs[0][0]
        for number, (other, _) in enumerate(pairs[1:], start=1):
            step = torch.where(state.chosen == number, other, step)
        return step, Blended(state.chosen, tuple(own for _, own in pairs))

    return Rule(init, update)
