"""Runs: complete, found again, written by several processes at once, and never in the trial's way."""

import math
import threading

import pytest

from flstudy.federation import Record
from flstudy.metrics.registry import METRICS
from flstudy.study import Trial
from flstudy.tracking.content import (
    TRIAL_METRICS,
    TrialMetrics,
    environment,
    error_tags,
    round_values,
    trial_identity,
)
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import Store, open_store
from tests.processes import store_writers
from tests.waiting import LIMIT_S, wait_until

SEEDS = [0, 44]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


def trial_run(store, number, **named):
    key = {"flstudy.study_id": "s", "flstudy.trial": str(number)}
    return TrialRun(store, name=f"{number} Flash", key=key, **{"patience_s": LIMIT_S, **named})


def write(store, number, rounds):
    run = trial_run(store, number, every_s=0.1)
    run.start(params={"algorithm": "Flash", "algorithm.lr": 0.1}, tags={"algorithm": "Flash"}, seeds=SEEDS)
    for r in range(1, rounds + 1):
        run.log(Record(r, {"train/loss": [1.0, 3.0], "valid/accuracy": [0.5, 0.7]}))
    run.finish()
    return run.run_id


def steps(store, run_id, name):
    return [metric.step for metric in store.client.get_metric_history(run_id, name)]


@pytest.mark.slow
def test_a_run_has_means_spreads_and_seeds(store):
    run = trial_run(store, "figures", tags={"stage": "search"})
    run.start(
        params={"algorithm.lr": 0.1}, tags={"algorithm": "Flash", "drift": "none"}, seeds=SEEDS, config={"rounds": 2}
    )
    run.log(Record(1, {"train/loss": [1.0, 3.0], "valid/accuracy": [0.5, 0.7]}))
    run.log(Record(2, {"train/loss": [math.nan, 3.0], "valid/accuracy": [0.5, 0.9]}))
    run.finish(tags={"rounds": "2"})
    stored_run = store.client.get_run(run.run_id)
    assert stored_run.info.status == "FINISHED"
    assert stored_run.data.params == {"algorithm.lr": "0.1"}
    assert stored_run.data.tags["stage"] == "search"
    assert stored_run.data.tags["rounds"] == "2"
    metrics = stored_run.data.metrics
    assert metrics["valid/accuracy"] == pytest.approx(0.7)
    assert metrics["valid/accuracy_std"] == pytest.approx(0.2 * math.sqrt(2))
    assert metrics["seed0/valid/accuracy"] == 0.5
    assert metrics["seed44/valid/accuracy"] == 0.9
    assert math.isnan(metrics["train/loss"])
    assert "train/loss_std" not in metrics
    assert [file.path for file in store.client.list_artifacts(run.run_id)] == ["config.yaml"]


@pytest.mark.slow
def test_a_second_start_goes_on_in_the_same_run(store):
    first, second = write(store, "again", 2), write(store, "again", 3)
    assert first == second
    assert first != write(store, "other", 1)
    assert write(store, "a user's", 1) == write(store, "a user's", 1)


@pytest.mark.slow
def test_a_failure_keeps_its_traceback(store):
    run = trial_run(store, "failure")
    run.start(params={}, tags={}, seeds=SEEDS)
    run.finish("FAILED", error="Traceback\n  line 3\nRuntimeError: too much\n")
    stored_run = store.client.get_run(run.run_id)
    assert stored_run.info.status == "FAILED"
    assert stored_run.data.tags["error"] == "RuntimeError: too much"
    assert "line 3" in stored_run.data.tags["mlflow.note.content"]
    assert error_tags(None) == {}


def test_a_trial_is_found_again_by_its_key_below_its_study():
    trial = Trial(number=7, algorithm="Flash", stage="confirm", confirms=3)
    study = {"study": "moving", "study_id": "s", "parent": "0" * 32}
    key, name, tags = trial_identity(trial, **study, tags={"drift": "none"}, environment={"version.torch": "2"})
    assert key == {"flstudy.study_id": "s", "flstudy.trial": "7"}
    assert name == "7 Flash confirms 3"
    assert tags["mlflow.parentRunId"] == "0" * 32
    assert {"stage": "confirm", "confirms": "3", "diverged": "false", "drift": "none"}.items() <= tags.items()


def test_what_a_metric_is_decides_whether_its_spread_and_seeds_are_logged():
    def names(metric):
        return [name for name, _ in round_values({metric: [0.5, 0.75]}, SEEDS)]

    assert names("traffic/bits") == ["traffic/bits"]
    assert names("test/loss") == ["test/loss", "test/loss_std"]
    seeds = ["seed0/test/mean_accuracy", "seed44/test/mean_accuracy"]
    assert names("test/mean_accuracy") == ["test/mean_accuracy", "test/mean_accuracy_std", *seeds]
    assert names("test/accuracy_spread") == ["test/accuracy_spread", "test/accuracy_spread_std"]


def test_training_and_evaluations_come_before_bookkeeping_and_what_decides_before_both():
    """In the order of a run's overview."""
    logged = ["fit/steps", "time/round_s", "train/loss", "valid/accuracy", "controller/loss", "valid/dip"]
    metrics = {name: [0.5] for name in logged}
    names = [name for name, _ in round_values(metrics, [0])]
    assert names[:3] == ["train/loss", "valid/accuracy", "valid/dip"]
    assert names[-3:] == ["fit/steps", "time/round_s", "controller/loss"]
    assert [name for name, _ in round_values(metrics, [0], first=["time/round_s", "valid/dip"])][:2] == [
        "time/round_s",
        "valid/dip",
    ]


def rounds_of_every_metric(seeds):
    """Rounds of which only the later ones are evaluated, and the last one has what a whole run tells."""
    for r in range(1, 5):
        measured = [name for name, metric in METRICS.items() if metric.measured == "round"]
        measured += [f"train/of_a_module_{place}" for place in range(10)]
        measured += [name for name, metric in METRICS.items() if metric.measured == "evaluation" and r % 2 == 0]
        measured += [name for name, metric in METRICS.items() if metric.measured == "run" and r == 4]
        yield {name: [0.1 * r + seed for seed in seeds] for name in measured}


OF_A_MODULE = [f"valid/of_a_module_{place}" for place in range(4)]


@pytest.mark.parametrize("seeds", [[0], [0, 44, 56], list(range(20))])
def test_a_trial_shows_few_metrics_each_once_and_what_its_study_decides_by(seeds):
    decisive = ["test/accuracy", "acc@1", "energy/joules"]
    choice, shown = TrialMetrics(decisive, seeds), {}
    for metrics in rounds_of_every_metric(seeds):
        values = list(choice.round_values({**metrics, "acc@1": [0.5] * len(seeds)}))
        assert len({*values}) == len(dict(values)) == len(values)
        assert {*shown} & {*metrics} <= {*dict(values)}  # a choice is for good
        shown |= dict(values)
    assert len(shown) == TRIAL_METRICS
    main = {"train/loss", "valid/accuracy", "test/accuracy", "valid/dip", "traffic/up_bytes", "time/total_s"}
    assert {"test/accuracy", "acc_1", "energy/joules", *main} <= {*shown}
    seed_names = {name for name in shown if name.startswith("seed")}
    assert len(seed_names) == {1: 0, 3: 3, 20: 0}[len(seeds)]
    assert all(name.endswith("/test/accuracy") for name in seed_names)
    assert not any(name.startswith("fit/") for name in shown)


def test_a_trial_shows_what_its_module_measures():
    seeds, shown = [0, 44, 56], set()
    choice = TrialMetrics(["valid/accuracy"], seeds)
    for r in (1, 2):
        measured = [name for name, metric in METRICS.items() if not metric.needs]
        measured += [*OF_A_MODULE, "valid/accuracy", "valid/loss"] if r == 2 else []
        shown |= {name for name, _ in choice.round_values({name: [0.5] * 3 for name in measured})}
    assert {*OF_A_MODULE, "valid/accuracy_std", "seed44/valid/accuracy"} <= shown
    assert "valid/loss_std" not in shown


def test_a_trial_goes_on_with_the_metrics_that_its_run_has():
    rounds = list(rounds_of_every_metric([0]))
    whole, begun = TrialMetrics(["valid/accuracy"], [0]), TrialMetrics(["valid/accuracy"], [0])
    names = [{name for name, _ in whole.round_values(metrics)} for metrics in rounds]
    before = {name for metrics in rounds[:2] for name, _ in begun.round_values(metrics)}
    resumed = TrialMetrics(["valid/accuracy"], [0], before)
    assert [{name for name, _ in resumed.round_values(metrics)} for metrics in rounds[2:]] == names[2:]


def test_a_trial_shows_nothing_but_its_study_s_decisive_metrics_where_these_are_many():
    decisive = [name for name in METRICS if name.startswith(("server/", "controller/", "detector/", "privacy/"))]
    choice = TrialMetrics(decisive, [0, 44])
    shown = {name for metrics in rounds_of_every_metric([0, 44]) for name, _ in choice.round_values(metrics)}
    assert {*decisive} <= shown
    assert not any(name.startswith(("seed", "train/of_a_module")) for name in shown)


@pytest.mark.slow
def test_many_metrics_go_in_several_calls(store):
    run_id = write(store, "many", 700)  # 700 rounds of 5 figures
    assert steps(store, run_id, "valid/accuracy") == list(range(1, 701))


def test_logging_waits_for_nobody(store, monkeypatch):
    logged, log_batch = threading.Event(), store.client.log_batch

    def after_all_is_logged(*arguments, **named):
        assert logged.wait(LIMIT_S)
        return log_batch(*arguments, **named)

    monkeypatch.setattr(store.client, "log_batch", after_all_is_logged)
    run = trial_run(store, "quick")
    run.start(params={}, tags={}, seeds=SEEDS)
    for r in range(1, 101):
        run.log(Record(r, {"train/loss": [1.0, 1.0]}))
    logged.set()
    run.finish()
    assert len(steps(store, run.run_id, "train/loss")) == 100


@pytest.mark.slow
def test_a_store_that_stumbles_loses_nothing(store, monkeypatch):
    stumbles = iter([True, True, False, True, True])

    def unsteady(call):
        def stumbling(*arguments, **named):
            if next(stumbles, False):
                raise OSError("database is locked")
            return call(*arguments, **named)

        return stumbling

    monkeypatch.setattr(store.client, "log_batch", unsteady(store.client.log_batch))
    run_id = write(store, "stumbling", 5)
    assert steps(store, run_id, "train/loss") == [1, 2, 3, 4, 5]
    assert store.client.get_run(run_id).info.status == "FINISHED"


@pytest.mark.slow
def test_a_store_that_is_gone_never_fails_the_trial(caplog):
    gone = Store("http://127.0.0.1:9", "0")
    run = trial_run(gone, "gone", patience_s=0.5)
    run.start(params={}, tags={}, seeds=SEEDS)
    run.log(Record(1, {"train/loss": [1.0, 1.0]}))
    run.finish()
    assert run.run_id is None
    assert "gone" in caplog.text


@pytest.mark.slow
def test_a_run_that_nobody_waits_for_gives_up_by_itself(caplog):
    run = trial_run(Store("http://127.0.0.1:9", "0"), "left", away_s=0.5)
    run.start(params={}, tags={}, seeds=SEEDS)
    run.end()
    wait_until(lambda: "MLflow has not got all of left Flash" in caplog.text)
    assert not run.settle()


@pytest.mark.slow
def test_two_processes_write_to_one_sqlite_store(store):
    forked = store_writers()
    writers = [forked.Process(target=write, args=(store, f"process{i}", 300)) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(LIMIT_S)
    assert [writer.exitcode for writer in writers] == [0, 0]
    for i in range(2):
        run = store.find({"flstudy.study_id": "s", "flstudy.trial": f"process{i}"})
        assert run.info.status == "FINISHED"
        assert steps(store, run.info.run_id, "seed44/valid/accuracy") == list(range(1, 301))


def test_the_environment_names_versions():
    tags = environment()
    assert {"version.torch", "version.lightning", "version.mlflow", "version.flstudy"} <= set(tags)
