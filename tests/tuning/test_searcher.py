"""What the sampler is told of a trial's end."""

import pytest
from optuna.trial import TrialState
from stand_in import StandIn, study

from flstudy.tuning.searcher import Search
from flstudy.tuning.space import Space


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
    finished, stopped, diverged = searcher.study.trials
    assert (finished.state, finished.value) == (TrialState.COMPLETE, 0.8)
    assert (stopped.state, stopped.intermediate_values) == (TrialState.PRUNED, {10: 0.95})
    assert (diverged.state, diverged.value) == (TrialState.COMPLETE, 0.0)
    assert searcher.study.best_trial.number == finished.number


@pytest.mark.parametrize("told", [None, ending("failed", 0.0, 2)])
def test_a_failed_trial_teaches_nothing(told):
    searcher = search()
    searcher.suggest("a")
    searcher.on_trial_complete("a", told, error=told is None)
    assert searcher.study.trials[0].state is TrialState.FAIL
