"""Measured values of a page, kept beside it as NAME.csv: a line for each trial and seed.

row         its name in the page's tables: an arm, or the values of a trial; of sessions "ALGORITHM, START"
shown       the columns in which the trial speaks for its row, with a space between: ``preset``, ``tuned``, ``trial``
study       stage or variant of the world
trial       number in that study
confirms    number of the trial that it trains again on new seeds, if it does
settings    what the search chose beside what names the row, as JSON
rounds      rounds that it did
objective   last value of the metric that chooses, mean over the seeds
seed
MEASURE     last value of each measure of the world, or accuracy in the first rounds of a session; shares as fractions
MEASURE_spread  its standard deviation over devices, where the run has it
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flstudy.config import ConfigError
from flstudy.reporting.sections.comparison import last_values
from flstudy.reproduction.plan import MEASURES, OF_SESSIONS, World
from flstudy.reproduction.sessions import SPANS, accuracy_in, sessions_by_number, shown_sessions
from flstudy.reproduction.values import Speaker, preset_speakers, row_name, speakers, variant_speakers
from flstudy.study import StudyResults, Trial

FIXED = ("row", "shown", "study", "trial", "confirms", "settings", "rounds", "objective", "seed")
SPREAD = "_spread"


class MeasuredTrial(NamedTuple):
    """Trial of a page: its values by seed."""

    row: str
    shown: tuple[str, ...]
    study: str
    number: int
    confirms: int | None
    settings: Mapping[str, object]
    rounds: int
    objective: float
    by_seed: Mapping[int, Mapping[str, float]]  # measure -> value; without those that it has not

    def values(self, measure: str) -> dict[int, float]:
        """Return a measure by seed; empty where the trial has it for none."""
        return {seed: values[measure] for seed, values in self.by_seed.items() if measure in values}


def measured_trials(world: World, studies: Mapping[str, StudyResults]) -> list[MeasuredTrial]:
    """Return the trials of a world's studies that have a value of the metric that chooses, by study and number."""
    shown = _shown(world, studies)
    trials = []
    for study, results in studies.items():
        for trial in sorted(results.trials, key=lambda trial: trial.number):
            objective = results.value_of(trial)
            if math.isfinite(objective):
                columns = tuple(column for column, chosen in shown.items() if (study, trial.number) in chosen)
                named = {"algorithm", "seeds", *world.arms}
                chosen = {key: value for key, value in trial.overrides.items() if key not in named}
                by_seed = _by_seed(measures_of(world, results), results, trial)
                row = row_of(world, study, trial)
                origin = (study, trial.number, trial.confirms)
                trials.append(MeasuredTrial(row, columns, *origin, chosen, trial.rounds, objective, by_seed))
    return trials


def measures_of(world: World, results: StudyResults) -> tuple[str, ...]:
    """Return the measures of a world's trials: of sessions the accuracy in their first rounds and in the last one."""
    if world.kind != "sessions":
        return world.measures
    return tuple(f"{span}_of_{session.number}" for session in shown_sessions(world, results) for span in SPANS)


def row_of(world: World, study: str, trial: Trial) -> str:
    """Return the name of a trial's row in the tables of a world."""
    if world.kind == "ablation":
        return row_name(trial.overrides)
    if world.kind == "sweep":
        return ", ".join(str(trial.overrides.get(key)) for key in world.arms)
    if world.kind == "sessions":
        return f"{trial.algorithm}, {study}"
    if world.kind == "crossed" and study != world.compared:
        return f"{trial.algorithm} ({study})"
    return study if world.kind == "variants" else trial.algorithm


def _shown(world: World, studies: Mapping[str, StudyResults]) -> dict[str, set[tuple[str, int]]]:
    """Return the trials, as study and number, that speak for their rows, by the column in which they do."""
    if world.kind == "ablation":
        return {"trial": {(name, t.number) for name, r in studies.items() for t in r.searched if r.eligible(t)}}
    if world.kind == "variants":
        return {"tuned": {(study, speaker.trial.number) for study, speaker in variant_speakers(studies).items()}}
    if world.kind == "sweep":
        results = studies["tuned"]
        best: dict[str, Trial] = {}
        for trial in filter(results.eligible, results.searched):
            row, sign = row_of(world, "tuned", trial), 1 if results.objective.higher else -1
            if row not in best or sign * results.value_of(trial) > sign * results.value_of(best[row]):
                best[row] = trial
        return {"tuned": {("tuned", trial.number) for trial in best.values()}}
    if world.kind == "comparison":
        return {stage: _numbers({stage: speakers(results)}) for stage, results in studies.items()}
    return {
        "preset": _numbers({study: preset_speakers(results) for study, results in studies.items()}),
        "tuned": _numbers({study: speakers(results) for study, results in studies.items()}),
    }


def _numbers(speaking: Mapping[str, Mapping[str, Speaker]]) -> set[tuple[str, int]]:
    return {(study, speaker.trial.number) for study, of_study in speaking.items() for speaker in of_study.values()}


def _by_seed(measures: Iterable[str], results: StudyResults, trial: Trial) -> dict[int, dict[str, float]]:
    by_seed: dict[int, dict[str, float]] = {seed: {} for seed in results.seeds_of(trial)}
    for measure in measures:
        if OF_SESSIONS.fullmatch(measure):
            values = {measure: _of_session(measure, results, trial)}
        else:
            metrics = {measure: MEASURES[measure], measure + SPREAD: MEASURES[measure] + SPREAD}
            values = {key: last_values(results, trial, metric) for key, metric in metrics.items()}
        for key, of_seeds in values.items():
            for seed, value in of_seeds.items():
                by_seed[seed][key] = value
    return by_seed


def _of_session(measure: str, results: StudyResults, trial: Trial) -> dict[int, float]:
    span, number = measure.split("_of_")
    values = accuracy_in(span, sessions_by_number(results)[int(number)], *results.curve(trial, "test/accuracy"))
    return dict(zip(results.seeds_of(trial), values.tolist(), strict=True))


def as_csv(trials: Sequence[MeasuredTrial], measures: Sequence[str]) -> str:
    """Return the text of the file."""
    columns = [key for measure in measures for key in (measure, measure + SPREAD)]
    have = {key for trial in trials for values in trial.by_seed.values() for key in values}
    columns = [key for key in columns if key in have]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*FIXED, *columns])
    for trial in trials:
        settings = json.dumps(trial.settings, ensure_ascii=False, sort_keys=True)
        confirms = "" if trial.confirms is None else trial.confirms
        fixed = (trial.row, " ".join(trial.shown), trial.study, trial.number, confirms, settings, trial.rounds)
        for seed, values in trial.by_seed.items():
            measured = [repr(values[key]) if key in values else "" for key in columns]
            writer.writerow([*fixed, repr(trial.objective), seed, *measured])
    return text.getvalue()


def read_measured(path: Path) -> list[MeasuredTrial]:
    """Read the file of a page.

    Raises:
        ConfigError: in one sentence, where there is none or a line is wrong.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is missing: flstudy reproduce writes it with the page")
    trials: dict[tuple[str, int], MeasuredTrial] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line, cells in enumerate(csv.DictReader(file), start=2):
            try:
                key = cells["study"], int(cells["trial"])
                values = {name: float(text) for name, text in cells.items() if name not in FIXED and text}
                if key not in trials:
                    confirms = int(cells["confirms"]) if cells["confirms"] else None
                    settings, shown = json.loads(cells["settings"]), tuple(cells["shown"].split())
                    done, objective = int(cells["rounds"]), float(cells["objective"])
                    trials[key] = MeasuredTrial(cells["row"], shown, *key, confirms, settings, done, objective, {})
                trials[key].by_seed[int(cells["seed"])] = values  # type: ignore[index]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, line {line}: {error}; columns are those of its first line") from error
    return list(trials.values())
