"""Concept drift: which concept P(y | x) each device lives under in each round.

Round numbers are 1-based, as in the papers: a drift at round r means that round r is the first one under the new
concept. Concept 0 is the data set's own; a concept is applied when a batch is gathered, never by copying data.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.population.streams import bits


class Event(NamedTuple):
    """Something that happens to the world, for plots and metrics."""

    round: int  # 1-based
    label: str


@dataclass(kw_only=True)
class Drift(ABC):
    """Label-swap drift (FLASH, sec. 5.1).

    Args:
        round: first round of the first drift, ≥ 2.
        p_drift: share of the devices that ever drift, in [0, 1] (FLASH, App. B.1); a fixed random set per seed.
        pairs: labels to swap; null swaps (0, 1), (2, 3), …; the last label of an odd number stays.
    """

    round: int
    p_drift: float = 1.0
    pairs: list[tuple[int, int]] | None = None

    def __post_init__(self) -> None:
        if self.round < 2:
            raise ValueError(f"{type(self).__name__}: round must be ≥ 2 (rounds count from 1), got {self.round}")
        if not 0 <= self.p_drift <= 1:
            raise ValueError(f"{type(self).__name__}: p_drift must lie in [0, 1], got {self.p_drift}")

    @abstractmethod
    def share(self, number: int) -> float:
        """Share of the drifting devices that live under the new concept in round ``number`` (from 1)."""

    @abstractmethod
    def events(self) -> list[Event]:
        """The rounds at which something changes."""

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        """Concept [devices] of every device in round ``number`` (from 1)."""
        rank = np.argsort(np.argsort(bits(seed, "drift", np.arange(devices))))  # a fixed order per seed
        drifting = round_half_up(self.p_drift * devices)
        return (rank < round_half_up(self.share(number) * drifting)).astype(np.int64)

    def labels(self, classes: int) -> NDArray[np.int64]:
        """Table [concepts, classes]: what label y is called under each concept."""
        table = np.tile(np.arange(classes), (2, 1))
        for one, other in self.pairs if self.pairs is not None else [(i, i + 1) for i in range(0, classes - 1, 2)]:
            if not (0 <= one < classes and 0 <= other < classes):
                raise ValueError(
                    f"{type(self).__name__}: pairs must hold labels in 0 … {classes - 1}, got {(one, other)}"
                )
            table[1, [one, other]] = table[1, [other, one]]
        return table


def round_half_up(value: float) -> int:
    """The nearest integer, halves upwards (Python's round goes to even)."""
    return int(np.floor(value + 0.5))


@dataclass(kw_only=True)
class SuddenDrift(Drift):
    """All drifting devices change at the same round."""

    def share(self, number: int) -> float:
        return float(number >= self.round)

    def events(self) -> list[Event]:
        return [Event(self.round, "sudden drift")]


@dataclass(kw_only=True)
class IncrementalDrift(Drift):
    """From ``round`` on, ``step`` of the drifting devices change, and as many more after every ``every`` rounds.

    Args:
        every: rounds between two increments, ≥ 1.
        step: share of the drifting devices that each increment adds, in (0, 1].
    """

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
class RecurrentDrift(Drift):
    """A sudden drift at ``round`` and a sudden return to the old concept at ``back``.

    Args:
        back: first round under the old concept again, > round.
    """

    back: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.back <= self.round:
            raise ValueError(f"RecurrentDrift: back must be > round ({self.round}), got {self.back}")

    def share(self, number: int) -> float:
        return float(self.round <= number < self.back)

    def events(self) -> list[Event]:
        return [Event(self.round, "drift"), Event(self.back, "old concept returns")]
