"""Which trial speaks for each algorithm.

A trial is chosen by the study's objective on *validation* clients' data, among the trials that did all rounds (a
pruned trial's value is one of an earlier round) within the study's constraints. The best of many noisy values is too
good to be true (the winner's curse), so where the best trials were trained again on seeds that the search had not
seen, the trial that is best *there* speaks for its algorithm, with the values of those seeds.
"""

import math
from typing import NamedTuple

from flstudy.reporting.load import StudyResults, Trial


class Chosen(NamedTuple):
    """The trial of the search that speaks for an algorithm."""

    trial: Trial
    value: float  # validation objective on the seeds of the search, mean over them
    confirmation: Trial | None = None  # the same configuration on new seeds
    fresh: float = math.nan  # validation objective there

    @property
    def speaker(self) -> Trial:
        """Whose curves and test figures count."""
        return self.trial if self.confirmation is None else self.confirmation

    @property
    def judged(self) -> float:
        """The value that it is ranked by."""
        return self.value if self.confirmation is None else self.fresh


def selection_metric(results: StudyResults) -> str:
    """The study's objective, on validation data where the study searched on a test score."""
    metric = results.objective[0]
    return "valid/" + metric.removeprefix("test/") if metric.startswith("test/") else metric


def value_of(results: StudyResults, trial: Trial) -> float:
    """A trial's last value of the selection metric, mean over replicas; NaN where it has none."""
    metric = selection_metric(results)
    return trial.objective if metric == results.objective[0] else trial.metrics.get(metric, math.nan)


def whole(results: StudyResults, trial: Trial) -> bool:
    """Whether a trial did all rounds and has a finite value, so that it can be compared."""
    done = trial.status == "finished" and trial.rounds >= results.rounds
    return done and math.isfinite(value_of(results, trial))


def comparable(results: StudyResults, trial: Trial) -> bool:
    """Whether a trial is whole and within the study's constraints."""
    return trial.feasible and whole(results, trial)


def choose(results: StudyResults) -> tuple[Chosen, ...]:
    """One per algorithm that has a trial to show, best first; the first of equal trials stays."""
    higher = results.objective[1]

    def better(one: float, other: float) -> bool:
        return one > other if higher else one < other

    able = {trial.trial: trial for trial in results.searched if comparable(results, trial)}
    found: dict[str, Chosen] = {}
    for trial in able.values():
        one = Chosen(trial, value_of(results, trial))
        if trial.algorithm not in found or better(one.value, found[trial.algorithm].value):
            found[trial.algorithm] = one
    confirmed: dict[str, Chosen] = {}
    for again in results.confirmations:
        original = able.get(again.of or "")
        if original is None or not comparable(results, again):
            continue
        one = Chosen(original, value_of(results, original), again, value_of(results, again))
        if original.algorithm not in confirmed or better(one.fresh, confirmed[original.algorithm].fresh):
            confirmed[original.algorithm] = one
    return tuple(sorted((found | confirmed).values(), key=lambda one: -one.judged if higher else one.judged))
