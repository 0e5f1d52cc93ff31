"""A study's folder as a value: its config, trials, drift events and the curves of its trials.

studies/<name>/study.yaml               the config of the study
               trials.jsonl             an entry per line; of several lines of one trial the last one counts
               events.json              [{"round": 40, "label": "sudden drift"}]; absent where nothing drifts
               records/<trial>.parquet  every round of a trial
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from flstudy.metrics.drift import Recovery
from flstudy.study.records import curve, read_records
from flstudy.tracking.trials import read_entries

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One entry of trials.jsonl."""

    trial: str
    overrides: Mapping[str, Any]  # config key -> value, as the search proposed them
    algorithm: str  # short class name
    status: str  # finished, pruned, diverged, failed; anything else is still under way
    rounds: int  # rounds done
    objective: float  # the last value, mean over replicas; NaN where there is none
    metrics: Mapping[str, float]  # last value of each, mean over replicas
    values: tuple[float, ...] = ()  # of all objectives, the first one included; empty where there is none
    feasible: bool = True  # within study.constraints
    stage: str = "search"  # or confirm: trained again on new seeds, for which its overrides have the key seeds
    of: str | None = None  # the trial of the search that is confirmed
    source: str | None = None  # STUDY/TRIAL that trained it, if another study did
    started: float | None = None  # seconds since 1970
    ended_at: float | None = None
    attempts: int = 1
    run_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something the world did at a round: the first round that feels it."""

    round: int
    label: str

    @property
    def session(self) -> bool:
        """Whether a session begins, rather than a drift."""
        return self.label.startswith("session ")


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    folder: Path
    config: Mapping[str, Any]
    trials: tuple[Trial, ...]
    events: tuple[Event, ...]
    _tables: dict[str, pa.Table] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def rounds(self) -> int:
        """Rounds of a whole trial."""
        return int(self.config["rounds"])

    @property
    def seeds(self) -> list[int]:
        seeds = self.config.get("seeds", [])
        return [int(seed) for seed in seeds] if isinstance(seeds, list) else [int(seeds)]

    @property
    def recovery(self) -> Recovery:
        """When the study's trials have recovered from a drift."""
        return Recovery(**(self.config.get("recovery") or {}))

    @property
    def objective(self) -> tuple[str, bool]:
        """(metric, whether higher is better) of what the study searched for."""
        objective = (self.config.get("study") or {}).get("objective") or {}
        return str(objective.get("metric", "valid/accuracy")), objective.get("mode", "max") != "min"

    @property
    def objectives(self) -> list[tuple[str, bool]]:
        """(metric, whether higher is better) of all objectives, in the order of a trial's values."""
        more = (self.config.get("study") or {}).get("objectives") or []
        return [
            self.objective,
            *((str(one.get("metric", "valid/accuracy")), one.get("mode", "max") != "min") for one in more),
        ]

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search."""
        return tuple(trial for trial in self.trials if trial.stage != "confirm")

    @property
    def confirmations(self) -> tuple[Trial, ...]:
        """Trials of the search that were trained again on seeds that it had not seen."""
        return tuple(trial for trial in self.trials if trial.stage == "confirm")

    def seeds_of(self, trial: Trial) -> list[int]:
        """The seeds of a trial: a confirmation has its own."""
        own = trial.overrides.get("seeds")
        return [int(seed) for seed in own] if isinstance(own, list) else self.seeds

    def counts(self) -> Counter[str]:
        """Trials of the search by status."""
        return Counter(trial.status for trial in self.searched)

    def records(self, trial: Trial) -> pa.Table:
        if trial.trial not in self._tables:
            self._tables[trial.trial] = read_records(self.folder / "records" / f"{trial.trial}.parquet")
        return self._tables[trial.trial]

    def curve(self, trial: Trial, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(rounds [T], values [S, T]) of one metric of a trial."""
        return curve(self.records(trial), metric)

    def last(self, trial: Trial, metric: str) -> dict[int, float]:
        """The last recorded value of a metric by seed."""
        _, values = self.curve(trial, metric)
        table = self.records(trial)
        _, first = np.unique(table["replica"].to_numpy(), return_index=True)
        seeds = table["seed"].to_numpy()[first].tolist()
        return dict(zip(seeds, values[:, -1].tolist(), strict=True))


def load_study(folder: str | os.PathLike[str]) -> StudyResults:
    """Raises ValueError, in one sentence, where there is no such study or one of its files cannot be read."""
    folder = Path(folder)
    if not (folder / "study.yaml").is_file():
        raise ValueError(_no_study(folder))
    config = _read(folder / "study.yaml", yaml.safe_load, dict)
    if not isinstance(config.get("rounds"), int):
        raise ValueError(f"{folder / 'study.yaml'} must have a whole number of rounds, got {config.get('rounds')!r}")
    trials = read_entries(folder / "trials.jsonl")
    events = _read(folder / "events.json", json.loads, list)
    try:
        return StudyResults(
            folder=folder,
            config=config,
            trials=tuple(_trial(entry) for entry in trials),
            events=tuple(
                sorted((Event(round=int(e["round"]), label=str(e["label"])) for e in events), key=lambda e: e.round)
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"study {folder} has a trial or event without {error}: was it written by flstudy?") from error


def _trial(entry: Mapping[str, Any]) -> Trial:
    objective = entry.get("objective")
    return Trial(
        trial=str(entry["trial"]),
        overrides=dict(entry.get("overrides") or {}),
        algorithm=str(entry["algorithm"]),
        status=str(entry["status"]),
        rounds=int(entry.get("rounds") or 0),
        objective=math.nan if objective is None else float(objective),
        # JSON has no NaN: a metric that became one is null there
        metrics={k: math.nan if v is None else float(v) for k, v in (entry.get("metrics") or {}).items()},
        values=tuple(math.nan if v is None else float(v) for v in entry.get("values") or ()),
        feasible=bool(entry.get("feasible", True)),
        stage=str(entry.get("stage", "search")),
        of=None if entry.get("of") is None else str(entry["of"]),
        source=entry.get("source"),
        started=entry.get("started"),
        ended_at=entry.get("ended_at"),
        attempts=int(entry.get("attempts") or 1),
        run_id=entry.get("run_id"),
        error=entry.get("error"),
    )


def _read(path: Path, parse: Any, kind: type[T]) -> T:
    """The parsed file; an empty one of its kind where it does not exist (yet)."""
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kind()
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{path} must hold a {kind.__name__}, got {type(found).__name__}")
    return found


def _no_study(folder: Path) -> str:
    home = folder.parent
    names = sorted(entry.parent.name for entry in home.glob("*/study.yaml"))
    sentence = f"no study {folder.name!r} in {home}"
    if not names:
        return f"{sentence}, which holds no study yet: start one with 'flstudy tune CONFIG'"
    near = get_close_matches(folder.name, names, 1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return f"{sentence}: {guess}it holds {shown}"
