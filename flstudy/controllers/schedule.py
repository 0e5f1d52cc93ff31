"""How the devices' learning rate falls within a session, whatever the algorithm."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from flstudy.algorithms import Algorithm

Method = TypeVar("Method", bound=Algorithm)


@dataclass(kw_only=True)
class Schedule(ABC):
    """Scales η_ℓ by a function of the rounds since the session began; every session begins with η_ℓ anew. A world
    without sessions is one session.

    Args:
        rounds: T, those of a session, ≥ 1; rounds beyond are like the last of them, t = T - 1.
        floor: η_min as a share of η_ℓ, in [0, 1].
    """

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.rounds < 1:
            raise ValueError(f"{name}: rounds must be ≥ 1, got {self.rounds}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"{name}: floor must lie in [0, 1], got {self.floor}")

    @abstractmethod
    def left(self, share: float) -> float:
        """What is left of the way down, 1 to 0, at t/T = ``share`` in [0, 1)."""

    def scale(self, age: int) -> float:
        """η(t) / η_ℓ in the round that t = ``age`` rounds of its session came before."""
        return self.floor + (1 - self.floor) * self.left(min(age, self.rounds - 1) / self.rounds)

    def at(self, algorithm: Method, age: int) -> Method:
        """The algorithm as it is in that round."""
        return replace(algorithm, lr=algorithm.lr * self.scale(age))


@dataclass(kw_only=True)
class Polynomial(Schedule):
    """η(t) = (η_ℓ - η_min) (1 - t/T)^power + η_min, t = 0, 1, … of the session (device sessions: Chang et al. 2025, the
    authors' code, whose power is 0.9).

    Args:
        rounds: T, those of a session, ≥ 1; rounds beyond are like the last of them.
        floor: η_min / η_ℓ, in [0, 1].
        power: > 0.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    power: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.power > 0:
            raise ValueError(f"Polynomial: power must be > 0, got {self.power}")

    def left(self, share: float) -> float:
        return (1 - share) ** self.power


@dataclass(kw_only=True)
class Cosine(Schedule):
    """η(t) = (η_ℓ - η_min) (1 + cos(π t/T)) / 2 + η_min, t = 0, 1, … of the session (Loshchilov & Hutter 2017)."""

    citations: ClassVar[tuple[str, ...]] = ("loshchilov2017",)

    def left(self, share: float) -> float:
        return (1 + math.cos(math.pi * share)) / 2
