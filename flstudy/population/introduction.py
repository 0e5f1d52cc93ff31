"""Classes that appear one after another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.population.changes import Change, NoChange, Tables
from flstudy.population.drift import Drift, Event
from flstudy.population.repeated import COVTYPE, passed, refuse_late, refuse_unordered


@dataclass(kw_only=True)
class ClassIntroduction(Drift):
    """Some classes are there from round 1 on, others appear at given rounds, for all devices at once: class
    introduction (Ganguly & Aggarwal 2024, sec. VI). Before its round nobody holds an example of a class: not for
    training, not for validation, not for testing.

    The defaults are the paper's for covtype. Its mnist runs have rounds 31, 129, 279, 310, 369 and 462 and groups
    {0, 1}, {2, 3}, {4}, {5, 6}, {7}, {8}, {9}.

    Every stage is a concept, numbered from 0. With a ``change`` labels or inputs change at the same rounds, too; the
    classes here are the data set's own, whatever a change calls them. A device that has no example for training, for
    validation or for testing of the classes of a round is not there in it: it is neither drawn nor evaluated. So that
    all replicas draw equally many devices, a round has no more than the replica with the fewest that are there.

    Args:
        rounds: with which classes appear, rising, ≥ 2.
        groups: the classes of round 1, then those that appear at each of the rounds; every class of the data set
            exactly once.
        change: what changes beside the classes; by default nothing.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    change: Change = field(default_factory=NoChange)
    rounds: Sequence[int] = field(default_factory=lambda: list(COVTYPE))
    groups: Sequence[Sequence[int]] = field(default_factory=lambda: [[label] for label in range(7)])

    def __post_init__(self) -> None:
        refuse_unordered("ClassIntroduction", self.rounds)
        if len(self.groups) != len(self.rounds) + 1:
            raise ValueError(
                f"ClassIntroduction: groups must be {len(self.rounds) + 1}, one for round 1 and one for each of "
                f"{len(self.rounds)} rounds, got {len(self.groups)}"
            )
        named = [label for group in self.groups for label in group]
        if not all(self.groups) or len(set(named)) < len(named):
            raise ValueError(
                "ClassIntroduction: groups must hold one or more classes each, and no class twice, got "
                f"{[list(group) for group in self.groups]}"
            )

    @property
    def concepts(self) -> int:
        """One for each group."""
        return len(self.groups)

    def check(self, devices: int, rounds: int | None = None) -> None:
        super().check(devices, rounds)
        refuse_late(self.rounds, rounds)

    def tables(self, shape: Sequence[int], classes: int) -> Tables:
        named = sorted(label for group in self.groups for label in group)
        strange = [label for label in named if not 0 <= label < classes]
        if strange:
            raise ValueError(f"ClassIntroduction: groups must hold classes in 0 … {classes - 1}, got {strange[0]}")
        if len(named) < classes:
            missing = sorted(set(range(classes)) - set(named))
            raise ValueError(
                f"ClassIntroduction: groups leave out {missing}, which would never appear: add them to a group"
            )
        return super().tables(shape, classes)

    def classes(self, number: int) -> tuple[int, ...]:
        there = self.groups[: passed(self.rounds, number) + 1]
        return tuple(sorted(label for group in there for label in group))

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        return np.full(devices, passed(self.rounds, number))

    def events(self) -> list[Event]:
        return [Event(first, appearance(group)) for first, group in zip(self.rounds, self.groups[1:], strict=True)]


def appearance(group: Sequence[int]) -> str:
    """What to call it when classes appear."""
    names = ", ".join(map(str, group))
    return f"class {names} appears" if len(group) == 1 else f"classes {names} appear"
