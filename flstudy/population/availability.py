"""Devices that come and go: who is there in which round, and where sessions begin.

A session is a stretch of rounds with one set of devices (device sessions: Chang et al. 2025). Rounds count from 1,
sessions from 0. Who is absent trains nothing and is not evaluated; its row in the bank stays with it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.population.drift import Event
from flstudy.population.timetable import Timetable

TABLE = Timetable("ScheduledAvailability", ("device", "joins", "leaves"), open=("leaves",))


class Availability(ABC):
    """Which devices are there."""

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    @abstractmethod
    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        """[devices]: whether each is there in round ``number`` (from 1)."""

    @abstractmethod
    def session(self, number: int) -> int:
        """The session (from 0) of round ``number`` (from 1)."""

    @abstractmethod
    def check(self, devices: int, rounds: int | None = None) -> None:
        """Refuse what does not suit so many devices and (where they are known) rounds.

        Raises:
            ValueError: one sentence.
        """

    def begins(self, number: int) -> bool:
        """Whether a session begins with round ``number`` (from 1)."""
        return number == 1 or self.session(number) != self.session(number - 1)

    def began(self, number: int) -> int:
        """The first round of the session of round ``number`` (from 1)."""
        return next(earlier for earlier in range(number, 0, -1) if self.begins(earlier))

    def known(self, number: int, devices: int) -> int:
        """How many devices have ever been there by round ``number`` (from 1)."""
        seen = np.zeros(devices, dtype=bool)
        for earlier in range(1, number + 1):
            if self.begins(earlier) or self.changes(earlier):
                seen |= self.present(earlier, devices)
        return int(seen.sum())

    def changes(self, number: int) -> bool:
        """Whether devices come or go with round ``number``, inside a session."""
        return False

    def events(self, rounds: int) -> list[Event]:
        """The sessions that begin within so many rounds, but for the first."""
        return [Event(n, f"session {self.session(n) + 1}") for n in range(2, rounds + 1) if self.begins(n)]


@dataclass(kw_only=True)
class AlternatingGroups(Availability):
    """Devices are divided into groups, in the order of their numbers, which take turns: one session each (device
    sessions, sec. VI and the authors' code).

    Args:
        rounds: T, rounds of a session, ≥ 1.
        groups: number of groups, ≥ 2.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    rounds: int
    groups: int = 2

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"AlternatingGroups: rounds must be ≥ 1, got {self.rounds}")
        if self.groups < 2:
            raise ValueError(f"AlternatingGroups: groups must be ≥ 2, got {self.groups}")

    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        return groups_of(devices, self.groups) == self.session(number) % self.groups  # type: ignore[no-any-return]

    def session(self, number: int) -> int:
        return (number - 1) // self.rounds

    def check(self, devices: int, rounds: int | None = None) -> None:
        if devices < self.groups:
            raise ValueError(
                f"population.availability: {self.groups} groups need as many devices, got clients {devices}: "
                "raise clients"
            )
        if rounds is not None and rounds <= self.rounds:
            raise ValueError(
                f"population.availability.rounds must be < rounds ({rounds}), got {self.rounds}: one session is a "
                "world in which nobody comes or goes; raise rounds or leave availability out"
            )


@dataclass(kw_only=True)
class ScheduledAvailability(Availability):
    """Every device's stays are given: a mapping or a table of (device, joins, leaves). A device without a line is never
    there.

    Args:
        schedule: {device: [[joins, leaves], …]}, or the path of a CSV or Parquet file with columns device, joins and
            leaves; devices count from 0, rounds from 1; a device is there from round joins on until the round before
            leaves, to the end where that is 0 or empty.
        starts: rounds with which sessions begin, beside round 1; null: those in which anybody joins or leaves.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    schedule: dict[int, list[tuple[int, int]]] | str
    starts: list[int] | None = None

    def __post_init__(self) -> None:
        self._stays: list[tuple[int, int, int]] = []
        for (device, joins, leaves), place in TABLE.lines(self.schedule):
            for name, value, least in (("device", device, 0), ("joins", joins, 1), ("leaves", leaves, 0)):
                if value < least:
                    raise ValueError(f"ScheduledAvailability: {place}: {name} must be ≥ {least}, got {value}")
            if 0 < leaves <= joins:
                raise ValueError(
                    f"ScheduledAvailability: {place}: leaves must be > joins ({joins}), got {leaves}: a stay cannot "
                    "end before it starts"
                )
            self._stays.append((device, joins, leaves))
        if not self._stays:
            raise ValueError(
                "ScheduledAvailability: schedule must hold at least one stay; leave availability out otherwise"
            )
        self._turns = sorted({n for _, joins, leaves in self._stays for n in (joins, leaves) if n > 1})
        begins = self._turns if self.starts is None else sorted(self.starts)
        if begins and begins[0] < 1:
            raise ValueError(f"ScheduledAvailability: starts must be ≥ 1, got {begins[0]}")
        self._begins = np.array([n for n in begins if n > 1], dtype=np.int64)

    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        there = np.zeros(devices, dtype=bool)
        for device, joins, leaves in self._stays:
            if joins <= number and (leaves == 0 or number < leaves):
                there[device] = True
        return there

    def session(self, number: int) -> int:
        return int(np.searchsorted(self._begins, number, side="right"))

    def changes(self, number: int) -> bool:
        return number in self._turns

    def check(self, devices: int, rounds: int | None = None) -> None:
        for (device, joins, _), place in TABLE.lines(self.schedule):
            if device >= devices:
                raise ValueError(
                    f"ScheduledAvailability: {place}: device must lie in 0 … {devices - 1}, got {device}: raise "
                    "population.clients or leave the row out"
                )
            if rounds is not None and joins > rounds:
                raise ValueError(
                    f"ScheduledAvailability: {place}: joins must be ≤ rounds ({rounds}), got {joins}: raise rounds or "
                    "leave the row out"
                )
        for number in [1, *self._turns]:
            if (rounds is None or number <= rounds) and not self.present(number, devices).any():
                raise ValueError(
                    f"ScheduledAvailability: nobody is there in round {number}, session {self.session(number) + 1}: "
                    "let a device join earlier or stay longer"
                )


def groups_of(devices: int, groups: int) -> NDArray[np.int64]:
    """[devices]: the group of each, in the order of their numbers and of sizes that differ by one at most."""
    return np.arange(devices) * groups // devices
