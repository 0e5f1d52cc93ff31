"""Concept drift: the concept P(y | x) under which each device lives in each round.

Round numbers are 1-based, as in the papers: a drift at round r means that round r is the first one under the new
concept. Concept 0 is the data set's own; what the others are is a ``Change``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.changes import Change, ComposedSwaps, LabelSwap, NoChange, Tables
from flstudy.population.streams import random_bits
from flstudy.user_error import UserError


class Event(NamedTuple):
    """Event of the world, such as a drift or a session's begin, for plots and metrics."""

    round: int  # 1-based
    label: str
    rows: Literal["keep", "restart", "forget"] = "keep"  # what the event does to the devices' rows in the bank


def refuse_late(key: str, number: int, rounds: int | None, remedy: str) -> None:
    """Raise UserError for a round that a world names, but that never comes.

    Args:
        key: where the round is named.
        number: the round, from 1.
        rounds: of the run; None where they are not known yet.
        remedy: what to do about it, beside a longer run.
    """
    if rounds is not None and number > rounds:
        raise UserError(f"{key} must be ≤ rounds ({rounds}), got {number}: raise rounds or {remedy}")


MOST_ROUNDS = 1_000_000  # of a run
COVTYPE = (65, 187, 233, 367, 411, 489)
"""Rounds of the drifts in Master-FL's covtype runs of 500 rounds (Ganguly & Aggarwal 2024, sec. VI)."""


@dataclass(frozen=True, kw_only=True)
class Drift(Configurable, ABC):
    """Concept drift: the round in which each device meets each concept, and the change that makes the concepts."""

    change: Change = field(default_factory=LabelSwap)
    """Change under another concept: LabelSwap, ComposedSwaps, FeatureShift or Rotation."""

    @property
    def concepts(self) -> int:
        """Number of concepts, the data set's own included."""
        return 2

    @abstractmethod
    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        """Return the concept [devices] of every device in round ``number`` (from 1)."""

    def classes(self, number: int) -> tuple[int, ...] | None:
        """Return the classes (the data set's own) of which there are examples in round ``number`` (from 1); None:
        all."""
        return None

    @abstractmethod
    def events(self) -> list[Event]:
        """Return the rounds at which something changes."""

    def named(self) -> Iterator[tuple[str, int]]:
        """Yield the rounds that a config names, each after its key; the last round of a list."""
        for part in fields(self):
            if part.metadata.get("at_most") == "rounds":
                value = getattr(self, part.name)
                yield f"population.drift.{part.name}", value if isinstance(value, int) else max(value)

    def check(self, devices: int, rounds: int | None = None) -> None:
        """Raise UserError where this does not suit so many devices and (where they are known) rounds."""
        for key, number in self.named():
            refuse_late(key, number, rounds, "let the drift come earlier")

    def tables(self, shape: Sequence[int], classes: int) -> Tables:
        """Return the change's tables of all concepts, for inputs of this shape and so many labels.

        Raises:
            UserError: they cannot be made of these inputs or labels.
        """
        return self.change.tables(self.concepts, shape, classes)


@dataclass(frozen=True, kw_only=True)
class OneChange(Drift):
    """Drift to one new concept, which a share of the devices meets from some round on."""

    round: int = hyper(domain="[2, 1e6]", at_most="rounds")
    """First round of the first drift; rounds count from 1."""
    p_drift: float = hyper(1.0, "[0, 1]")
    """Share of the devices that ever drift (FLASH, App. B.1); a fixed random set per seed."""

    @abstractmethod
    def share(self, number: int) -> float:
        """Return the share of the drifting devices that live under the new concept in round ``number`` (from 1)."""

    def drifting(self, seed: int, devices: int) -> tuple[NDArray[np.int64], int]:
        """Return (rank [devices], count): the devices of the ``count`` lowest ranks ever drift, in a fixed order per
        seed."""
        return drift_ranks(seed, devices), round_half_up(self.p_drift * devices)

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        """Return the concept [devices] of every device in round ``number`` (from 1)."""
        rank, count = self.drifting(seed, devices)
        return (rank < round_half_up(self.share(number) * count)).astype(np.int64)


@lru_cache(maxsize=16)
def drift_ranks(seed: int, devices: int) -> NDArray[np.int64]:
    """Return [devices]: the place of each device in the order in which they drift; asked for in every round."""
    rank = np.argsort(np.argsort(random_bits(seed, "drift", np.arange(devices))))
    rank.setflags(write=False)
    return rank


def round_half_up(value: float) -> int:
    """Return the nearest integer, halves upwards (Python's round goes to even)."""
    return int(np.floor(value + 0.5))


@dataclass(frozen=True, kw_only=True)
class SuddenDrift(OneChange):
    """Sudden drift: all drifting devices change at the same round."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    def share(self, number: int) -> float:
        return float(number >= self.round)

    def events(self) -> list[Event]:
        return [Event(self.round, "sudden drift")]


@dataclass(frozen=True, kw_only=True)
class IncrementalDrift(OneChange):
    """Incremental drift: a share ``step`` of the drifting devices changes at ``round``, and another one every ``every``
    rounds."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    every: int = hyper(100, "[1, 1e6]")
    """Rounds between two increments."""
    step: float = hyper(0.2, "(0, 1]")
    """Share of the drifting devices that each increment adds."""

    def share(self, number: int) -> float:
        return 0.0 if number < self.round else min(1.0, self.step * (1 + (number - self.round) // self.every))

    def events(self) -> list[Event]:
        increments = int(min(np.ceil(1 / self.step - 1e-9), MOST_ROUNDS // self.every + 1))
        shares = [min(1.0, self.step * (i + 1)) for i in range(increments)]
        return [Event(self.round + i * self.every, f"drift {share:.0%}") for i, share in enumerate(shares)]


@dataclass(frozen=True, kw_only=True)
class RecurrentDrift(OneChange):
    """Recurrent drift: a sudden drift at ``round`` and a sudden return to the old concept at ``back``."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    back: int = hyper(domain="[3, 1e6]", at_most="rounds")
    """First round under the old concept again, after ``round``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.back <= self.round:
            raise UserError(f"RecurrentDrift: back must be > round ({self.round}), got {self.back}")

    def share(self, number: int) -> float:
        return float(self.round <= number < self.back)

    def events(self) -> list[Event]:
        return [Event(self.round, "drift"), Event(self.back, "old concept returns")]


@dataclass(frozen=True, kw_only=True)
class StaggeredDrift(OneChange):
    """Staggered drift: each drifting device changes at its own round, drawn uniformly from ``round`` to ``until``."""

    citations: ClassVar[tuple[str, ...]] = ()

    until: int = hyper(domain="[2, 1e6]", at_most="rounds")
    """Last round at which a device may change, ``round`` or a later one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until < self.round:
            raise UserError(f"StaggeredDrift: until must be ≥ round ({self.round}), got {self.until}")

    def share(self, number: int) -> float:
        """Return the expected share of the drifting devices that live under the new concept in round ``number`` (from
        1)."""
        return float(np.clip((number - self.round + 1) / (self.until - self.round + 1), 0, 1))

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        rank, count = self.drifting(seed, devices)
        length = np.uint64(self.until - self.round + 1)
        first = self.round + (random_bits(seed, "drift round", np.arange(devices)) % length).astype(np.int64)
        return ((rank < count) & (number >= first)).astype(np.int64)

    def events(self) -> list[Event]:
        begin, end = Event(self.round, "drift begins"), Event(self.until, "last devices drift")
        return [begin, end] if self.until > self.round else [begin]


@dataclass(frozen=True, kw_only=True)
class DatedDrift(Drift):
    """Drift of all devices at the same given rounds."""

    rounds: Sequence[int] = hyper(domain="[2, 1e6]", at_most="rounds", default_factory=lambda: list(COVTYPE))
    """First rounds under the next concept, rising; the default is the paper's for covtype, whose mnist runs have 31,
    129, 279, 310, 369 and 462."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rounds or any(later <= earlier for earlier, later in pairwise(self.rounds)):
            kind = type(self).__name__
            raise UserError(f"{kind}: rounds must be one or more rising numbers, got {list(self.rounds)}")

    def passed(self, number: int) -> int:
        """Return the number of the rounds that have begun by round ``number`` (from 1)."""
        return sum(number >= first for first in self.rounds)


@dataclass(frozen=True, kw_only=True)
class RepeatedDrift(DatedDrift):
    """Repeated drift: all devices meet the next concept at each given round, the first one again after the last.

    With two concepts every other drift undoes the one before it: Master-FL's class swap (Ganguly & Aggarwal
    2024, sec. VI) is ``change: {class_path: LabelSwap, init_args: {pairs: [[0, 1], [2, 3], [4, 5]]}}``. With
    ``cycle: null`` and the change ``ComposedSwaps`` every drift swaps on from where the one before it has led.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    cycle: int | None = hyper(2, "[2, 1e6]")
    """Number of concepts; null: every drift brings one that has never been."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cycle is not None and isinstance(self.change, ComposedSwaps):
            raise UserError(
                f"RepeatedDrift: concepts of ComposedSwaps never come back: cycle must be null, got {self.cycle}"
            )

    @property
    def concepts(self) -> int:
        """Number of concepts that the drifts can reach."""
        every = len(self.rounds) + 1
        return every if self.cycle is None else min(self.cycle, every)

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        return np.full(devices, self.passed(number) % self.concepts)

    def events(self) -> list[Event]:
        return [Event(first, f"drift to concept {nth % self.concepts}") for nth, first in enumerate(self.rounds, 1)]


@dataclass(frozen=True, kw_only=True)
class ClassIntroduction(DatedDrift):
    """Class introduction (Ganguly & Aggarwal 2024, sec. VI): some classes are there from round 1 on, others appear at
    given rounds, for all devices at once. Before its round nobody holds an example of a class: not for training, not
    for validation, not for testing.

    The defaults are the paper's for covtype. Its mnist runs have rounds 31, 129, 279, 310, 369 and 462 and groups
    {0, 1}, {2, 3}, {4}, {5, 6}, {7}, {8}, {9}.

    Every stage is a concept, numbered from 0. With a ``change`` labels or inputs change at the same rounds, too; the
    classes here are the data set's own, whatever a change calls them. A device that has no example for training, for
    validation or for testing of the classes of a round is not there in it: it is neither drawn nor evaluated. So that
    all replicas draw equally many devices, a round has no more than the replica with the fewest that are there.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    change: Change = field(default_factory=NoChange)
    """Change beside that of the classes; by default none."""
    groups: Sequence[Sequence[int]] = field(default_factory=lambda: [[label] for label in range(7)])
    """The classes of round 1, then those that appear at each of the rounds; every class of the data set exactly
    once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.groups) != len(self.rounds) + 1:
            raise UserError(
                f"ClassIntroduction: groups must be {len(self.rounds) + 1}, one for round 1 and one for each of "
                f"{len(self.rounds)} rounds, got {len(self.groups)}"
            )
        named = [label for group in self.groups for label in group]
        if not all(self.groups) or len(set(named)) < len(named):
            raise UserError(
                "ClassIntroduction: groups must hold one or more classes each, and no class twice, got "
                f"{[list(group) for group in self.groups]}"
            )

    @property
    def concepts(self) -> int:
        """Number of groups, each of which is a concept."""
        return len(self.groups)

    def tables(self, shape: Sequence[int], classes: int) -> Tables:
        named = sorted(label for group in self.groups for label in group)
        strange = [label for label in named if not 0 <= label < classes]
        if strange:
            raise UserError(f"ClassIntroduction: groups must hold classes in 0 … {classes - 1}, got {strange[0]}")
        if len(named) < classes:
            missing = sorted(set(range(classes)) - set(named))
            raise UserError(
                f"ClassIntroduction: groups leave out {missing}, which would never appear: add them to a group"
            )
        return super().tables(shape, classes)

    def classes(self, number: int) -> tuple[int, ...]:
        there = self.groups[: self.passed(number) + 1]
        return tuple(sorted(label for group in there for label in group))

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        return np.full(devices, self.passed(number))

    def events(self) -> list[Event]:
        return [Event(first, appearance(group)) for first, group in zip(self.rounds, self.groups[1:], strict=True)]


def appearance(group: Sequence[int]) -> str:
    """Return the label of the event that classes appear."""
    names = ", ".join(map(str, group))
    return f"class {names} appears" if len(group) == 1 else f"classes {names} appear"
