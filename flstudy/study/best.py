"""The rule for the best trial: the only one, used by terminal, ``--json``, MLflow, reports and kept models.

A trial can be the best one if it did all rounds, its value is finite, and it lies within the study's constraints. It is
chosen by the study's objective on *validation* data: where the study searched on a test score, by that score's
validation counterpart. The best of many noisy values is too optimistic (the winner's curse). Trials may
therefore be trained again on seeds that the search has not seen. The configuration that is best on those seeds then
goes before all others of its algorithm. Of equal trials the one with the smallest number is the best.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flstudy.config import Objective
from flstudy.study.trial import Status, Trial


class BestTrial(NamedTuple):
    """The best trial of an algorithm, with its confirmation on new seeds, if there is one."""

    trial: Trial
    value: float  # of the selection metric on the seeds of the search, mean over them
    confirmation: Trial | None = None  # trains the same configuration on new seeds
    confirmed_value: float = math.nan  # of the selection metric on the new seeds

    @property
    def reported_trial(self) -> Trial:
        """The trial whose curves and test figures are reported."""
        return self.trial if self.confirmation is None else self.confirmation

    @property
    def ranking_value(self) -> float:
        """The value by which the algorithm is ranked."""
        return self.value if self.confirmation is None else self.confirmed_value


def decisive_metrics(objectives: Sequence[Objective], constraints: Iterable[str]) -> list[str]:
    """Return the metrics by which a study decides: its objectives, what trials are chosen by, its constraints."""
    return [*(goal.metric for goal in objectives), objectives[0].selection_metric, *constraints]


def value_of(trial: Trial, objective: Objective) -> float:
    """Return a trial's last value of the selection metric, mean over replicas; NaN where it has none."""
    metric = objective.selection_metric
    return trial.objective if metric == objective.metric else trial.metrics.get(metric, math.nan)


def is_whole(trial: Trial, objective: Objective, rounds: int) -> bool:
    """Return whether a trial did all rounds and has a finite value, so that it can be compared."""
    done = trial.status is Status.FINISHED and trial.rounds >= rounds
    return done and math.isfinite(value_of(trial, objective))


def eligible(trial: Trial, objective: Objective, rounds: int) -> bool:
    """Return whether a trial can be the best one: it is whole, and within the study's constraints."""
    return trial.feasible and is_whole(trial, objective, rounds)


def rank_trials(trials: Iterable[Trial], objective: Objective, rounds: int) -> list[Trial]:
    """Return the eligible trials of the search, best first; of equals the first one first."""
    sign = -1 if objective.higher else 1
    able = [trial for trial in trials if not trial.is_confirmation and eligible(trial, objective, rounds)]
    return sorted(able, key=lambda trial: (sign * value_of(trial, objective), trial.number))


def best_trials(trials: Iterable[Trial], objective: Objective, rounds: int) -> tuple[BestTrial, ...]:
    """Return the best trial of each algorithm that has one, best first.

    Args:
        trials: of one study, confirmations included.
        objective: the study's.
        rounds: of a whole trial.
    """
    every, sign = list(trials), -1 if objective.higher else 1
    able = {trial.number: trial for trial in rank_trials(every, objective, rounds)}
    searched: dict[str, BestTrial] = {}
    for trial in able.values():
        searched.setdefault(trial.algorithm, BestTrial(trial, value_of(trial, objective)))
    confirmations = [trial for trial in every if trial.confirms in able and eligible(trial, objective, rounds)]
    confirmed: dict[str, BestTrial] = {}
    for trial in sorted(confirmations, key=lambda trial: (sign * value_of(trial, objective), trial.number)):
        original = able[trial.confirms]  # type: ignore[index]
        candidate = BestTrial(original, value_of(original, objective), trial, value_of(trial, objective))
        confirmed.setdefault(original.algorithm, candidate)
    winners = (searched | confirmed).values()
    return tuple(sorted(winners, key=lambda winner: (sign * winner.ranking_value, winner.trial.number)))
