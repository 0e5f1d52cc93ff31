"""Instances of an algorithm in a block of rounds, on scales 1, 2, 4, … (Ganguly & Aggarwal 2024, Alg. 1 and 2).

A block of order m has 2^m rounds, whose offsets count from 0. For every k ≤ m and every offset that 2^k divides, an
instance of order k that begins there and lasts 2^k rounds is scheduled with probability ρ(2^m) / ρ(2^k), so that the
one of order m always is. In each round the shortest one that covers it runs; the others pause.

Differs: Alg. 1 line 6 divides the round's number; only offsets cover every round of a block that begins anywhere, and
only they make the example of Fig. 1. Of two instances that end together Alg. 2 takes any, here the shorter one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from flstudy.population.streams import random_bits


class Instance(NamedTuple):
    """One run of the algorithm within a block."""

    order: int  # k: it lasts 2^k rounds
    first: int  # offset in its block
    last: int  # of its last round, first + 2^k - 1


@dataclass(frozen=True, kw_only=True)
class Rate:
    """ρ(t) = min(c₁/√t + c₂/t, 1), the mean regret that t rounds of an instance may have (sec. V-C)."""

    c1: float = 1.0
    c2: float = 0.0

    def __call__(self, t: int) -> float:
        """Return ρ(t), t ≥ 1; never rises."""
        return min(self.c1 / math.sqrt(t) + self.c2 / t, 1.0)


class BlockSchedule(NamedTuple):
    """A block's schedule: a pure function of the seed and the block's number."""

    seed: int
    number: int  # from 0
    order: int  # m
    rho: Rate

    def instance(self, order: int, offset: int) -> Instance | None:
        """Return the instance of an order k that covers the offset, if it is scheduled."""
        place = offset >> order
        draw = (int(random_bits(self.seed, "instances", self.number, order, place)) >> 11) / 2**53  # in [0, 1)
        if draw >= self.rho(2**self.order) / self.rho(2**order):
            return None
        return Instance(order, place << order, ((place + 1) << order) - 1)

    def covering(self, offset: int) -> list[Instance]:
        """Return the instances that have begun and not ended, shortest first: at most one of each order."""
        scheduled = (self.instance(order, offset) for order in range(self.order + 1))
        return [instance for instance in scheduled if instance is not None]

    def instances(self) -> list[Instance]:
        """Return all instances of the block (Alg. 1)."""
        scheduled = (
            self.instance(order, offset)
            for offset in range(2**self.order)
            for order in range(self.order, -1, -1)
            if offset % 2**order == 0
        )
        return [instance for instance in scheduled if instance is not None]


def running_instance(instances: Iterable[Instance], offset: int) -> Instance:
    """Return the instance that runs at an offset: with the fewest rounds to go, of several the shortest (Alg. 2 line
    7)."""
    return min((i for i in instances if i.first <= offset <= i.last), key=lambda i: (i.last - offset, i.order))
