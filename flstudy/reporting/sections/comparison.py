"""Comparison of a study's algorithms, pair by pair.

All best trials ran on the same seeds, so that two algorithms met the same partitions, initial models and cohorts
(common random numbers): their difference is taken seed by seed, with Student's paired t test and its 95 % interval.
Among many pairs some look different by chance alone: the p values are adjusted by Holm (1979), and only an adjusted p
below 0.05 is called a difference.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from flstudy.metrics.registry import is_fraction
from flstudy.reporting.ranking import Findings, Floats
from flstudy.reporting.section import Content, ReportSection, present
from flstudy.reporting.tables import NOTHING, Cells, finite_mean, format_difference
from flstudy.study import StudyResults, Trial

LEVEL = 0.05
LEAST_SEEDS = 3
PAIRS_SHOWN = 10  # at most, in a terminal
Verdict = Literal["different", "not shown", "cannot tell"]
VERDICTS: Mapping[Verdict, str] = {
    "different": "different: {} is better",
    "not shown": "no difference shown",
    "cannot tell": "cannot tell: too few seeds",
}


class Pair(NamedTuple):
    """Comparison of two algorithms on the seeds that both have; NaN where there are too few of them."""

    first: str  # the algorithm with the better mean
    second: str
    seeds: int
    difference: float  # mean of first - second
    low: float  # 95 % interval of it
    high: float
    p: float
    adjusted: float  # by Holm, over all pairs of the study
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """Comparison of the best trials of one study, pair by pair."""

    metric: str
    fresh: bool  # whether all trials were trained again on seeds that the search did not use
    values: Mapping[str, Mapping[int, float]]  # algorithm -> seed -> last value; best mean first
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    def mean(self, algorithm: str) -> float:
        """Return the mean over the seeds with a finite value; NaN where there is none."""
        return finite_mean(list(self.values.get(algorithm, {}).values()))

    def to_json(self) -> dict[str, object]:
        """Return the values for ``--json``."""
        pairs = [pair._asdict() for pair in self.pairs]
        return {"metric": self.metric, "values": self.values, "pairs": pairs, "notes": self.notes}


class ComparisonSection(ReportSection):
    """Section with tests of the differences between the best trials."""

    order = 30

    def of_study(self, findings: Findings) -> Content:
        comparison = findings.once(compare_study)
        cells = comparison_cells(comparison)
        return Content(
            name="Comparison",
            title="Are the differences more than chance?" if cells else "",
            lead="All algorithms met the same worlds: seed by seed the same devices, data and initial models. So they "
            "are compared seed by seed, with a paired t test.",
            tables=present(cells),
            notes=[
                f"Different means that p, adjusted by Holm for the number of pairs, is below {LEVEL:g}. The intervals "
                "are not adjusted, each holds for its own pair alone.",
                "No difference shown is not the same as equal: few seeds cannot show a small difference.",
                *comparison.notes,
            ],
            brief=present(comparison_cells(comparison, PAIRS_SHOWN)),
            remarks=comparison.notes,
            values={"comparison": comparison.to_json()},
        )


def compare_study(findings: Findings, metric: str | None = None) -> StudyComparison:
    """Compare the best trials of a study, on its objective's test counterpart where all recorded it, since the
    validation score chose them."""
    results, rows = findings.results, findings.ranking.rows
    wanted = metric or comparison_metric([findings])
    values, notes = {}, []
    for row in rows:
        last = last_values(results, row.reported_trial, wanted)
        if last:
            values[row.algorithm] = last
        else:
            trial = row.reported_trial.number
            notes.append(f"{row.algorithm}: trial {trial} has no {wanted} in its records, so it is not compared.")
    pairs = compare(values, higher=results.objective.higher)
    if any(pair.verdict == "cannot tell" for pair in pairs):
        notes.append(
            f"With fewer than {LEAST_SEEDS} seeds in common it cannot be told whether two algorithms differ: "
            "give more seeds, or study.confirm.seeds."
        )
    fresh = all(row.confirmation is not None for row in rows)
    if not fresh and len(values) > 1:
        notes.append(
            "Compared on the seeds of the search, which chose these trials: an algorithm with more trials had more "
            "chances to look good. Confirm on new seeds (study.confirm.seeds) before you call it better."
        )
    again = Counter(trial.algorithm for trial in results.confirmations if results.eligible(trial))
    confirmed = {name: again[name] for name in values if again[name]}
    if fresh and len(set(confirmed.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in confirmed.items())
        notes.append(
            f"Different numbers of trials were confirmed ({counts}): the best of several on the new seeds is a little "
            "too good itself."
        )
    ordered = {name: values[name] for name in by_mean(values, higher=results.objective.higher)}
    return StudyComparison(metric=wanted, fresh=fresh, values=ordered, pairs=pairs, notes=tuple(notes))


def comparison_metric(studies: Sequence[Findings]) -> str:
    """Test counterpart of the selection metric where every best trial of every study has it, else that metric."""
    selected = studies[0].ranking.selection_metric
    counterpart = "test/" + selected.removeprefix("valid/")
    speakers = [(study.results, row.reported_trial) for study in studies for row in study.ranking.rows]
    either = [[bool(last_values(*speaker, metric)) for metric in (counterpart, selected)] for speaker in speakers]
    has_test = [tested for tested, validated in either if tested or validated]  # a trial without records does not count
    return counterpart if selected.startswith("valid/") and any(has_test) and all(has_test) else selected


def last_values(results: StudyResults, trial: Trial, metric: str) -> dict[int, float]:
    """Return the last value of a metric by seed; empty where the records have none."""
    try:
        return results.last(trial, metric)
    except (ValueError, OSError):
        return {}


def by_mean(values: Mapping[str, Mapping[int, float]], *, higher: bool) -> list[str]:
    """Return the algorithms by the mean over their seeds, the best first."""
    means = {name: finite_mean(list(by_seed.values())) for name, by_seed in values.items()}
    return sorted(means, key=lambda name: -means[name] if higher else means[name])


def compare(values: Mapping[str, Mapping[int, float]], *, higher: bool) -> tuple[Pair, ...]:
    """Compare all pairs of algorithms, the better mean first. `values`: algorithm -> seed -> value; a seed counts for a
    pair where both have a finite value."""
    names = by_mean(values, higher=higher)
    tests = [
        (first, second, *paired(values[first], values[second]))
        for place, first in enumerate(names)
        for second in names[place + 1 :]
    ]
    adjusted = holm(np.array([p for *_, p in tests]))
    judged = ["cannot tell" if np.isnan(level) else "different" if level < LEVEL else "not shown" for level in adjusted]
    return tuple(
        Pair(*test, float(level), verdict)  # type: ignore[arg-type]
        for test, level, verdict in zip(tests, adjusted, judged, strict=True)
    )


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[int, float, float, float, float]:
    """Return Student's paired t test: (seeds in common, mean difference, low, high, p)."""
    from scipy import stats

    shared = [seed for seed in first if seed in second and np.isfinite([first[seed], second[seed]]).all()]
    left, right = (np.array([values[seed] for seed in shared], float) for values in (first, second))
    if len(shared) < LEAST_SEEDS:
        return len(shared), finite_mean(left - right), np.nan, np.nan, np.nan
    if (left == right).all():  # t is 0/0 there
        return len(shared), 0.0, 0.0, 0.0, 1.0
    # Where the difference is the same on every seed, p is 0.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning), np.errstate(all="ignore"):
        test = stats.ttest_rel(left, right)
        interval = test.confidence_interval(1 - LEVEL)
    return len(shared), float((left - right).mean()), float(interval.low), float(interval.high), float(test.pvalue)


def holm(p: Floats) -> Floats:
    """Adjust p values [N] for their number by Holm's step-down method (1979); NaN stays NaN and does not count."""
    valid = np.flatnonzero(~np.isnan(p))
    order = valid[np.argsort(p[valid], kind="stable")]
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def verdicts(comparison: StudyComparison) -> list[str]:
    """Return the sentences on whether the leader differs from each other algorithm."""
    leader = next(iter(comparison.values), None)
    pairs = [pair for pair in comparison.pairs if pair.first == leader]
    caution = "" if comparison.fresh else ", on the seeds that chose their trials: confirm it on new ones"
    sentences = []
    for verdict, sentence in (
        ("different", f"On {comparison.metric}, {leader} is better than {{}} beyond what chance explains{caution}."),
        ("not shown", f"On {comparison.metric}, no difference between {leader} and {{}} could be shown."),
        ("cannot tell", f"Too few seeds to tell {leader} from {{}} on {comparison.metric}."),
    ):
        names = [pair.second for pair in pairs if pair.verdict == verdict]
        sentences += [sentence.format(", ".join(names))] if names else []
    return sentences


def comparison_cells(comparison: StudyComparison, most: int | None = None) -> Cells | None:
    """Return the table of pairs of algorithms; of more than `most` only those with the leader. None where there is no
    pair."""
    pairs, metric = comparison.pairs, comparison.metric
    if most is not None and len(pairs) > most:
        pairs = tuple(pair for pair in pairs if pair.first == pairs[0].first)
    if not pairs:
        return None
    ends = [[format_difference(end, metric) for end in (pair.low, pair.high)] for pair in pairs]
    columns = {
        "Algorithms": [f"{pair.first} - {pair.second}" for pair in pairs],
        "Seeds": [str(pair.seeds) for pair in pairs],
        "Mean\ndifference": [format_difference(pair.difference, metric) for pair in pairs],
        "95 % interval": [NOTHING if low == NOTHING else f"{low} to {high}" for low, high in ends],
        "p\n(Holm)": [format_p(pair.adjusted) for pair in pairs],
        "Verdict": [VERDICTS[pair.verdict].format(pair.first) for pair in pairs],
    }
    title = f"Differences in {metric}{' (points)' if is_fraction(metric) else ''}, seed by seed"
    return Cells.from_columns(title, columns, (0, 5), "comparison")


def format_p(p: float) -> str:
    """Format a p value; one below 0.001 as a bound."""
    return NOTHING if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"
