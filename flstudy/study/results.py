"""A study's folder as a value: its config, trials, events and the curves of its trials. Imports no torch."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flstudy.config import Objective, StudySection
from flstudy.config.composition import EARLIER, trial_config, whole_study
from flstudy.config.credentials import censored
from flstudy.config.reading import parsed
from flstudy.config.registry import SECTIONS
from flstudy.config.values import anchored, classes_in
from flstudy.metrics.drift import Recovery
from flstudy.remote import is_uri
from flstudy.study.best import BestTrial, best_trials, eligible, value_of
from flstudy.study.damage import DamageError, parse_json, read_bounded, reason_of
from flstudy.study.folder import EARLIER_FORMAT, StudyFolder
from flstudy.study.records import (
    MOST_METRICS,
    MOST_ROWS,
    curve,
    read_records,
    records_damage,
    seeds_of,
    standard_errors,
)
from flstudy.study.repair import no_curve_message
from flstudy.study.trial import Trial
from flstudy.user_error import UserError

Content = TypeVar("Content")


class WorldEvent(NamedTuple):
    """An event of the world at a round, the first that feels it."""

    round: int
    label: str

    @property
    def session(self) -> bool:
        """True if a session begins, rather than a drift."""
        return self.label.startswith("session ")


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """Results of a study that has begun.

    Attributes:
        folder: of its files.
        config: its plain values, nested.
        trials: all of them, confirmations included.
        events: of the world, rounds ascending.
        damage: a sentence for each file, or part of one, that is damaged and left out.
    """

    folder: StudyFolder
    config: Mapping[str, Any]
    trials: tuple[Trial, ...]
    events: tuple[WorldEvent, ...]
    damage: tuple[str, ...] = ()
    _tables: dict[int, pa.Table] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rounds(self) -> int:
        """Rounds of a whole trial."""
        return int(self.config["rounds"])

    @property
    def seeds(self) -> list[int]:
        """Seeds of the search, one per replica."""
        seeds = self.config.get("seeds", [])
        return [int(seed) for seed in seeds] if isinstance(seeds, list) else [int(seeds)]

    @property
    def recovery(self) -> Recovery:
        """Criterion by which the study's trials have recovered from a drift."""
        return Recovery(**(self.config.get("recovery") or {}))

    @property
    def section(self) -> Mapping[str, Any]:
        """The config's study section."""
        return self.config.get("study") or {}

    @property
    def objective(self) -> Objective:
        """The objective of the study's search."""
        return Objective(**(self.section.get("objective") or {}))

    @property
    def objectives(self) -> list[Objective]:
        """All objectives, in the order of a trial's values."""
        return [self.objective, *(Objective(**goal) for goal in self.section.get("objectives") or [])]

    @property
    def goals(self) -> StudySection:
        """Study section that has only objectives and constraints."""
        first, *further = self.objectives
        return StudySection(
            objective=first, objectives=tuple(further), constraints=self.section.get("constraints") or {}
        )

    @property
    def selection_metric(self) -> str:
        """The metric by which trials are chosen."""
        return self.objective.selection_metric

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search."""
        return tuple(trial for trial in self.trials if not trial.is_confirmation)

    @property
    def confirmations(self) -> tuple[Trial, ...]:
        """Trials of the search that were trained again on seeds that it had not seen."""
        return tuple(trial for trial in self.trials if trial.is_confirmation)

    @cached_property
    def best(self) -> tuple[BestTrial, ...]:
        """The best trial of each algorithm that has one, best first."""
        return best_trials(self.trials, self.objective, self.rounds)

    def eligible(self, trial: Trial) -> bool:
        """Return whether a trial can be the best one."""
        return eligible(trial, self.objective, self.rounds)

    def value_of(self, trial: Trial) -> float:
        """Return a trial's last value of the selection metric, mean over replicas; NaN where it has none."""
        return value_of(trial, self.objective)

    def seeds_of(self, trial: Trial) -> list[int]:
        """Return the seeds of a trial: a confirmation has its own."""
        seeds = trial.overrides.get("seeds")
        return [int(seed) for seed in seeds] if isinstance(seeds, list) else self.seeds

    def counts(self) -> Counter[str]:
        """Return the trials of the search by status."""
        return Counter(str(trial.status) for trial in self.searched)

    def find(self, name: str) -> Trial:
        """Return a trial by its number, or ``best``.

        Raises:
            UserError: where the study has none of that name.
        """
        if name == "best" and self.best:
            return self.best[0].trial
        for trial in self.trials:
            if str(trial.number) == name:
                return trial
        span = f"{self.trials[0].number} to {self.trials[-1].number}, or best" if self.trials else "none yet"
        raise UserError(f"study {self.name} has no trial {name!r}: it has {span}")

    def trial_config(self, trial: Trial) -> dict[str, Any]:
        """Return the complete values that a trial trained with, for `flstudy run`."""
        state, values = self.folder.state(), trial_config(self.config, trial.overrides)
        if any("." in path for _, path in classes_in(values)):
            values["modules"] = values.get("modules") or state.get("modules")
        started_in: dict[str, Any] = anchored(values, Path(state.get("cwd", "")))
        return started_in

    def records(self, trial: Trial) -> pa.Table:
        """Return every metric of every round and replica of a trial; UserError where it has no records."""
        if trial.number not in self._tables:
            most = min(MOST_ROWS, self.rounds * max(1, len(self.seeds_of(trial))) * MOST_METRICS)
            self._tables[trial.number] = read_records(self.folder.records(trial.number), most)
        return self._tables[trial.number]

    def damage_of(self, trial: Trial) -> str | None:
        """Return a sentence about a trial whose records are damaged; None for others."""
        damage = records_damage(self.folder.records(trial.number))
        return None if damage is None else no_curve_message(trial, damage)

    def curve(self, trial: Trial, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the rounds [T] and values [S, T] of one metric of a trial."""
        return curve(self.records(trial), metric)

    def standard_errors(self, trial: Trial, metric: str) -> NDArray[np.float64] | None:
        """Return the standard errors [S, T] of one metric of a trial; None where it was measured on all devices."""
        return standard_errors(self.records(trial), metric)

    def last(self, trial: Trial, metric: str) -> dict[int, float]:
        """Return the last recorded value of a metric by seed."""
        _, values = self.curve(trial, metric)
        return dict(zip(seeds_of(self.records(trial)), values[:, -1].tolist(), strict=True))


def load_study(study: str | os.PathLike[str] | StudyFolder) -> StudyResults:
    """Load a study from its folder; damaged parts that it can do without are left out.

    Raises:
        UserError: in one sentence, where there is no such study; DamageError where it cannot be read.
    """
    folder = study if isinstance(study, StudyFolder) else StudyFolder(study)
    if not folder.config.is_file():
        if folder.state():
            raise DamageError(f"{folder.config} is missing: copy it from the artifacts of the study's run in MLflow")
        raise UserError(_no_study(folder.path))
    config = _read(folder.config, partial(parsed, path="it"), dict)
    if folder.state().get("format") == EARLIER_FORMAT:
        with contextlib.suppress(ValueError):  # of a class that there is not any more: the rest can be read
            config = whole_study(config, rule=EARLIER)
    if not isinstance(config.get("rounds"), int):
        raise DamageError(f"{folder.config} must have a whole number of rounds, got {config.get('rounds')!r}")
    if isinstance(config.get("store"), str):
        config["store"] = censored(config["store"])  # earlier versions kept passwords
    damage = [folder.state()["damage"]] if "damage" in folder.state() else []
    try:
        events = [WorldEvent(int(e["round"]), str(e["label"])) for e in _read(folder.events, parse_json, list)]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = error if isinstance(error, DamageError) else f"{folder.events} is damaged ({reason_of(error)})"
        damage.append(f"{reason}: drifts and sessions are left out")
        events = []
    trials = tuple(folder.read_trials(damage))
    events.sort(key=lambda event: event.round)
    results = StudyResults(folder=folder, config=config, trials=trials, events=tuple(events), damage=tuple(damage))
    try:
        _refuse_other_kinds(config)
        int(results.section.get("trials") or 0)
        _ = results.seeds, results.recovery
        if not all(isinstance(objective.metric, str) for objective in results.objectives):
            raise TypeError("an objective must name a metric")
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DamageError(f"{folder.config} is damaged: it is no study's config ({reason_of(error)})") from error
    return results


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    """Raise TypeError for a section that holds no keys, and a class whose path is no text or whose arguments are no
    keys: what reads studies takes that for granted."""
    sections = {name: config.get(name) for name in SECTIONS if name}
    if isinstance(config.get("study"), Mapping):
        sections |= {f"study.{name}": config["study"].get(name) for name in ("search", "arms", "presets")}
    for name, section in sections.items():
        if not isinstance(section or {}, Mapping):
            raise TypeError(f"{name} must hold keys and values, not {type(section).__name__}")
    parts: list[Any] = [config]
    for part in parts:
        if isinstance(part, Mapping):
            if not isinstance(part.get("class_path", ""), str) or not isinstance(part.get("init_args") or {}, Mapping):
                raise TypeError("a class must have a path, and its arguments by name")
            parts += part.values()
        elif isinstance(part, list):
            parts += part


def list_studies(home: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return an entry (`study_entry`) for each study in a folder or below a URI, the latest study last.

    A study with damaged files has the reasons as ``damage``. Its state is ``damaged`` if damage keeps it from being
    read, and ``unreadable`` if anything else does, such as another format.
    """
    entries: list[dict[str, Any]] = []
    paths = [folder.path for folder in StudyFolder.remote_studies(str(home))] if is_uri(home) else Path(home).glob("*")
    folders = (path for path in paths if StudyFolder(path).is_study)
    for path in sorted(folders, key=_time_written):
        try:
            entries.append(study_entry(load_study(path)))
        except Exception as error:  # whatever a folder holds: the other studies are listed
            state = "damaged" if isinstance(error, DamageError) else "unreadable"
            entries.append({"study": path.name, "state": state, "damage": [reason_of(error, 200)]})
    return entries


def _time_written(path: Path) -> float:
    """Return the time at which a study's config was written."""
    file = StudyFolder(path).config
    return (file if file.exists() else path).stat().st_mtime


def study_entry(results: StudyResults) -> dict[str, Any]:
    """Return the entry of a study in `list_studies`."""
    state, best = results.folder.state(), next(iter(results.best), None)
    # None where the budget alone decides; an earlier flstudy's state does not tell the points of a grid.
    wanted = None if state.get("state") == "finished" else state.get("trials", results.section.get("trials"))
    return {
        "study": results.name,
        "state": state.get("state", "unknown"),
        "started": state.get("started"),
        "trials": len(results.searched) if wanted is None else int(wanted),
        "counts": dict(results.counts()),
        "metric": results.selection_metric,
        "best": best and {"trial": best.trial.number, "algorithm": best.trial.algorithm, "value": best.ranking_value},
        "damage": list(results.damage),
    }


def _read(path: Path, parse: Callable[[str], Any], kind: type[Content]) -> Content:
    """Return the parsed file; an empty value of its kind where it does not exist (yet)."""
    try:
        content = parse(read_bounded(path).decode())
        if not isinstance(content, kind):
            raise TypeError(f"it holds a {type(content).__name__}, not a {kind.__name__}")
    except FileNotFoundError:
        return kind()
    except (ValueError, OSError, TypeError) as error:
        raise DamageError(f"{path} is damaged ({reason_of(error)})") from error
    return content


def _no_study(folder: Path) -> str:
    names = sorted(entry.parent.name for entry in folder.parent.glob("*/study.yaml"))
    sentence = f"no study {folder.name!r} in {folder.parent}"
    if not names:
        return f"{sentence}, which holds no study yet: start one with 'flstudy tune CONFIG'"
    near = get_close_matches(folder.name, names, 1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{sentence}: {guess}it holds {', '.join(names[:10])}" + (f" and {len(names) - 10} more" * (len(names) > 10))
