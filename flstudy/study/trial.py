"""One trial of a study, as the driver, MLflow, reports and ``--json`` see it."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from flstudy.config import ConfigError


class Status(StrEnum):
    """How far a trial has come."""

    RUNNING = "running"
    FINISHED = "finished"
    """All rounds are done."""
    PRUNED = "pruned"
    """A scheduler stopped it."""
    DIVERGED = "diverged"
    """A replica's training loss or objective became NaN or infinite: the trial reports the worst value."""
    FAILED = "failed"
    """It raised, or its worker was lost for good: the traceback is kept and the study goes on."""
    INTERRUPTED = "interrupted"
    """The study stopped before it; a resumed study runs it again."""


OVER = (Status.FINISHED, Status.PRUNED, Status.DIVERGED, Status.FAILED)
BROKEN = (Status.DIVERGED, Status.FAILED)


@dataclass(kw_only=True)
class Trial:
    """A configuration that the study tried, or is trying."""

    number: int
    algorithm: str
    """Short class name."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Config key to value, as the search proposed them."""
    status: Status = Status.RUNNING
    rounds: int = 0
    """Rounds done."""
    objective: float = math.nan
    """The last value, mean over replicas; the worst value if diverged or failed; NaN before the first one."""
    values: tuple[float, ...] = ()
    """Of all objectives, the first one included, once the trial is over."""
    feasible: bool = True
    """Whether it lies within study.constraints."""
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
    """Seconds since 1970, of the first start."""
    ended: float | None = None
    """Seconds since 1970; of two trials of a study the one that ended later has the larger number."""
    attempts: int = 0
    """Starts."""
    lineage: list[dict[str, Any]] = field(default_factory=list)
    """Earlier overrides of a population's trial, with the rounds until which they held."""
    synced: bool = True
    """Whether MLflow has all of it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Last value of each, mean over replicas."""
    run_id: str | None = None
    """Of its run in MLflow."""
    error: str | None = None
    """Traceback."""

    @property
    def is_over(self) -> bool:
        """Whether it came to an end of its own, and need not be run again."""
        return self.status in OVER

    @property
    def is_broken(self) -> bool:
        """Whether it diverged or failed."""
        return self.status in BROKEN

    @property
    def is_confirmation(self) -> bool:
        """Whether it trains a trial of the search again."""
        return self.stage == "confirm"

    @property
    def reason(self) -> str:
        """The last line of what it raised; empty where it raised nothing."""
        return ((self.error or "").strip().splitlines() or [""])[-1]

    def to_json(self) -> dict[str, Any]:
        """Plain values; NaN and infinity, which JSON lacks, are None."""
        return {name: without_nan(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """A trial from what `to_json` wrote.

        Raises:
            TypeError, ValueError: for an entry that is no trial's.
        """
        known = {item.name for item in fields(cls)}
        trial = cls(**{name: value for name, value in entry.items() if name in known})
        trial.number, trial.status = int(trial.number), Status(trial.status)
        trial.objective = math.nan if trial.objective is None else float(trial.objective)
        trial.values = tuple(math.nan if value is None else float(value) for value in trial.values)
        trial.metrics = {name: math.nan if value is None else float(value) for name, value in trial.metrics.items()}
        return trial


def without_nan(value: Any) -> Any:
    """A nested value with None for each NaN or infinite number."""
    if isinstance(value, Mapping):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_line(trial: Trial) -> str:
    """A trial's line in trials.jsonl."""
    return json.dumps(trial.to_json(), default=str) + "\n"


def read_lines(path: Path) -> list[Trial]:
    """The trials of a trials.jsonl by number, each by its last line; none where there is no such file (yet).

    A last line without an end was cut off by a kill and counts for nothing.

    Raises:
        ConfigError: for any other line that is no trial.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found: dict[int, Trial] = {}
    for place, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            trial = Trial.from_json(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {place}, must be a trial, got {line.strip()[:60]!r}: {error}") from error
        found[trial.number] = trial
    return [found[number] for number in sorted(found)]


def by_algorithm(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """Trials by their algorithm, in order of appearance."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.algorithm, []).append(trial)
    return found
