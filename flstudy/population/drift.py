"""Concept drift: which concept P(y | x) each device lives under in each round.

Round numbers are 1-based, as in the papers: a drift at round r means that round r is the first one under the new
concept. Concept 0 is the data set's own; what the others are is a ``Change``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.population.changes import Change, LabelSwap, Tables
from flstudy.population.streams import random_bits


class Event(NamedTuple):
    """Something that happens to the world, for plots and metrics."""

    round: int  # 1-based
    label: str


@dataclass(kw_only=True)
class Drift(ABC):
    """When which device meets which concept, and what the concepts are.

    Args:
        change: what changes: LabelSwap, ComposedSwaps, FeatureShift or Rotation.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    change: Change = field(default_factory=LabelSwap)

    @property
    def concepts(self) -> int:
        """Number of concepts, the data set's own included."""
        return 2

    @abstractmethod
    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        """Concept [devices] of every device in round ``number`` (from 1)."""

    def classes(self, number: int) -> tuple[int, ...] | None:
        """Classes (the data set's own) of which there are examples in round ``number`` (from 1); None: all."""
        return None

    @abstractmethod
    def events(self) -> list[Event]:
        """The rounds at which something changes."""

    def check(self, devices: int, rounds: int | None = None) -> None:
        """Refuse what does not suit so many devices and (where they are known) rounds.

        Raises:
            ValueError: one sentence.
        """
        for name in ("round", "back", "until"):
            if rounds is not None and getattr(self, name, 0) > rounds:
                raise ValueError(
                    f"population.drift.{name} must be ≤ rounds ({rounds}), got {getattr(self, name)}: "
                    "raise rounds or let the drift come earlier"
                )

    def tables(self, shape: Sequence[int], classes: int) -> Tables:
        """What the concepts do to inputs of this shape and to labels."""
        return self.change.tables(self.concepts, shape, classes)


@dataclass(kw_only=True)
class OneChange(Drift):
    """A share of the devices meets one new concept from some round on.

    Args:
        round: first round of the first drift, ≥ 2.
        p_drift: share of the devices that ever drift, in [0, 1] (FLASH, App. B.1); a fixed random set per seed.
        change: what changes: LabelSwap, FeatureShift or Rotation.
    """

    round: int
    p_drift: float = 1.0

    def __post_init__(self) -> None:
        if self.round < 2:
            raise ValueError(f"{type(self).__name__}: round must be ≥ 2 (rounds count from 1), got {self.round}")
        if not 0 <= self.p_drift <= 1:
            raise ValueError(f"{type(self).__name__}: p_drift must lie in [0, 1], got {self.p_drift}")

    @abstractmethod
    def share(self, number: int) -> float:
        """Share of the drifting devices that live under the new concept in round ``number`` (from 1)."""

    def drifting(self, seed: int, devices: int) -> tuple[NDArray[np.int64], int]:
        """(rank [devices], count): the devices of the ``count`` lowest ranks ever drift, in a fixed order per seed."""
        rank = np.argsort(np.argsort(random_bits(seed, "drift", np.arange(devices))))
        return rank, round_half_up(self.p_drift * devices)

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        """Concept [devices] of every device in round ``number`` (from 1)."""
        rank, count = self.drifting(seed, devices)
        return (rank < round_half_up(self.share(number) * count)).astype(np.int64)


def round_half_up(value: float) -> int:
    """The nearest integer, halves upwards (Python's round goes to even)."""
    return int(np.floor(value + 0.5))


@dataclass(kw_only=True)
class SuddenDrift(OneChange):
    """All drifting devices change at the same round."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    def share(self, number: int) -> float:
        return float(number >= self.round)

    def events(self) -> list[Event]:
        return [Event(self.round, "sudden drift")]


@dataclass(kw_only=True)
class IncrementalDrift(OneChange):
    """From ``round`` on, ``step`` of the drifting devices change, and as many more after every ``every`` rounds.

    Args:
        every: rounds between two increments, ≥ 1.
        step: share of the drifting devices that each increment adds, in (0, 1].
    """

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    every: int = 100
    step: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise ValueError(f"IncrementalDrift: every must be ≥ 1, got {self.every}")
        if not 0 < self.step <= 1:
            raise ValueError(f"IncrementalDrift: step must lie in (0, 1], got {self.step}")

    def share(self, number: int) -> float:
        return 0.0 if number < self.round else min(1.0, self.step * (1 + (number - self.round) // self.every))

    def events(self) -> list[Event]:
        increments = int(np.ceil(1 / self.step - 1e-9))
        shares = [min(1.0, self.step * (i + 1)) for i in range(increments)]
        return [Event(self.round + i * self.every, f"drift {share:.0%}") for i, share in enumerate(shares)]


@dataclass(kw_only=True)
class RecurrentDrift(OneChange):
    """A sudden drift at ``round`` and a sudden return to the old concept at ``back``.

    Args:
        back: first round under the old concept again, > round.
    """

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    back: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.back <= self.round:
            raise ValueError(f"RecurrentDrift: back must be > round ({self.round}), got {self.back}")

    def share(self, number: int) -> float:
        return float(self.round <= number < self.back)

    def events(self) -> list[Event]:
        return [Event(self.round, "drift"), Event(self.back, "old concept returns")]


@dataclass(kw_only=True)
class StaggeredDrift(OneChange):
    """Every drifting device changes at a round of its own, drawn uniformly from ``round`` to ``until``.

    Args:
        until: last round at which a device may change, ≥ round.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    until: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until < self.round:
            raise ValueError(f"StaggeredDrift: until must be ≥ round ({self.round}), got {self.until}")

    def share(self, number: int) -> float:
        """In expectation."""
        return float(np.clip((number - self.round + 1) / (self.until - self.round + 1), 0, 1))

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        rank, count = self.drifting(seed, devices)
        length = np.uint64(self.until - self.round + 1)
        first = self.round + (random_bits(seed, "drift round", np.arange(devices)) % length).astype(np.int64)
        return ((rank < count) & (number >= first)).astype(np.int64)

    def events(self) -> list[Event]:
        begin, end = Event(self.round, "drift begins"), Event(self.until, "last devices drift")
        return [begin, end] if self.until > self.round else [begin]
