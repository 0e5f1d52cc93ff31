"""One trial without Ray: how it ends, and what it tells."""

import copy
import math

import pytest

from flstudy.config import Objective
from flstudy.federation import Record
from flstudy.study import Trial
from flstudy.study.objectives import WORST, worst_value
from flstudy.study.records import curve, read_records
from flstudy.tracking.content import ending_tags, run_status
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.proposals import algorithm_of
from flstudy.tuning.trial import run_trial
from tests.tuning.stand_in import StandIn, study


class Notes:
    """A tracker that only remembers."""

    def __init__(self):
        self.started, self.ended = None, None

    def start(self, **named):
        self.started = named

    def finish(self, trial, *, killed=False):
        tags = {"rounds": str(trial.rounds), **ending_tags(trial)}  # as the study's writer makes them
        self.ended = ("KILLED", None) if killed else (run_status(trial.status), tags)


def run(overrides, report=lambda trial: True, config=None, **named):
    heard, tracker = [], Notes()
    trial = run_trial(
        config or StandIn(),
        Trial(number=0, algorithm="", overrides=overrides),
        report=lambda trial, save: (heard.append(copy.copy(trial)), report(trial))[1],
        tracker=tracker,
        **named,
    )
    return trial, heard, tracker


def test_a_trial_runs_to_its_end(tmp_path):
    trial, heard, tracker = run({"algorithm": "Flash", "algorithm.lr": 0.2}, files=TrialFiles(tmp_path / "0.parquet"))
    assert (trial.status, trial.rounds, trial.error) == ("finished", 6, None)
    assert [report.rounds for report in heard] == [2, 4, 6]  # evaluations, the last one told at the end
    assert [report.status for report in heard] == ["running", "running", "finished"]
    assert heard[-1].objective == trial.objective
    assert tracker.started["params"]["algorithm.lr"] == 0.2
    assert tracker.started["tags"]["algorithm"] == "Flash"
    assert tracker.started["seeds"] == [0, 44, 56]
    table = read_records(tmp_path / "0.parquet")
    assert curve(table, "train/loss")[0].tolist() == [1, 2, 3, 4, 5, 6]
    assert curve(table, "time/total_s")[0].tolist() == [6]  # the figures of the whole run come with its last round
    assert trial.metrics["time/total_s"] == pytest.approx(0.06)
    assert tracker.ended == ("FINISHED", {"rounds": "6"})
    rounds, values = curve(table, "valid/accuracy")
    assert rounds.tolist() == [2, 4, 6]
    assert values[:, -1].mean() == pytest.approx(trial.objective)  # the mean over replicas


class UndefinedInTheEnd(StandIn):
    """A config whose objective is a number in its second round, and none in its last."""

    def run(self, on_round, **named):
        for r in range(1, self.rounds + 1):
            metrics = {"train/loss": [1.0]} | ({2: {"valid/accuracy": [0.7]}, 6: {"valid/accuracy": [math.nan]}}).get(
                r, {}
            )
            on_round(Record(r, metrics))


def test_a_value_of_an_earlier_round_is_not_told_as_the_last_ones():
    trial, heard, _ = run({}, config=UndefinedInTheEnd())
    assert [(report.rounds, report.objective) for report in heard] == [(2, 0.7), (6, 0.0)]
    assert (trial.status, trial.objective) == ("finished", 0.0)


def test_a_diverging_trial_reports_the_worst_value_and_is_tagged():
    trial, heard, tracker = run({"algorithm": "Diverges"})
    assert (trial.status, trial.rounds, trial.objective) == ("diverged", 3, 0.0)
    assert heard[-1].objective == 0.0
    assert heard[-1].status == "diverged"
    assert math.isnan(trial.metrics["train/loss"])
    assert tracker.ended[0] == "FINISHED"
    assert tracker.ended[1].items() >= {"rounds": "3", "diverged": "true", "error": "diverged in round 3"}.items()


def test_a_raising_trial_is_recorded_with_its_traceback():
    trial, heard, tracker = run({"algorithm": "Raises"})
    assert (trial.status, trial.rounds, trial.objective) == ("failed", 2, 0.0)
    assert "Traceback" in trial.error
    assert trial.error.strip().endswith("RuntimeError: the third round is too much")
    status, tags = tracker.ended
    assert (status, tags["rounds"], tags["failed"]) == ("FAILED", "2", "true")
    assert tags["error"] == "RuntimeError: the third round is too much"
    assert heard[-1].objective == 0.0


def test_a_raising_trial_is_told_by_what_it_raised_and_not_by_a_note_on_where(monkeypatch):
    def noted(self, on_round, **named):
        error = KeyError("sensor")
        error.add_note("in the local fit of device 3, replica 0")
        error.add_note("in round 1, sequential executor, FedAvg")
        raise error

    monkeypatch.setattr(StandIn, "run", noted)
    trial, _, tracker = run({})
    places = "in the local fit of device 3, replica 0; in round 1, sequential executor, FedAvg"
    assert trial.reason == f"KeyError: 'sensor' ({places})" == tracker.ended[1]["error"]
    assert "Traceback" in trial.error


def test_overrides_that_make_no_config_are_a_failed_trial_with_a_run():
    trial, heard, tracker = run({"algorithm": "Scafold"})
    assert trial.status == "failed"
    assert tracker.started["params"]["algorithm"] == "FedAvg"  # the study's own
    assert "got 'Scafold'" in tracker.ended[1]["error"]
    assert len(heard) == 1


def test_the_scheduler_can_stop_a_trial():
    trial, heard, tracker = run({}, report=lambda trial: trial.rounds < 4)
    assert (trial.status, trial.rounds) == ("pruned", 4)
    assert trial.objective == heard[-1].objective > 0  # of the last evaluation, not the worst
    assert len(heard) == 2
    assert tracker.ended == ("FINISHED", {"rounds": "4", "pruned": "true"})


def test_an_objective_that_is_never_measured_fails_with_the_nearest_name():
    config = StandIn(study=study(objective=Objective(metric="valid/acuracy")))
    trial, heard, _ = run({}, config=config)
    assert trial.status == "failed"
    assert "got 'valid/acuracy': did you mean 'valid/accuracy'?" in trial.error
    assert heard[-1].objective == -WORST


def test_a_test_score_without_a_counterpart_on_validation_data_fails():
    """Only a run tells what a module's own steps log; else no trial of the study could be its best one."""

    class OnTestDataAlone(StandIn):
        def run(self, on_round, **named):
            def hidden(record):
                on_round(record._replace(metrics={k: v for k, v in record.metrics.items() if k[:6] != "valid/"}))

            super().run(hidden, **named)

    section = study(objective=Objective(metric="test/accuracy"))
    assert run({}, config=StandIn(study=section))[0].status == "finished"
    trial, *_ = run({}, config=OnTestDataAlone(study=section))
    assert trial.status == "failed"
    assert "must be measured as valid/accuracy, too, since validation data choose the best trial" in trial.error


def test_ctrl_c_closes_the_run():
    def interrupt(trial, save):
        raise KeyboardInterrupt

    tracker = Notes()
    with pytest.raises(KeyboardInterrupt):
        run_trial(StandIn(), Trial(number=0, algorithm="FedAvg"), report=interrupt, tracker=tracker)
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
