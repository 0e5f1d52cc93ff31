"""Drifts that come again and again, to all devices at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.population.changes import ComposedSwaps
from flstudy.population.drift import Drift, Event

COVTYPE = (65, 187, 233, 367, 411, 489)
"""Rounds of the drifts in Master-FL's covtype runs of 500 rounds (Ganguly & Aggarwal 2024, sec. VI)."""


@dataclass(kw_only=True)
class RepeatedDrift(Drift):
    """All devices meet the next concept at each of the given rounds, and after the last concept the first one again.

    With two concepts every other drift undoes the one before it: Master-FL's class swap (Ganguly & Aggarwal
    2024, sec. VI) is ``change: {class_path: LabelSwap, init_args: {pairs: [[0, 1], [2, 3], [4, 5]]}}``. With
    ``cycle: null`` and the change ``ComposedSwaps`` every drift swaps on from where the one before it has led.

    Args:
        rounds: first rounds under the next concept, rising, ≥ 2; the default is the paper's for covtype, whose mnist
            runs have 31, 129, 279, 310, 369 and 462.
        cycle: number of concepts, ≥ 2; null: every drift brings one that has never been.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    rounds: Sequence[int] = field(default_factory=lambda: list(COVTYPE))
    cycle: int | None = 2

    def __post_init__(self) -> None:
        refuse_unordered("RepeatedDrift", self.rounds)
        if self.cycle is not None and self.cycle < 2:
            raise ValueError(f"RepeatedDrift: cycle must be ≥ 2, got {self.cycle}")
        if self.cycle is not None and isinstance(self.change, ComposedSwaps):
            raise ValueError(
                f"RepeatedDrift: concepts of ComposedSwaps never come back: cycle must be null, got {self.cycle}"
            )

    @property
    def concepts(self) -> int:
        """As many as drifts can reach."""
        every = len(self.rounds) + 1
        return every if self.cycle is None else min(self.cycle, every)

    def check(self, devices: int, rounds: int | None = None) -> None:
        super().check(devices, rounds)
        refuse_late(self.rounds, rounds)

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        return np.full(devices, passed(self.rounds, number) % self.concepts)

    def events(self) -> list[Event]:
        return [Event(first, f"drift to concept {nth % self.concepts}") for nth, first in enumerate(self.rounds, 1)]


def passed(rounds: Sequence[int], number: int) -> int:
    """How many of the given rounds have begun by round ``number``, all from 1."""
    return sum(number >= first for first in rounds)


def refuse_unordered(owner: str, rounds: Sequence[int]) -> None:
    """Raise ValueError if these are no rounds of drifts."""
    given = list(rounds)
    if not given or given[0] < 2 or any(later <= earlier for earlier, later in pairwise(given)):
        raise ValueError(f"{owner}: rounds must be one or more rising numbers ≥ 2, got {given}")


def refuse_late(given: Sequence[int], rounds: int | None) -> None:
    """Raise ValueError if the last drift comes after so many rounds."""
    if rounds is not None and given[-1] > rounds:
        raise ValueError(
            f"population.drift.rounds must be ≤ rounds ({rounds}), got {given[-1]}: raise rounds or leave the later "
            "drifts out"
        )
