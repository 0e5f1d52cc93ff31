"""One trial without Ray: how it ends, and what it tells."""

import math

import pytest

from flstudy.config import Objective
from flstudy.study.objectives import WORST, worst_value
from flstudy.study.records import curve, read_records
from flstudy.tuning.trial import algorithm_of, run_trial
from tests.tuning.stand_in import StandIn, study


class Notes:
    """A tracker that only remembers."""

    def __init__(self):
        self.started, self.rounds, self.ended = None, [], None

    def start(self, **named):
        self.started = named

    def log(self, record):
        self.rounds.append(record.round)

    def finish(self, status="FINISHED", *, tags=None, error=None):
        self.ended = (status, tags, error)


def run(overrides, report=lambda told: True, config=None, **named):
    told, tracker = [], Notes()
    outcome = run_trial(
        config or StandIn(),
        overrides,
        report=lambda message: (told.append(message), report(message))[1],
        tracker=tracker,
        **named,
    )
    return outcome, told, tracker


def test_a_trial_runs_to_its_end(tmp_path):
    outcome, told, tracker = run({"algorithm": "Flash", "algorithm.lr": 0.2}, records_path=tmp_path / "0.parquet")
    assert (outcome.status, outcome.round, outcome.error) == ("finished", 6, None)
    assert [message["round"] for message in told] == [2, 4, 6]  # evaluations, the last one told at the end
    assert [message["status"] for message in told] == ["running", "running", "finished"]
    assert told[-1]["valid/accuracy"] == told[-1]["objective"] == outcome.objective
    assert tracker.started["params"]["algorithm.lr"] == 0.2
    assert tracker.started["tags"]["algorithm"] == "Flash"
    assert tracker.started["seeds"] == [0, 44, 56]
    assert tracker.rounds == [1, 2, 3, 4, 5, 6, 6]  # the figures of the whole run come with its last round
    assert outcome.metrics["time/total_s"] == pytest.approx(0.06)
    assert tracker.ended == ("FINISHED", {"rounds": "6"}, None)
    rounds, values = curve(read_records(tmp_path / "0.parquet"), "valid/accuracy")
    assert rounds.tolist() == [2, 4, 6]
    assert values[:, -1].mean() == pytest.approx(outcome.objective)  # the mean over replicas


def test_a_diverging_trial_reports_the_worst_value_and_is_tagged():
    outcome, told, tracker = run({"algorithm": "Diverges"})
    assert (outcome.status, outcome.round, outcome.objective) == ("diverged", 3, 0.0)
    assert told[-1]["objective"] == 0.0
    assert told[-1]["status"] == "diverged"
    assert math.isnan(outcome.metrics["train/loss"])
    assert tracker.ended == ("FINISHED", {"rounds": "3", "diverged": "true"}, None)


def test_a_raising_trial_is_recorded_with_its_traceback():
    outcome, told, tracker = run({"algorithm": "Raises"})
    assert (outcome.status, outcome.round, outcome.objective) == ("failed", 2, 0.0)
    assert "Traceback" in outcome.error
    assert outcome.error.strip().endswith("RuntimeError: the third round is too much")
    assert tracker.ended == ("FAILED", {"rounds": "2", "failed": "true"}, outcome.error)
    assert "objective" in told[-1]


def test_overrides_that_make_no_config_are_a_failed_trial_with_a_run():
    outcome, told, tracker = run({"algorithm": "Scafold"})
    assert outcome.status == "failed"
    assert tracker.started["params"]["algorithm"] == "FedAvg"  # the study's own
    assert "got 'Scafold'" in tracker.ended[2]
    assert len(told) == 1


def test_the_scheduler_can_stop_a_trial():
    outcome, told, tracker = run({}, report=lambda message: message["round"] < 4)
    assert (outcome.status, outcome.round) == ("pruned", 4)
    assert outcome.objective == told[-1]["objective"] > 0  # of the last evaluation, not the worst
    assert len(told) == 2
    assert tracker.ended == ("FINISHED", {"rounds": "4", "pruned": "true"}, None)


def test_an_objective_that_is_never_measured_fails_with_the_nearest_name():
    config = StandIn(study=study(objective=Objective(metric="valid/acuracy")))
    outcome, told, _ = run({}, config=config)
    assert outcome.status == "failed"
    assert "got 'valid/acuracy': did you mean 'valid/accuracy'?" in outcome.error
    assert told[-1]["objective"] == -WORST


def test_ctrl_c_closes_the_run():
    def interrupt(message):
        raise KeyboardInterrupt

    tracker = Notes()
    with pytest.raises(KeyboardInterrupt):
        run_trial(StandIn(), {}, report=interrupt, tracker=tracker)
    assert tracker.ended[0] == "KILLED"


def test_worst_values_are_finite_and_on_the_bad_side():
    assert worst_value(Objective(metric="test/accuracy", mode="max")) == 0.0
    assert worst_value(Objective(metric="valid/loss", mode="min")) == WORST
    assert worst_value(Objective(metric="fit/epochs", mode="max")) == -WORST


def test_algorithm_names_are_short():
    config = StandIn()
    assert algorithm_of(config, {}) == "FedAvg"
    assert algorithm_of(config, {"algorithm": "my.module.Own"}) == "Own"
    assert algorithm_of(config, {"algorithm": {"class_path": "flstudy.algorithms.Flash"}}) == "Flash"
