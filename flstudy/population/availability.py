"""Devices that come and go: who is there in which round, and where sessions begin.

A session is a stretch of rounds with one set of devices (device sessions: Chang et al. 2025). Rounds count from 1,
sessions from 0. Who is absent trains nothing and is not evaluated; its row in the bank stays with it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.drift import Event, refuse_late
from flstudy.user_error import UserError


class Availability(Configurable, ABC):
    """Availability of devices: which of them take part in which round, and the sessions of a run."""

    @abstractmethod
    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        """Return [devices]: whether each is there in round ``number`` (from 1)."""

    @abstractmethod
    def session(self, number: int) -> int:
        """Return the session (from 0) of round ``number`` (from 1)."""

    @abstractmethod
    def check(self, devices: int, rounds: int | None = None) -> None:
        """Raise UserError where this does not suit so many devices and (where they are known) rounds."""

    def begins(self, number: int) -> bool:
        """Return whether a session begins with round ``number`` (from 1)."""
        return number == 1 or self.session(number) != self.session(number - 1)

    def began(self, number: int) -> int:
        """Return the first round of the session of round ``number`` (from 1)."""
        return next(earlier for earlier in range(number, 0, -1) if self.begins(earlier))

    def length(self, number: int, last: int) -> int:
        """Return the number of rounds that the session of round ``number`` (from 1) has in a run whose last round is
        ``last``."""
        first = self.began(number)
        return next((later for later in range(first + 1, last + 1) if self.begins(later)), last + 1) - first

    def known(self, number: int, devices: int) -> int:
        """Return the number of devices that have ever been there by round ``number`` (from 1)."""
        seen = np.zeros(devices, dtype=bool)
        for earlier in range(1, number + 1):
            if self.begins(earlier) or self.changes(earlier):
                seen |= self.present(earlier, devices)
        return int(seen.sum())

    def changes(self, number: int) -> bool:
        """Return whether devices come or go with round ``number`` (from 1), inside a session."""
        return False

    def events(self, rounds: int) -> list[Event]:
        """Return the sessions that begin within so many rounds, but for the first."""
        return [Event(n, f"session {self.session(n) + 1}") for n in range(2, rounds + 1) if self.begins(n)]


@dataclass(frozen=True, kw_only=True)
class AlternatingGroups(Availability):
    """Alternating groups of device sessions (Chang et al. 2025, sec. VI and the authors' code). Groups of devices, in
    the order of their numbers, take turns, one session each.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    rounds: int = hyper(domain="[1, 1e6]")
    """T, rounds of a session."""
    groups: int = hyper(2, "[2, 1e4]")
    """Number of groups."""

    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        return groups_of(devices, self.groups) == self.session(number) % self.groups  # type: ignore[no-any-return]

    def length(self, number: int, last: int) -> int:
        return self.rounds

    def session(self, number: int) -> int:
        return (number - 1) // self.rounds

    def check(self, devices: int, rounds: int | None = None) -> None:
        if devices < self.groups:
            raise UserError(
                f"population.availability: {self.groups} groups need as many devices, got clients {devices}: "
                "raise clients"
            )
        key = "population.availability.rounds + 1, with which the second session begins,"
        refuse_late(key, self.rounds + 1, rounds, "leave availability out: without it nobody comes or goes")


def groups_of(devices: int, groups: int) -> NDArray[np.int64]:
    """Return [devices]: the group of each, in the order of their numbers and of sizes that differ by one at most."""
    return np.arange(devices) * groups // devices
