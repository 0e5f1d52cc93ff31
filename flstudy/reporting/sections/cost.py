"""Cost of a study: trials, rounds, hours, traffic and energy by algorithm; and its failed trials."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flstudy.reporting.ranking import TUNING_SPENDS, Findings, failure_reason
from flstudy.reporting.section import Content, ReportSection, present
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study import Status, StudyResults, Trial
from flstudy.study.records import curve, metric_names, read_records

SUMMED = ("time/round_s", "time/evaluation_s", "traffic/down_bytes", "traffic/up_bytes")
RESTARTED = "its worker was lost; it went on from its snapshot"


@dataclass(frozen=True, kw_only=True)
class AlgorithmCost:
    """Cost of one algorithm's trials; NaN where it is not recorded."""

    algorithm: str
    trials: int  # of the search
    confirmations: int
    rounds: int  # federated rounds of all trials
    hours: float  # of all trials, added up: of workers, not wall-clock time
    bits: float  # down and up, all trials and seeds
    joules: float  # all trials and seeds
    run_bits: float  # of one seed of its best trial


class TrialCost(NamedTuple):
    """Cost of one trial; NaN where it is not recorded."""

    hours: float
    bits: float  # mean over seeds
    joules: float  # mean over seeds


class CostSection(ReportSection):
    """Section with the cost of each algorithm."""

    order = 90

    def of_study(self, findings: Findings) -> Content:
        costs = findings.once(algorithm_costs)
        note = "Hours of all trials added up, pruned and failed ones and confirmations included; several run at once."
        return Content(
            name="Cost",
            title="What did it cost?" if costs else "",
            tables=[cost_cells(costs)] if costs else [],
            notes=[note],
            remarks=budget_notes(findings),
            values={"cost": [dataclasses.asdict(cost) for cost in costs]},
        )


class FailureSection(ReportSection):
    """Section with trials that failed, and with those that took more than one start."""

    order = 100

    def of_study(self, findings: Findings) -> Content:
        trials = failed_trials(findings.results)
        values = [
            {
                "trial": trial.number,
                "algorithm": trial.algorithm,
                "attempts": trial.attempts,
                "error": failure_reason(trial) if trial.status is Status.FAILED else None,
            }
            for trial in trials
        ]
        title = "What went wrong?" if trials else ""
        tables = present(failure_cells(trials))
        return Content(name="Failures", title=title, tables=tables, values={"failures": values})


def algorithm_costs(findings: Findings) -> tuple[AlgorithmCost, ...]:
    """Return the costs by algorithm, in the order of the ranking."""
    results = findings.results
    spent = {trial.number: trial_cost(results, trial) for trial in results.trials}
    speakers = {row.algorithm: row.reported_trial for row in findings.ranking.rows}
    costs = []
    for algorithm in findings.looks:
        trials = [trial for trial in results.trials if trial.algorithm == algorithm]
        per_trial = [(spent[trial.number], len(results.seeds_of(trial))) for trial in trials]
        costs.append(
            AlgorithmCost(
                algorithm=algorithm,
                trials=sum(not trial.is_confirmation for trial in trials),
                confirmations=sum(trial.is_confirmation for trial in trials),
                rounds=sum(trial.rounds for trial in trials),
                hours=_known_total([cost.hours for cost, _ in per_trial]),
                bits=_known_total([cost.bits * seeds for cost, seeds in per_trial]),
                joules=_known_total([cost.joules * seeds for cost, seeds in per_trial]),
                run_bits=spent[speakers[algorithm].number].bits if algorithm in speakers else math.nan,
            )
        )
    return tuple(costs)


def trial_cost(results: StudyResults, trial: Trial) -> TrialCost:
    """Return the cost of a trial: a finished trial's recorded totals; for any other the sum over the rounds in its
    records."""
    hours = trial.metrics.get("time/total_s", math.nan) / 3600
    bits = trial.metrics.get("traffic/bits", math.nan)
    if math.isnan(hours) or math.isnan(bits):
        training, evaluation, down, up = _sums_over_rounds(results, trial)
        bits = 8 * (down + up) if math.isnan(bits) else bits
        if math.isnan(hours) and trial.started is not None and trial.ended is not None and trial.attempts <= 1:
            hours = (trial.ended - trial.started) / 3600  # including its start and the writing of its records
        elif math.isnan(hours):
            hours = (training + (0.0 if math.isnan(evaluation) else evaluation)) / 3600
    return TrialCost(hours, bits, trial.metrics.get("energy/joules", math.nan))


def _sums_over_rounds(results: StudyResults, trial: Trial) -> list[float]:
    """Return the sums of times and traffic over rounds, mean over seeds; NaN for a metric that was not recorded. The
    records are not kept in memory, since those of all trials of a large study are large."""
    sums = dict.fromkeys(SUMMED, math.nan)
    try:
        table = read_records(results.folder.records(trial.number))
        for metric in set(SUMMED) & set(metric_names(table)):
            sums[metric] = float(curve(table, metric)[1].sum(1).mean())
    except (ValueError, OSError):  # without records
        pass
    return list(sums.values())


def _known_total(values: Sequence[float]) -> float:
    """Return the sum of the values that are not NaN; NaN where all are."""
    return sum([value for value in values if not math.isnan(value)] or [math.nan])


def budget_notes(findings: Findings) -> list[str]:
    """Return the sentences on searches of different size, and on the privacy that tuning spends, where they apply."""
    notes = []
    trials = {cost.algorithm: cost.trials for cost in findings.once(algorithm_costs)}
    if trials and max(trials.values()) > min(trials.values()) + 1:  # equal shares differ by up to one trial
        counts = ", ".join(f"{name} {count}" for name, count in sorted(trials.items(), key=lambda item: -item[1]))
        notes.append(
            f"The algorithms had different numbers of trials ({counts}): more trials find better ones by luck alone."
        )
    if any("privacy/epsilon" in trial.metrics for trial in findings.results.trials):
        notes.append(TUNING_SPENDS)
    return notes


def cost_cells(costs: Sequence[AlgorithmCost]) -> Cells:
    """Return the table of the cost of each algorithm; energy only where it was measured."""
    columns = {
        "Algorithm": [cost.algorithm for cost in costs],
        "Trials": [str(cost.trials) for cost in costs],
        "Confirmed": [str(cost.confirmations) for cost in costs],
        "Rounds": [str(cost.rounds) for cost in costs],
        "Hours": [format_hours(cost.hours) for cost in costs],
        "Sent by\nall its runs": [format_amount(cost.bits, "bit") for cost in costs],
        "Sent by one\nseed of its best": [format_amount(cost.run_bits, "bit") for cost in costs],
    }
    if any(np.isfinite(cost.joules) for cost in costs):
        columns["Energy"] = [format_amount(cost.joules, "J") for cost in costs]
    return Cells.from_columns("What was spent on each algorithm", columns, label="cost")


def budget_cells(costs: Sequence[AlgorithmCost]) -> Cells:
    """Return the table of trials, rounds and hours of each algorithm, which shows whether they were treated alike."""
    columns = {
        "Algorithm": [cost.algorithm for cost in costs],
        "Trials": [str(cost.trials) for cost in costs],
        "Rounds": [str(cost.rounds) for cost in costs],
        "Hours": [format_hours(cost.hours) for cost in costs],
    }
    return Cells.from_columns("What each algorithm was given", columns)


def failed_trials(results: StudyResults) -> list[Trial]:
    """Return the trials that failed, and those that took more than one start."""
    return [trial for trial in results.trials if trial.status is Status.FAILED or trial.attempts > 1]


def failure_cells(trials: list[Trial]) -> Cells | None:
    """Return the table of failed and restarted trials with their reasons; None for no trials."""
    columns = {
        "Trial": [str(trial.number) for trial in trials],
        "Algorithm": [trial.algorithm for trial in trials],
        "Status": [str(trial.status) for trial in trials],
        "Starts": [str(trial.attempts) for trial in trials],
        "Reason": [failure_reason(trial) if trial.status is Status.FAILED else RESTARTED for trial in trials],
    }
    return (
        Cells.from_columns("Trials that failed or had to start again", columns, (0, 1, 2, 4), names=2)
        if trials
        else None
    )


def format_hours(value: float) -> str:
    """Format hours with two decimals, or two significant digits below 0.1."""
    return NOTHING if np.isnan(value) else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def format_amount(value: float, unit: str) -> str:
    """Format a number with its unit and an SI prefix from k to T."""
    if not np.isfinite(value):
        return NOTHING
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
