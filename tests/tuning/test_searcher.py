"""Samplers and schedulers: what they propose, what they are told of a trial's end, what they refuse."""

import math
import re

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flstudy.config import (
    CmaEs,
    ConfigError,
    GaussianProcess,
    GridSearch,
    MedianStopping,
    Nsga2,
    RandomSearch,
    Sampler,
    Tpe,
)
from flstudy.study.space import Space
from flstudy.tuning.samplers import check_sampler
from flstudy.tuning.schedulers import rungs
from flstudy.tuning.searcher import Search
from tests.tuning.stand_in import StandIn, study


def search(trials: int = 8) -> Search:
    """A sampler of learning rates."""
    config = StandIn(study=study(trials=trials, search={"algorithm.lr": {"loguniform": [0.01, 1.0]}}))
    space = Space.parse(config.study.search)
    return Search(space, config, name="told", room=lambda: 8)  # type: ignore[arg-type]


def ending(status: str, objective: float, round: int) -> dict:
    """A trial's last report."""
    return {"status": status, "objective": objective, "round": round}


def test_a_stopped_trial_s_value_does_not_pose_as_a_final_one():
    searcher = search()
    for name in "abc":
        searcher.suggest(name)
    searcher.on_trial_complete("a", ending("finished", 0.8, 60))
    searcher.on_trial_complete("b", ending("running", 0.95, 10))  # better, but after ten rounds
    searcher.on_trial_complete("c", ending("diverged", 0.0, 3))
    finished, stopped, diverged = searcher.arms[0].study.trials
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.8)
    assert (stopped.state, stopped.intermediate_values) == (TrialState.PRUNED, {10: 0.95})
    assert (diverged.state, diverged.value) == (TrialState.COMPLETE, 0.0)
    assert searcher.arms[0].study.best_trial.number == finished.number


@pytest.mark.parametrize("told", [None, ending("failed", 0.0, 2)])
def test_a_failed_trial_teaches_nothing(told):
    searcher = search()
    searcher.suggest("a")
    searcher.on_trial_complete("a", told, error=told is None)
    if told is None:
        searcher.lost(0, again=False)
    assert searcher.arms[0].study.trials[0].state is TrialState.FAIL


SPACE = {
    "algorithm": {"choice": ["FedAvg", "Flash"]},
    "algorithm.lr": {"loguniform": [0.01, 1.0]},
    "algorithm.tau": {"loguniform": [1.0e-4, 1.0e-2]},
}


def proposals(sampler: Sampler, trials: int) -> list[dict]:
    """What a study of these settings tries; the objective prefers learning rates near 0.1."""
    config = StandIn(study=study(trials=trials, search=SPACE, sampler=sampler))
    searcher = Search(Space.parse(SPACE), config, name="s", room=lambda: 1)  # type: ignore[arg-type]
    found = []
    while (proposed := searcher.suggest(str(len(found)))) != Searcher.FINISHED:
        found.append(proposed["overrides"])
        distance = abs(math.log10(found[-1]["algorithm.lr"]) + 1)
        searcher.on_trial_complete(str(len(found) - 1), ending("finished", -distance, 6))
    return found


@pytest.mark.parametrize(
    "sampler",
    [
        Tpe(startup_trials=3),
        Tpe(startup_trials=3, multivariate=True),
        RandomSearch(seed=3),
        CmaEs(startup_trials=3),
        GaussianProcess(startup_trials=3),
        Nsga2(population=4),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_every_sampler_proposes_conditional_spaces_and_repeats_itself(sampler):
    first, again = proposals(sampler, 12), proposals(sampler, 12)
    assert first == again
    assert len(first) == 12
    for overrides in first:
        assert ("algorithm.tau" in overrides) == (overrides["algorithm"] == "Flash")
        assert 0.01 <= overrides["algorithm.lr"] <= 1
    assert {overrides["algorithm"] for overrides in first} == {"FedAvg", "Flash"}


def test_a_grid_tries_every_combination_once():
    found = proposals(GridSearch(points=3), 99)
    assert len(found) == 3 + 3 * 3  # FedAvg has no tau
    assert len({str(sorted(overrides.items())) for overrides in found}) == 12
    assert sorted({overrides["algorithm.lr"] for overrides in found}) == pytest.approx([0.01, 0.1, 1.0])
    assert found != proposals(GridSearch(points=3, seed=1), 99)  # another order


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (GridSearch(points=4), "study.trials must be >= 20, the points of the grid, got 16: raise it, lower"),
    ],
)
def test_settings_that_cannot_work_are_refused(sampler, said):
    config = StandIn(study=study(trials=16, search=SPACE, sampler=sampler))
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_sampler(Space.parse(SPACE), config)  # type: ignore[arg-type]


def test_the_median_rule_decides_from_its_grace_on():
    config = StandIn(study=study(scheduler=MedianStopping(grace_rounds=2, every=3)), rounds=12)
    assert rungs(config) == [2, 5, 8, 11]  # type: ignore[arg-type]
