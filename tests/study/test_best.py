"""The rule for the best trial, on the studies over which six definitions of it once disagreed."""

import math

import pytest

from flstudy.config import Objective
from flstudy.study import Status, Trial, best_trials, eligible
from flstudy.study.best import value_of

ROUNDS = 60


def trial(number, value, status="finished", rounds=ROUNDS, algorithm="Flash", **more):
    return Trial(number=number, algorithm=algorithm, status=Status(status), rounds=rounds, objective=value, **more)


def again(number, confirms, value, **more):
    return trial(number, value, stage="confirm", confirms=confirms, **more)


STUDIES = {
    "pruned ahead": ([trial(0, 0.8), trial(1, 0.9, "pruned", rounds=10)], 0),
    "running ahead": ([trial(0, 0.53), trial(1, 0.93, "running", rounds=20)], 0),
    "diverged": ([trial(0, 0.2), trial(1, 0.95, "diverged", rounds=30), trial(2, math.nan)], 0),
    "infeasible": ([trial(0, 0.9, feasible=False), trial(1, 0.7)], 1),
    "a confirmation that overturns": ([trial(0, 0.9), trial(1, 0.8), again(2, 0, 0.6), again(3, 1, 0.7)], 1),
    "confirmed goes before unconfirmed": ([trial(0, 0.9), trial(1, 0.8), again(2, 1, 0.7)], 1),
    "a confirmation outside the constraints": ([trial(0, 0.9), trial(1, 0.8), again(2, 0, 0.95, feasible=False)], 0),
    "a confirmation of a trial that is out": ([trial(0, 0.9, feasible=False), trial(1, 0.8), again(2, 0, 0.9)], 1),
    "a tie": ([trial(0, 0.7), trial(1, 0.9), trial(2, 0.9)], 1),
    "no whole trial": ([trial(0, 0.9, "pruned", rounds=10), trial(1, 0.8, rounds=ROUNDS - 1)], None),
    "nothing": ([], None),
}


@pytest.mark.parametrize("name", STUDIES)
def test_the_best_trial(name):
    trials, number = STUDIES[name]
    ranked = best_trials(trials, Objective(), ROUNDS)
    assert [best.trial.number for best in ranked] == ([] if number is None else [number])


def test_less_is_better_where_the_study_says_so():
    objective = Objective(metric="valid/loss", mode="min")
    assert best_trials([trial(0, 0.8), trial(1, 0.3)], objective, ROUNDS)[0].trial.number == 1


def test_algorithms_are_ordered_by_what_they_are_judged_by():
    trials = [
        trial(0, 0.9),
        trial(1, 0.85, algorithm="FedAvg"),
        again(2, 0, 0.8),
        again(3, 1, 0.84, algorithm="FedAvg"),
    ]
    ranked = best_trials(trials, Objective(), ROUNDS)
    assert [(best.trial.algorithm, best.reported_trial.number, best.ranking_value) for best in ranked] == [
        ("FedAvg", 3, 0.84),
        ("Flash", 2, 0.8),
    ]


def test_a_test_score_chooses_nothing():
    objective = Objective(metric="test/accuracy")
    assert objective.selection_metric == "valid/accuracy"
    trials = [trial(0, 0.9, metrics={"valid/accuracy": 0.6}), trial(1, 0.7, metrics={"valid/accuracy": 0.8})]
    assert best_trials(trials, objective, ROUNDS)[0].trial.number == 1
    assert math.isnan(value_of(trial(2, 0.9), objective))
    assert not eligible(trial(2, 0.9), objective, ROUNDS)
