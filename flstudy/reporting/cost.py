"""What a study cost: trials, rounds, hours, traffic and energy by algorithm, and what went wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flstudy.reporting.load import StudyResults, Trial
from flstudy.study.records import curve, read_records

ENERGY = "energy/joules"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one algorithm; NaN where nothing tells."""

    algorithm: str
    trials: int  # of the search
    confirmations: int
    rounds: int  # federated rounds of all trials
    hours: float  # of all trials, added up: of workers, not of the clock on the wall
    bits: float  # down and up, all trials and seeds
    joules: float  # all trials and seeds
    run_bits: float  # of one seed of its best trial


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Of one trial; NaN where nothing tells."""

    hours: float
    bits: float  # mean over seeds
    joules: float  # mean over seeds


def costs(results: StudyResults, chosen: Sequence[Trial] = ()) -> tuple[Cost, ...]:
    """By algorithm, in order of appearance. `chosen`: the trials that speak for their algorithms."""
    spent = {trial.trial: spent_by(results, trial) for trial in results.trials}
    found = []
    for algorithm in dict.fromkeys(trial.algorithm for trial in results.trials):
        trials = [trial for trial in results.trials if trial.algorithm == algorithm]
        seeds = {trial.trial: len(results.seeds_of(trial)) for trial in trials}
        best = next((trial for trial in chosen if trial.algorithm == algorithm), None)
        found.append(
            Cost(
                algorithm=algorithm,
                trials=sum(trial.stage != "confirm" for trial in trials),
                confirmations=sum(trial.stage == "confirm" for trial in trials),
                rounds=sum(trial.rounds for trial in trials),
                hours=_total([spent[trial.trial].hours for trial in trials]),
                bits=_total([spent[trial.trial].bits * seeds[trial.trial] for trial in trials]),
                joules=_total([spent[trial.trial].joules * seeds[trial.trial] for trial in trials]),
                run_bits=math.nan if best is None else spent[best.trial].bits,
            )
        )
    return tuple(found)


def spent_by(results: StudyResults, trial: Trial) -> Spent:
    """A finished trial says its totals itself; of another one the rounds in its records are added up."""
    hours = trial.metrics.get("time/total_s", math.nan) / 3600
    bits = trial.metrics.get("traffic/bits", math.nan)
    joules = trial.metrics.get(ENERGY, math.nan)
    if math.isnan(hours) or math.isnan(bits):
        sums = _sums(results, trial, ("time/round_s", "time/evaluation_s", "traffic/down_bytes", "traffic/up_bytes"))
        if math.isnan(bits):
            bits = 8 * (sums["traffic/down_bytes"] + sums["traffic/up_bytes"])
        if math.isnan(hours) and trial.started is not None and trial.ended_at is not None and trial.attempts <= 1:
            hours = (trial.ended_at - trial.started) / 3600  # with what its start and its writing took
        if math.isnan(hours):
            hours = (sums["time/round_s"] + _or_zero(sums["time/evaluation_s"])) / 3600
    return Spent(hours=hours, bits=bits, joules=joules)


def failures(results: StudyResults) -> tuple[Trial, ...]:
    """Trials that failed, and those that took more than one start."""
    return tuple(trial for trial in results.trials if trial.status == "failed" or trial.attempts > 1)


def _sums(results: StudyResults, trial: Trial, metrics: Sequence[str]) -> dict[str, float]:
    """Each metric added up over the rounds, mean over seeds; NaN for one that was not recorded. The records are not
    kept: those of all trials of a large study are large."""
    try:
        table = read_records(results.folder / "records" / f"{trial.trial}.parquet")
    except (ValueError, OSError):
        return dict.fromkeys(metrics, math.nan)
    found = {}
    for metric in metrics:
        try:
            _, values = curve(table, metric)
            found[metric] = float(values.sum(1).mean())
        except ValueError:
            found[metric] = math.nan
    return found


def _total(values: Sequence[float]) -> float:
    """The sum of what is known; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
