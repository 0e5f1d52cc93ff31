"""Scheduled worlds: each device's drifts, or its stays, from a config or from a table in a file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import hyper
from flstudy.population.availability import Availability
from flstudy.population.drift import Drift, Event, refuse_late
from flstudy.user_error import UserError

FORMATS = (".csv", ".parquet")


class Entry(NamedTuple):
    """One line of a timetable and where it stands."""

    values: tuple[int, ...]  # the device first
    place: str  # for messages


class Timetable(NamedTuple):
    """Format of a schedule of devices and rounds, in a config or in a file.

    Attributes:
        owner: the class that asks, for messages.
        columns: names of a file's columns and of an entry's numbers, each with its least value; the device first, then
            a round.
        open: columns that may be left empty, which reads as 0.
    """

    owner: str
    columns: dict[str, int]
    open: tuple[str, ...] = ()

    def read(self, schedule: Any) -> list[Entry]:
        """Return the entries of a mapping {device: [[…], …]} or of a file, in their own order.

        Raises:
            UserError: for no such table, or an empty one; names file and row.
        """
        entries = list(self._from_file(Path(schedule)) if isinstance(schedule, str | Path) else self._given(schedule))
        if not entries:
            raise UserError(f"{self.owner}: schedule must hold at least one entry; otherwise leave {self.owner} out")
        return entries

    def check(self, entries: Sequence[Entry], devices: int, rounds: int | None) -> None:
        """Raise UserError for an entry of a device, or a round, that there is not."""
        for (device, number, *_), place in entries:
            if device >= devices:
                raise UserError(
                    f"{self.owner}: {place}: device must lie in 0 … {devices - 1}, got {device}: raise "
                    "population.clients or leave the entry out"
                )
            refuse_late(f"{self.owner}: {place}: {list(self.columns)[1]}", number, rounds, "leave the entry out")

    def _given(self, schedule: Any) -> Iterator[Entry]:
        for device, rows in schedule.items():
            for nth, row in enumerate(rows, start=1):
                place = f"device {device}, entry {nth}"
                if len(row) != len(self.columns) - 1:
                    expected = ", ".join(list(self.columns)[1:])
                    raise UserError(f"{self.owner}: {place}: an entry is [{expected}], got {list(row)}")
                yield self._entry((device, *row), place)

    def _from_file(self, path: Path) -> Iterator[Entry]:
        names = ", ".join(self.columns)
        if path.suffix not in FORMATS:
            raise UserError(f"{self.owner}: schedule must end in {' or '.join(FORMATS)}, got {str(path)!r}")
        if not path.is_file():
            raise UserError(f"{self.owner}: there is no file {str(path)!r} with columns {names}")
        from pyarrow import ArrowException, csv, parquet  # a study dependency; the engine runs without it

        try:
            table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
        except (ArrowException, OSError) as error:
            raise UserError(f"{self.owner}: {path} cannot be read: {str(error).splitlines()[0]}") from error
        if not set(self.columns) <= set(table.column_names):
            got = ", ".join(table.column_names)
            raise UserError(f"{self.owner}: {path} must have columns {names}, got {got}")
        columns = (table.column(name).to_pylist() for name in self.columns)
        for nth, values in enumerate(zip(*columns, strict=True), start=1):
            yield self._entry(values, f"{path.name}, row {nth}")

    def _entry(self, values: Sequence[Any], place: str) -> Entry:
        """Return an entry of whole numbers."""
        numbers = []
        for (name, least), value in zip(self.columns.items(), values, strict=True):
            if value is None and name in self.open:
                value = 0
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserError(f"{self.owner}: {place}: {name} must be a whole number, got {value!r}")
            if value < least:
                raise UserError(f"{self.owner}: {place}: {name} must be ≥ {least}, got {value}")
            numbers.append(value)
        return Entry(tuple(numbers), place)


def columns_of(entries: Sequence[Entry]) -> NDArray[np.int64]:
    """Return [3, entries]: the numbers of a timetable with three columns."""
    return np.array([values for values, _ in entries], dtype=np.int64).T.reshape(3, -1)


@dataclass(frozen=True, kw_only=True)
class ScheduledDrift(Drift):
    """Scheduled drifts of every device: a mapping or a table of (device, round, concept).

    A device lives under concept 0 until its first row, and from each row's round on under that row's concept.
    Devices without a row never drift. Concepts are 0 … C − 1, where C − 1 is the largest one named.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[Timetable] = Timetable("ScheduledDrift", {"device": 0, "round": 1, "concept": 0})

    schedule: dict[int, list[tuple[int, int]]] | str
    """{device: [[round, concept], …]}, or the path of a CSV or Parquet file with columns device, round and concept;
    devices count from 0, rounds from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seen: dict[tuple[int, ...], str] = {}
        for (device, number, _), place in self.entries:
            first = seen.setdefault((device, number), place)
            if first != place:
                raise UserError(
                    f"ScheduledDrift: {place}: device {device} has a concept for round {number} already, in {first}"
                )

    @cached_property
    def entries(self) -> list[Entry]:
        """Entries by round: later ones have the last word."""
        return sorted(self.table.read(self.schedule), key=lambda entry: entry.values[1])

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """[3, entries]: the entries' devices, rounds and concepts."""
        return columns_of(self.entries)

    @property
    def concepts(self) -> int:
        """Number of concepts: one more than the largest one named."""
        return 1 + max(concept for (_, _, concept), _ in self.entries)

    def check(self, devices: int, rounds: int | None = None) -> None:
        self.table.check(self.entries, devices, rounds)

    def concept(self, seed: int, number: int, devices: int) -> NDArray[np.int64]:
        concept = np.zeros(devices, dtype=np.int64)
        device, first, new = self.columns
        begun = int(np.searchsorted(first, number, side="right"))
        concept[device[:begun]] = new[:begun]  # of several entries of a device the last one stays
        return concept

    def events(self) -> list[Event]:
        """Return one event for each round at which devices change; a schedule's beginning at round 1 is none."""
        counts = Counter(number for (_, number, _), _ in self.entries if number > 1)
        return [Event(number, f"{count} drift") for number, count in counts.items()]


@dataclass(frozen=True, kw_only=True)
class ScheduledAvailability(Availability):
    """Scheduled stays of every device: a mapping or a table of (device, joins, leaves). A device without a line is
    never there."""

    citations: ClassVar[tuple[str, ...]] = ()
    table: ClassVar[Timetable] = Timetable(
        "ScheduledAvailability", {"device": 0, "joins": 1, "leaves": 0}, open=("leaves",)
    )

    schedule: dict[int, list[tuple[int, int]]] | str
    """{device: [[joins, leaves], …]}, or the path of a CSV or Parquet file with columns device, joins and leaves.
    Devices count from 0, rounds from 1. A device is there from round joins on until the round before leaves; to the end
    where leaves is 0 or empty."""
    starts: list[int] | None = hyper(None, "[1, 1e6]")
    """Rounds with which sessions begin, beside round 1; null: those in which anybody joins or leaves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for (_, joins, leaves), place in self.stays:
            if 0 < leaves <= joins:
                raise UserError(
                    f"ScheduledAvailability: {place}: leaves must be > joins ({joins}), got {leaves}: a stay cannot "
                    "end before it starts"
                )

    @cached_property
    def stays(self) -> list[Entry]:
        """Stays in the order of the schedule."""
        return self.table.read(self.schedule)

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """[3, stays]: the stays' devices and the rounds with which these join and leave."""
        return columns_of(self.stays)

    @cached_property
    def turns(self) -> list[int]:
        """Rounds from 2 on with which devices join, or have left."""
        return sorted({number for (_, *both), _ in self.stays for number in both if number > 1})

    @cached_property
    def begun(self) -> NDArray[np.int64]:
        """Rounds [K] from 2 on with which sessions begin, in ascending order."""
        starts = self.turns if self.starts is None else sorted(self.starts)
        return np.array([number for number in starts if number > 1], dtype=np.int64)

    def present(self, number: int, devices: int) -> NDArray[np.bool_]:
        there = np.zeros(devices, dtype=bool)
        device, joins, leaves = self.columns
        there[device[(joins <= number) & ((leaves == 0) | (number < leaves))]] = True
        return there

    def session(self, number: int) -> int:
        return int(np.searchsorted(self.begun, number, side="right"))

    def changes(self, number: int) -> bool:
        return number in self.turns

    def check(self, devices: int, rounds: int | None = None) -> None:
        self.table.check(self.stays, devices, rounds)
        for number in [1, *self.turns]:
            if (rounds is None or number <= rounds) and not self.present(number, devices).any():
                raise UserError(
                    f"ScheduledAvailability: nobody is there in round {number}, session {self.session(number) + 1}: "
                    "let a device join earlier or stay longer"
                )
