"""Samplers and schedulers: what they propose, what they are result of a trial's end, what they refuse."""

import math
import re
from pathlib import Path

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flstudy.config import ConfigError, load
from flstudy.study.space import Space
from flstudy.tuning import (
    Asha,
    CmaEs,
    GaussianProcess,
    GridSearch,
    HyperBand,
    MedianStopping,
    Nsga2,
    OptunaSampler,
    Pbt,
    RandomSearch,
    RayScheduler,
    Sampler,
    Tpe,
)
from flstudy.tuning.search import Search
from tests.tuning.stand_in import StandIn, report, study


def search(trials: int = 8) -> Search:
    """A sampler of learning rates."""
    config = StandIn(study=study(trials=trials, search={"algorithm.lr": {"loguniform": [0.01, 1.0]}}))
    space = Space.parse(config.study.search)
    return Search(space, config, name="heard", max_concurrent=lambda: 8)  # type: ignore[arg-type]


def test_a_stopped_trial_s_value_does_not_pose_as_a_final_one():
    searcher = search()
    for name in "abc":
        searcher.suggest(name)
    searcher.on_trial_complete("a", report("finished", 0.8, 60))
    searcher.on_trial_complete("b", report("running", 0.95, 10))  # better, but after ten rounds
    searcher.on_trial_complete("c", report("diverged", 0.0, 3))
    finished, stopped, diverged = searcher.arms[0].study.trials
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.8)
    assert (stopped.state, stopped.intermediate_values) == (TrialState.PRUNED, {10: 0.95})
    assert (diverged.state, diverged.value) == (TrialState.COMPLETE, 0.0)
    assert searcher.arms[0].study.best_trial.number == finished.number


@pytest.mark.parametrize("result", [None, report("failed", 0.0, 2)])
def test_a_failed_trial_teaches_nothing(result):
    searcher = search()
    searcher.suggest("a")
    searcher.on_trial_complete("a", result, error=result is None)
    if result is None:
        searcher.settle_loss(0, restart=False)
    assert searcher.arms[0].study.trials[0].state is TrialState.FAIL


SPACE = {
    "algorithm": {"choice": ["FedAvg", "Flash"]},
    "algorithm.lr": {"loguniform": [0.01, 1.0]},
    "algorithm.tau": {"loguniform": [1.0e-4, 1.0e-2]},
}


def proposals(sampler: Sampler, trials: int) -> list[dict]:
    """What a study of these settings tries; the objective prefers learning rates near 0.1."""
    config = StandIn(study=study(trials=trials, search=SPACE, sampler=sampler))
    searcher = Search(Space.parse(SPACE), config, name="s", max_concurrent=lambda: 1)  # type: ignore[arg-type]
    tried = []
    while (proposed := searcher.suggest(str(len(tried)))) != Searcher.FINISHED:
        tried.append(proposed["overrides"])
        distance = abs(math.log10(tried[-1]["algorithm.lr"]) + 1)
        searcher.on_trial_complete(str(len(tried) - 1), report("finished", -distance, 6))
    return tried


@pytest.mark.parametrize(
    "sampler",
    [
        Tpe(startup_trials=3),
        Tpe(startup_trials=3, multivariate=True),
        RandomSearch(seed=3),
        CmaEs(startup_trials=3),
        pytest.param(GaussianProcess(startup_trials=3), marks=pytest.mark.slow),
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
    tried = proposals(GridSearch(points=3), 99)
    assert len(tried) == 3 + 3 * 3  # FedAvg has no tau
    assert len({str(sorted(overrides.items())) for overrides in tried}) == 12
    assert sorted({overrides["algorithm.lr"] for overrides in tried}) == pytest.approx([0.01, 0.1, 1.0])
    assert tried != proposals(GridSearch(points=3, seed=1), 99)  # another order


def test_a_grid_that_its_trials_do_not_cover_is_refused():
    sampler = GridSearch(points=4)
    config = StandIn(study=study(trials=16, search=SPACE, sampler=sampler))
    with pytest.raises(ConfigError, match=re.escape("study.trials must be >= 20, the points of the grid, got 16")):
        sampler.check(Space.parse(SPACE), config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GridSearch(points=0), "GridSearch: points must lie in [1, 1e6], got 0"),
        (lambda: Tpe(candidates=0), "Tpe: candidates must lie in [1, 1e6], got 0"),
        (lambda: Tpe(seed=-1), "Tpe: seed must lie in [0, 2e9], got -1"),
        (lambda: Nsga2(population=1), "Nsga2: population must lie in [2, 1e6], got 1"),
        (lambda: CmaEs(sigma=0.0), "CmaEs: sigma must lie in (0, 1e12], got 0.0"),
        (lambda: MedianStopping(every=0), "MedianStopping: every must lie in [1, 1e6], got 0"),
        (lambda: Asha(reduction_factor=1.0), "Asha: reduction_factor must lie in (1, 1e12], got 1.0"),
        (lambda: HyperBand(brackets=0), "HyperBand: brackets must lie in [1, 100], got 0"),
        (lambda: Pbt(quantile=0.6), "Pbt: quantile must lie in (0, 0.5], got 0.6"),
    ],
)
def test_settings_outside_their_domains_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_schedulers_know_when_they_decide():
    assert MedianStopping(grace_rounds=2, every=3).rungs(12) == [2, 5, 8, 11]
    assert Asha(grace_rounds=10, reduction_factor=3).rungs(60) == [10, 30]
    assert Pbt(every=10).rungs(35) == [10, 20, 30]


def test_rungs_are_counted_over_any_number_of_rounds():
    """Where reduction_factor ** rounds is beyond all floats, too."""
    path = Path(__file__).parents[2] / "tune_configs" / "flash" / "synthetic.yaml"
    config = load(path, options=["--evaluate_every=1", "--rounds=100000"], command="tune")
    Asha(grace_rounds=50, reduction_factor=3.0).check(config)
    with pytest.raises(ConfigError, match=r"fewer rungs than the 100000 rounds, got 1\.00001"):
        Asha(grace_rounds=1, reduction_factor=1.00001).check(config)


def test_a_sampler_of_optuna_s_own_proposes():
    sampler = OptunaSampler(class_path="optuna.samplers.QMCSampler", init_args={"qmc_type": "halton"}, seed=1)
    assert len(proposals(sampler, 6)) == 6
    for path, message in (("no.such.Module", "can be imported"), ("pathlib.Path", "which is none")):
        with pytest.raises(ConfigError, match=message):
            OptunaSampler(class_path=path).build(0, None)
    with pytest.raises(ConfigError, match="refuses its init_args"):
        OptunaSampler(class_path="optuna.samplers.QMCSampler", init_args={"kind": 1}).build(0, None)


def test_a_scheduler_of_ray_s_own_is_built_for_the_objective():
    config = StandIn(study=study(), rounds=6)
    scheduler = RayScheduler(class_path="ray.tune.schedulers.HyperBandScheduler", init_args={"max_t": 6})
    built = scheduler.build(config, {})  # type: ignore[arg-type]
    assert (built._metric, built._time_attr) == ("objective", "round")
    assert scheduler.rungs(3) == [1, 2, 3]
