"""Rounds, evaluations, rungs and drifts that do not go together are refused before anything is trained."""

from pathlib import Path

import pytest

from flstudy.config import ConfigError, load
from flstudy.tuning.plan import check_study, first_judged_round

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"  # 60 rounds, a drift in round 31, a rung in round 40


def refused(changes):
    with pytest.raises(ConfigError) as refusal:
        check_study(load(QUICK, changes, command="tune"))
    return str(refusal.value)


@pytest.mark.parametrize("changes", [{"evaluate_every": 4}, {"evaluate_every": 7}, {"evaluate_every": 40}])
def test_evaluations_between_rounds_and_rungs_are_taken(changes):
    check_study(load(QUICK, changes, command="tune"))


def test_more_rounds_between_evaluations_than_there_are_leave_the_last_one():
    check_study(load(QUICK, {"evaluate_every": 100, "study.scheduler": None}, command="tune"))


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate_every": 100},
        {"evaluate_every": 31, "study.scheduler.grace_rounds": 50},
        {"study.scheduler.grace_rounds": 60},
    ],
)
def test_a_scheduler_that_meets_no_evaluation_before_the_end_is_refused(changes):
    assert refused(changes).startswith(
        "study.scheduler must judge trials before round 60, their last, but Asha meets no evaluation there, got"
    )


@pytest.mark.parametrize(
    ("scheduler", "grace", "every", "first"),
    [("Asha", 40, 1, 40), ("Asha", 40, 25, 50), ("MedianStopping", 10, 4, 12), ("HyperBand", 5, 6, 6)],
)
def test_trials_are_judged_in_the_first_evaluated_round_from_the_first_rung_on(scheduler, grace, every, first):
    settings = {"study.scheduler": scheduler, "study.scheduler.grace_rounds": grace}
    assert first_judged_round(load(QUICK, {"evaluate_every": every, **settings}, command="tune")) == first


@pytest.mark.parametrize(
    ("metric", "every", "takes"),
    [
        ("valid/recovery", 10, True),
        ("valid/recovery", 30, True),  # one evaluation before, and two after it
        ("valid/recovery", 31, False),
        ("test/global_recovery", 60, False),
        ("valid/dip", 60, True),  # of the last round alone
        ("valid/mean_accuracy", 60, True),
    ],
)
@pytest.mark.parametrize("place", ["study.objective", "study.objectives", "study.constraints"])
def test_a_figure_that_evaluations_cannot_tell_is_refused(metric, every, takes, place):
    goal = {"metric": metric, "mode": "min"}
    wanted = {
        "study.objective": {"study.objective": goal},
        "study.objectives": {"study.objectives": [goal]},
        "study.constraints": {"study.constraints": {metric: {"max": 9}}},
    }[place]
    changes = {"evaluate_every": every, "study.scheduler": None, **wanted}
    if takes:
        check_study(load(QUICK, changes, command="tune"))
    else:
        assert refused(changes).startswith(
            f"evaluate_every must let {metric} be told, got {every}: there are too few evaluations before or after "
            "what happens in round 31; lower it"
        )


def test_a_test_score_that_no_validation_data_stand_for_is_refused():
    """Validation data choose the best trial, and those of participants' models are of test data alone."""
    with pytest.raises(ConfigError, match=r"measured as valid/personal_accuracy, too, .* got 'test/p"):
        load(QUICK, {"study.objective.metric": "test/personal_accuracy"}, command="tune")
    load(QUICK, {"study.objective.metric": "test/accuracy"}, command="tune")
