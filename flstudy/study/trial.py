"""Trials of a study, as the driver, MLflow, reports and ``--json`` use them."""

import json
import math
import re
import traceback
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from flstudy.metrics.registry import JUDGED, Deployed
from flstudy.study.damage import DamageError, parse_json, read_bounded, reason_of
from flstudy.user_error import UserError


class Status(StrEnum):
    """Status of a trial."""

    RUNNING = "running"
    FINISHED = "finished"
    """All rounds of the trial are done."""
    PRUNED = "pruned"
    """A scheduler stopped the trial."""
    DIVERGED = "diverged"
    """A replica's training loss or objective became NaN or infinite: the trial reports the worst value."""
    FAILED = "failed"
    """The trial raised, or its worker was lost for good: the traceback is kept and the study goes on."""
    INTERRUPTED = "interrupted"
    """The study stopped before the trial's end; a resumed study runs it again."""


OVER = (Status.FINISHED, Status.PRUNED, Status.DIVERGED, Status.FAILED)
BROKEN = (Status.DIVERGED, Status.FAILED)


@dataclass(kw_only=True)
class Trial:
    """A configuration that the study tried, or is trying."""

    number: int
    algorithm: str
    """Short class name, or the arm's name."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Config key to value, as the search proposed them."""
    status: Status = Status.RUNNING
    rounds: int = 0
    """Rounds done."""
    objective: float = math.nan
    """The last value, mean over replicas; the worst value if diverged or failed; NaN before the first one."""
    values: tuple[float, ...] = ()
    """Values of all objectives, the first one included, once the trial is over."""
    feasible: bool = True
    """Whether the trial lies within study.constraints."""
    stage: Literal["search", "confirm"] = "search"
    """confirm: trained again on new seeds, which its overrides name."""
    confirms: int | None = None
    """The trial of the search that is trained again."""
    known: int | None = None
    """Trials of its algorithm's search that had ended when it was proposed: with the order of the ends, what a resumed
    study needs to repeat its search."""
    source: str | None = None
    """STUDY/TRIAL that trained it, if another study did."""
    started: float | None = None
    """Time of the first start, in seconds since 1970."""
    ended: float | None = None
    """Time of the end, in seconds since 1970. It increases in the order in which the study heard of ends."""
    attempts: int = 0
    """Number of starts."""
    lineage: list[dict[str, Any]] = field(default_factory=list)
    """Earlier overrides of a population's trial, with the rounds until which they held."""
    repeats: list[dict[str, int]] = field(default_factory=list)
    """Later proposals of the same configuration, which was not trained again: each one's ``number`` and ``known``."""
    synced: bool = True
    """Whether MLflow has all of the trial."""
    deployed: Deployed | None = None
    """Models that its devices use, and by which it is judged: each device's own, of several of the server's the one
    that a device chooses, or the server's; None where no round was trained."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Last value of each metric, mean over replicas."""
    run_id: str | None = None
    """Id of the trial's run in MLflow."""
    error: str | None = None
    """Traceback."""

    @property
    def is_over(self) -> bool:
        """True if the trial has ended for good, and need not be run again."""
        return self.status in OVER

    @property
    def is_broken(self) -> bool:
        """True if the trial diverged or failed."""
        return self.status in BROKEN

    @property
    def is_confirmation(self) -> bool:
        """True if the trial trains a trial of the search again."""
        return self.stage == "confirm"

    @property
    def times_proposed(self) -> int:
        """Number of times that the search proposed the configuration."""
        return 1 + len(self.repeats)

    @property
    def configuration(self) -> str:
        """Text that trials of one configuration share, and no others."""
        return configuration_of(self.overrides)

    @property
    def reason(self) -> str:
        """The last line of the traceback; empty where the trial raised nothing."""
        return ((self.error or "").strip().splitlines() or [""])[-1]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; NaN and infinity, which JSON lacks, are None."""
        return {name: without_nan(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return a trial from the output of `to_json`; unknown fields are left out.

        Raises:
            TypeError, UserError: for an entry that is not a trial's.
        """
        field_names = {item.name for item in fields(cls)}
        values = {name: value for name, value in entry.items() if name in field_names}
        for name, value in values.items():
            _check_kind(name, value)
        if not {"number", "algorithm"} <= set(values):
            raise TypeError("it has no number and algorithm")
        trial = cls(**values)
        trial.status = Status(trial.status)
        trial.objective = _number(trial.objective)
        trial.values = tuple(_number(value) for value in trial.values)
        trial.metrics = {name: _number(value) for name, value in trial.metrics.items()}
        return trial


def configuration_of(overrides: Mapping[str, Any]) -> str:
    """Return the text of overrides that is equal where they are; 1, 1.0 and true are three values."""
    return json.dumps(overrides, sort_keys=True, default=str)


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("number", "rounds", "attempts"), (int,)),
    **dict.fromkeys(("algorithm", "status", "stage"), (str,)),
    **dict.fromkeys(("overrides", "metrics"), (dict,)),
    **dict.fromkeys(("values", "lineage", "repeats"), (list,)),
    **dict.fromkeys(("feasible", "synced"), (bool,)),
    **dict.fromkeys(("objective", "started", "ended"), (float, int, type(None))),
    **dict.fromkeys(("source", "run_id", "error", "deployed"), (str, type(None))),
    **dict.fromkeys(("confirms", "known"), (int, type(None))),
}  # of a trial's fields in JSON
_NAME = re.compile(r"([\w-][\w.-]*)?")  # of an arm or a class: reports name files by it


def _check_kind(name: str, value: Any) -> None:
    """Raise TypeError for a value that a trial's field cannot have."""
    kinds = _KINDS[name]
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if int in kinds and float not in kinds:
        fits = fits and (value is None or value >= 0)
    elif name == "algorithm":
        fits = fits and _NAME.fullmatch(value) is not None
    elif name == "stage":
        fits = value in ("search", "confirm")
    elif name == "deployed":
        fits = value in (None, *JUDGED)
    elif name == "lineage":
        fits = fits and all(isinstance(entry, dict) for entry in value)
    elif name == "repeats":
        fits = fits and all(isinstance(entry, dict) and _is_repeat(entry) for entry in value)
    if not fits:
        raise TypeError(f"{name} cannot be {value!r}")


def _is_repeat(entry: dict[str, Any]) -> bool:
    """Return whether an entry has the two numbers of a later proposal."""
    return all(type(entry.get(name)) is int and entry[name] >= 0 for name in ("number", "known"))


def _number(value: Any) -> float:
    """Return a number from JSON, NaN for None."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} is no number")
    return math.nan if value is None else float(value)


def without_nan(value: Any) -> Any:
    """Return a nested value with None for each NaN or infinite number."""
    if isinstance(value, Mapping):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_CHECKSUM = ', "crc32": '


def write_line(trial: Trial) -> str:
    """Return a trial's line in trials.jsonl, with a checksum of all before it."""
    text = json.dumps(trial.to_json(), default=str).removesuffix("}")
    return f"{text}{_CHECKSUM}{zlib.crc32(text.encode())}}}\n"


def read_lines(path: Path, damage: list[str] | None = None) -> list[Trial]:
    """Return the trials of a trials.jsonl by number, each by its last line; none where there is no such file (yet).

    A last line without an end was cut off by a kill and counts for nothing. Neither does a line that is no trial, or
    whose checksum is wrong: its trial is known by the line before, or not at all.

    Args:
        path: the file.
        damage: gets a sentence for every line that is left out.

    Raises:
        DamageError: where the file cannot be read.
    """
    try:
        content = read_bounded(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamageError(f"{path} cannot be read ({reason_of(error)})") from error
    trials: dict[int, Trial] = {}
    for place, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            trial = _parse_line(line)
        except (ValueError, TypeError, OverflowError) as error:
            if damage is not None:
                damage.append(f"{path}, line {place}, is left out: it is no trial ({reason_of(error)})")
            continue
        trials[trial.number] = trial
    return [trials[number] for number in sorted(trials)]


def _parse_line(line: bytes) -> Trial:
    text, separator, checksum = line.decode().rpartition(_CHECKSUM)
    if separator and checksum != f"{zlib.crc32(text.encode())}}}":
        raise UserError("its checksum is another")
    entry = parse_json(line)
    if not isinstance(entry, dict):
        raise TypeError(f"got {type(entry).__name__}")
    return Trial.from_json(entry)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error; its last line, by which a trial's failure is shown, includes the error's
    notes."""
    text = "".join(traceback.format_exception(error))
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{text}{type(error).__name__}: {' '.join(str(error).split())} ({notes})" if notes else text


def by_algorithm(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Return the trials by their algorithm, in order of appearance."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.algorithm, []).append(trial)
    return groups
