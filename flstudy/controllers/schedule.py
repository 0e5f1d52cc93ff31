"""Schedules of the devices' learning rate within a session, for any algorithm."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from flstudy.algorithms import Algorithm
from flstudy.hyper import Configurable, hyper

Method = TypeVar("Method", bound=Algorithm)


@dataclass(frozen=True, kw_only=True)
class Schedule(Configurable, ABC):
    """Schedule that scales η_ℓ by a function of the rounds since the session began; every session begins with η_ℓ
    anew. A world without sessions is one session."""

    rounds: int | None = hyper(None, "[1, 1e6]")
    """T, rounds of a session; null: as many as it has. Rounds beyond are like the last of them, t = T - 1."""
    floor: float = hyper(0.0, "[0, 1]")
    """η_min as a share of η_ℓ."""

    @abstractmethod
    def left(self, share: float) -> float:
        """Return the share of the way down that is left, 1 to 0, at t/T = ``share`` in [0, 1)."""

    def scale(self, age: int, session: int | None = None) -> float:
        """Return η(t) / η_ℓ in the round that t = ``age`` rounds of its session, which has ``session`` rounds, came
        before."""
        rounds = session if self.rounds is None else self.rounds
        assert rounds is not None
        return self.floor + (1 - self.floor) * self.left(min(age, rounds - 1) / rounds)

    def at(self, algorithm: Method, age: int, session: int | None = None) -> Method:
        """Return the algorithm as it is in that round; a rate too small for a number is the smallest one."""
        return replace(algorithm, lr=max(algorithm.lr * self.scale(age, session), math.ulp(0.0)))


@dataclass(frozen=True, kw_only=True)
class Polynomial(Schedule):
    """Polynomial decay in each session (device sessions: Chang et al. 2025, the authors' code, whose power is 0.9):
    η(t) = (η_ℓ - η_min) (1 - t/T)^power + η_min for t = 0, 1, … of it."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    power: float = hyper(0.9, "(0, 1e12]")
    """Exponent of what is left."""

    def left(self, share: float) -> float:
        return (1 - share) ** self.power


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Cosine decay (Loshchilov & Hutter 2017): (η_ℓ - η_min) (1 + cos(π t/T)) / 2 + η_min, t = 0, 1, … of a session."""

    citations: ClassVar[tuple[str, ...]] = ("loshchilov2017",)

    def left(self, share: float) -> float:
        return (1 + math.cos(math.pi * share)) / 2
