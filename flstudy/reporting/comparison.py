"""Whether the algorithms differ: pair by pair within a study, by ranks over several.

Within a study all chosen trials ran on the same seeds, so that two algorithms met the same partitions, initial models
and cohorts (common random numbers): their difference is taken seed by seed, with Student's paired t test and its 95 %
interval. Of many pairs some look different by chance alone: the p values are adjusted by Holm (1979), and only an
adjusted one below 0.05 is called a difference. Over studies (worlds), as Demšar (2006) recommends: mean ranks, and
Friedman's test for whether any of them differ.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.ranking import Floats, Ranking
from flstudy.reporting.selection import comparable

LEVEL = 0.05
LEAST_SEEDS = 3
LEAST_WORLDS = 3
LEAST_ALGORITHMS = 3  # for Friedman's test
Verdict = Literal["different", "not shown", "cannot tell"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two algorithms on the seeds that both have; NaN where there are too few of them."""

    first: str  # the one with the better mean
    second: str
    seeds: int
    difference: float  # mean of first - second
    low: float  # 95 % interval of it
    high: float
    p: float
    adjusted: float  # by Holm, over all pairs of the study
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Of the chosen trials of one study."""

    metric: str
    higher: bool
    fresh: bool  # whether all trials were trained again on seeds that chose none of the search
    values: Mapping[str, Mapping[int, float]]  # algorithm -> seed -> last value; best mean first
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]

    def mean(self, algorithm: str) -> float:
        """Over the seeds with a finite value; NaN where there is none."""
        return _mean(self.values.get(algorithm, {}))


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An algorithm over several worlds."""

    algorithm: str
    mean_rank: float  # 1 is best; equal ones share the mean of their ranks
    wins: int  # worlds with nobody better
    worlds: int


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Several studies beside each other."""

    names: tuple[str, ...]
    metric: str
    higher: bool
    comparisons: tuple[Comparison, ...]  # by world
    standings: tuple[Standing, ...]  # best first; of the algorithms that every world has
    friedman: tuple[float, float] | None  # (statistic, p)
    notes: tuple[str, ...]


def compare_chosen(results: StudyResults, ranking: Ranking, metric: str | None = None) -> Comparison:
    """The chosen trials of a study, on its objective's test counterpart where all recorded that: the validation score
    has chosen them."""
    speakers = {row.trial.algorithm: row.speaker for row in ranking.rows}
    wanted = metric or comparison_metric([(results, ranking)])
    values, notes = {}, []
    for algorithm, trial in speakers.items():
        found = last_values(results, trial, wanted)
        if found:
            values[algorithm] = found
        else:
            notes.append(f"{algorithm}: trial {trial.trial} has no {wanted} in its records, so it is not compared.")
    higher = results.objective[1]
    pairs = compare(values, higher=higher)
    if any(pair.verdict == "cannot tell" for pair in pairs):
        notes.append(
            f"With fewer than {LEAST_SEEDS} seeds in common it cannot be told whether two algorithms differ: "
            "give more seeds, or study.confirm.seeds."
        )
    fresh = all(row.confirmation is not None for row in ranking.rows)
    if not fresh and len(values) > 1:
        notes.append(
            "Compared on the seeds of the search, which chose these trials: an algorithm with more trials had more "
            "chances to look good. Confirm on new seeds (study.confirm.seeds) before you call it better."
        )
    again = Counter(trial.algorithm for trial in results.confirmations if comparable(results, trial))
    confirmed = {name: again[name] for name in values if again[name]}
    if fresh and len(set(confirmed.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in confirmed.items())
        notes.append(
            f"Different numbers of trials were confirmed ({told}): the best of several on the new seeds is a little "
            "too good itself."
        )
    ordered = sorted(values, key=lambda name: -_mean(values[name]) if higher else _mean(values[name]))
    return Comparison(
        metric=wanted,
        higher=higher,
        fresh=fresh,
        values={name: values[name] for name in ordered},
        pairs=pairs,
        notes=tuple(notes),
    )


def comparison_metric(studies: Sequence[tuple[StudyResults, Ranking]]) -> str:
    """The test counterpart of the selection metric where every chosen trial of every study has it, else the latter."""
    selected = studies[0][1].selection_metric
    counterpart = "test/" + selected.removeprefix("valid/")
    speakers = [(results, row.speaker) for results, ranking in studies for row in ranking.rows]
    every = [  # a trial without records has no say
        last_values(results, trial, counterpart)
        for results, trial in speakers
        if last_values(results, trial, counterpart) or last_values(results, trial, selected)
    ]
    return counterpart if selected.startswith("valid/") and any(every) and all(every) else selected


def last_values(results: StudyResults, trial: Trial, metric: str) -> dict[int, float]:
    """The last value of a metric by seed; empty where the records have none."""
    try:
        return results.last(trial, metric)
    except (ValueError, OSError):
        return {}


def compare(values: Mapping[str, Mapping[int, float]], *, higher: bool) -> tuple[Pair, ...]:
    """All pairs of algorithms, the better mean first.

    Args:
        values: algorithm -> seed -> value; a seed counts for a pair where both have a finite value.
        higher: whether higher is better.
    """
    names = sorted(values, key=lambda name: -_mean(values[name]) if higher else _mean(values[name]))
    tests = [
        (first, second, *_paired(values[first], values[second]))
        for place, first in enumerate(names)
        for second in names[place + 1 :]
    ]
    adjusted = holm(np.array([p for *_, p in tests]))
    return tuple(
        Pair(
            first=first,
            second=second,
            seeds=seeds,
            difference=difference,
            low=low,
            high=high,
            p=p,
            adjusted=float(level),
            verdict="cannot tell" if np.isnan(p) else "different" if level < LEVEL else "not shown",
        )
        for (first, second, seeds, difference, low, high, p), level in zip(tests, adjusted, strict=True)
    )


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[int, float, float, float, float]:
    """(seeds in common, mean difference, low, high, p)."""
    from scipy import stats

    shared = [seed for seed in first if seed in second and np.isfinite([first[seed], second[seed]]).all()]
    one, other = (np.array([values[seed] for seed in shared], float) for values in (first, second))
    nothing = float("nan")
    if len(shared) < LEAST_SEEDS:
        return len(shared), float((one - other).mean()) if shared else nothing, nothing, nothing, nothing
    if (one == other).all():  # t is 0/0 there
        return len(shared), 0.0, 0.0, 0.0, 1.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # the same difference on every seed: p is 0
        test = stats.ttest_rel(one, other)
        interval = test.confidence_interval(1 - LEVEL)
    return len(shared), float((one - other).mean()), float(interval.low), float(interval.high), float(test.pvalue)


def holm(p: Floats) -> Floats:
    """p values adjusted for how many they are, by Holm's step-down method (1979); NaN counts for none and stays."""
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def compare_worlds(studies: Sequence[tuple[StudyResults, Ranking]]) -> Worlds:
    """Ranks over studies.

    Raises:
        ValueError: where the studies have not searched for the same thing.
    """
    from scipy import stats

    first = studies[0][0]
    for results, _ in studies:
        if results.objective != first.objective:
            wanted = (first.objective, results.objective)
            said = [f"{metric} ({'max' if higher else 'min'})" for metric, higher in wanted]
            raise ValueError(
                f"studies in one report must have the same objective, got {said[0]} in {first.name} "
                f"and {said[1]} in {results.name}: report them one by one"
            )
    metric, higher = comparison_metric(studies), first.objective[1]
    comparisons = tuple(compare_chosen(results, ranking, metric) for results, ranking in studies)
    everywhere = [
        name for name in comparisons[0].values if all(np.isfinite(comparison.mean(name)) for comparison in comparisons)
    ]
    every = dict.fromkeys(name for comparison in comparisons for name in comparison.values)
    notes = []
    missing = [name for name in every if name not in everywhere]
    if missing:
        notes.append(f"Without a result in every study, and so without a rank: {', '.join(missing)}.")
    means = np.array([[comparison.mean(name) for name in everywhere] for comparison in comparisons])  # [worlds, names]
    ranks = stats.rankdata(-means if higher else means, axis=1) if everywhere else means
    winners = stats.rankdata(-means if higher else means, axis=1, method="min") == 1 if everywhere else means
    standings = [
        Standing(
            algorithm=name,
            mean_rank=float(ranks[:, place].mean()),
            wins=int(winners[:, place].sum()),
            worlds=len(studies),
        )
        for place, name in enumerate(everywhere)
    ]
    friedman = None
    if len(studies) >= LEAST_WORLDS and len(everywhere) >= LEAST_ALGORITHMS:
        test = stats.friedmanchisquare(*means.T)
        friedman = (float(test.statistic), float(test.pvalue)) if np.isfinite(test.pvalue) else None
    else:
        notes.append(
            f"Friedman's test needs at least {LEAST_WORLDS} studies and {LEAST_ALGORITHMS} algorithms that all of them "
            f"have; here are {len(studies)} and {len(everywhere)}."
        )
    return Worlds(
        names=tuple(results.name for results, _ in studies),
        metric=metric,
        higher=higher,
        comparisons=comparisons,
        standings=tuple(sorted(standings, key=lambda standing: standing.mean_rank)),
        friedman=friedman,
        notes=tuple(notes),
    )


def _mean(values: Mapping[int, float]) -> float:
    known = np.array([value for value in values.values() if np.isfinite(value)])
    return float(known.mean()) if known.size else float("nan")
