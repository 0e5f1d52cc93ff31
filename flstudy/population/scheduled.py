"""Concept drift as somebody has written it down: each device's rounds and concepts."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.population.drift import Drift, Event
from flstudy.population.timetable import Timetable

TABLE = Timetable("ScheduledDrift", ("device", "round", "concept"))


class Row(NamedTuple):
    """One line of a schedule and where it stands."""

    device: int  # from 0
    round: int  # first one under the concept, from 1
    concept: int  # from 0
    place: str  # for messages


@dataclass(kw_only=True)
class ScheduledDrift(Drift):
    """Every device's drifts are given: a mapping or a table of (device, round, concept).

    A device lives under concept 0 until its first row, and from each row's round on under that row's concept.
    Devices without a row never drift. Concepts are 0 … C − 1, where C − 1 is the largest one named.

    Args:
        schedule: {device: [[round, concept], …]}, or the path of a CSV or Parquet file with columns device, round and
            concept; devices count from 0, rounds from 1.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    schedule: dict[int, list[tuple[int, int]]] | str

    def __post_init__(self) -> None:
        self._rows = [
            Row(device, number, concept, place) for (device, number, concept), place in TABLE.lines(self.schedule)
        ]
        seen: dict[tuple[int, int], str] = {}
        for row in self._rows:
            for name, least in (("device", 0), ("round", 1), ("concept", 0)):
                if getattr(row, name) < least:
                    raise ValueError(f"ScheduledDrift: {row.place}: {name} must be ≥ {least}, got {getattr(row, name)}")
            first = seen.setdefault((row.device, row.round), row.place)
            if first != row.place:
                raise ValueError(
                    f"ScheduledDrift: {row.place}: device {row.device} has a concept for round {row.round} already, "
                    f"in {first}"
                )
        if not self._rows:
            raise ValueError("ScheduledDrift: schedule must hold at least one row; without drift leave drift out")
        self._rows.sort(key=lambda row: row.round)

    @property
    def concepts(self) -> int:
        """One more than the largest concept named."""
        return 1 + max(row.concept for row in self._rows)

    def check(self, devices: int, rounds: int | None = None) -> None:
        super().check(devices, rounds)
        for row in self._rows:
            if row.device >= devices:
                raise ValueError(
                    f"ScheduledDrift: {row.place}: device must lie in 0 … {devices - 1}, got {row.device}: "
                    "raise population.clients or leave the row out"
                )
            if rounds is not None and row.round > rounds:
                raise ValueError(
                    f"ScheduledDrift: {row.place}: round must be ≤ rounds ({rounds}), got {row.round}: "
                    "raise rounds or let the drift come earlier"
                )

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        concept = np.zeros(devices, dtype=np.int64)
        for row in self._rows:  # by round: later rows have the last word
            if row.round <= number:
                concept[row.device] = row.concept
        return concept

    def events(self) -> list[Event]:
        """One for each round at which devices change; a schedule's beginning at round 1 is none."""
        counts: dict[int, int] = {}
        for row in self._rows:
            counts[row.round] = counts.get(row.round, 0) + 1
        return [Event(number, f"{count} drift") for number, count in counts.items() if number > 1]
