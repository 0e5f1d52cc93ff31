"""A study over a server that goes away: Ray workers lose nothing that the server does not get in the end."""

import io
import threading
import time

import pytest
from ray import cloudpickle
from rich.console import Console

from flstudy.study import StudyFolder
from flstudy.tracking.store import open_store
from flstudy.tracking.sync import sync_study
from flstudy.tuning.driver import carry_out
from tests.servers import Server, server
from tests.tuning import stand_in
from tests.tuning.stand_in import StandIn, study
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
cloudpickle.register_pickle_by_value(stand_in)  # workers cannot import from tests

TRIALS, ROUNDS = 6, 40
SEARCH = {"algorithm": {"choice": ["FedAvg", "Flash"]}, "algorithm.lr": {"loguniform": [1e-3, 1]}}


def disturb(mlflow: Server, folder, back_after_s: float | None) -> threading.Thread:
    """Kill the server in the middle of the study; and start it again."""

    def wait_and_kill() -> None:
        trials = StudyFolder(folder / "studies" / "small").read_trials
        wait_until(lambda: any(trial.status == "finished" for trial in trials()))
        mlflow.kill()
        if back_after_s is not None:
            time.sleep(back_after_s)
            mlflow.start()

    thread = threading.Thread(target=wait_and_kill, daemon=True)
    thread.start()
    return thread


def prepared(folder, mlflow: Server) -> StandIn:
    settings = study(name="small", folder=str(folder / "studies"), trials=TRIALS, search=SEARCH, concurrent=2)
    return StandIn(study=settings, store=mlflow.address, rounds=ROUNDS, round_s=0.05)


def assert_nothing_is_missing(store, trials) -> None:
    runs = store.client.search_runs([store.experiment_id], max_results=100)
    assert sorted(run.data.tags.get("flstudy.trial", "") for run in runs) == ["", *map(str, range(TRIALS))]
    assert {run.info.status for run in runs} == {"FINISHED"}
    by_id = {run.info.run_id: run for run in runs}
    for trial in trials:
        run = by_id[trial.run_id]
        assert run.data.params["algorithm.lr"] == str(trial.overrides["algorithm.lr"])
        expected = {name: range(1, ROUNDS + 1) for name in ("train/loss", "time/round_s")}
        expected["time/total_s"] = range(ROUNDS, ROUNDS + 1)  # of the whole run, with its last round
        for split in ("valid", "test"):
            names = [f"{split}/accuracy", f"{split}/accuracy_std", *(f"seed{s}/{split}/accuracy" for s in (0, 44, 56))]
            expected |= {name: range(2, ROUNDS + 1, 2) for name in names}
            of_all = [name.replace("/accuracy", "/mean_accuracy") for name in names]  # with the last round too
            expected |= {name: range(ROUNDS, ROUNDS + 1) for name in of_all}
        means = {name for name in expected if not name.startswith("seed") and not name.endswith("_std")}
        assert means | {"valid/accuracy_std", "seed44/valid/accuracy"} <= {*run.data.metrics} <= {*expected}
        for name in run.data.metrics:
            history = store.client.get_metric_history(run.info.run_id, name)
            assert [metric.step for metric in history] == list(expected[name]), (trial.number, name)


def test_a_study_outlives_a_server_that_comes_back(tmp_path):
    with server(tmp_path) as mlflow:
        thread = disturb(mlflow, tmp_path, back_after_s=3)
        console = Console(file=io.StringIO())
        result = carry_out(prepared(tmp_path, mlflow), console, report=False)
        thread.join()
        assert [trial.status for trial in result.trials] == ["finished"] * TRIALS
        if not result.delivered:  # the study was over before the server was there again
            sync_study(result.folder, result.run.store)
        assert_nothing_is_missing(result.run.store, result.folder.read_trials())
        assert str(sync_study(result.folder, result.run.store)) == "nothing was missing"


def test_a_study_outlives_a_server_that_stays_away(tmp_path):
    with server(tmp_path) as mlflow:
        thread = disturb(mlflow, tmp_path, back_after_s=None)
        console = Console(file=io.StringIO(), width=200)
        result = carry_out(prepared(tmp_path, mlflow), console, report=False)
        thread.join()
        assert [trial.status for trial in result.trials] == ["finished"] * TRIALS
        assert not result.delivered
        assert "MLflow is away: deliver later with flstudy sync small" in console.file.getvalue()
        mlflow.start()
        store = open_store(mlflow.address)
        sync_study(result.folder, store)
        assert_nothing_is_missing(store, result.folder.read_trials())
        best = store.client.get_run(result.run.run_id).data.tags
        assert best["best.run_id"] == result.folder.read_trials()[int(best["best.trial"])].run_id
