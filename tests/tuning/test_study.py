"""Whole studies on real Ray workers, and what a real MLflow server says of them."""

import io
import json
import os
import signal
import socket
import threading
import urllib.request

import pytest
import yaml
from ray import cloudpickle
from rich.console import Console

from flstudy.config import ConfigError, Confirm, Failures, Resources
from flstudy.study.records import read_records
from flstudy.study.results import list_studies
from flstudy.tracking.ui import mlflow_server
from flstudy.tuning import Asha, GridSearch, HyperBand
from flstudy.tuning.driver import carry_out
from tests.tuning import stand_in
from tests.tuning.stand_in import StandIn, study
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow
cloudpickle.register_pickle_by_value(stand_in)  # workers cannot import from tests


def prepared(folder, **changed):
    """A config whose study goes into the folder."""
    named = changed.pop("config", {})
    settings = study(name="small", folder=str(folder / "studies"), **changed)
    return StandIn(study=settings, store=f"sqlite:///{folder}/store/mlflow.db", **named)


@pytest.fixture(scope="module")
def done(tmp_path_factory, ray_cluster):
    folder = tmp_path_factory.mktemp("study")
    search = {
        "algorithm": {"choice": ["FedAvg", "Flash", "Raises", "Diverges", "Dies", "Hangs"]},
        "algorithm.lr": {"loguniform": [1e-3, 1]},
        "algorithm.tau": {"loguniform": [1e-5, 0.1]},
    }
    console = Console(file=io.StringIO())
    failures = Failures(retries=1, round_timeout_s=30.0)
    settings = {"trials": 7, "search": search, "failures": failures, "confirm": Confirm(seeds=2)}
    result = carry_out(prepared(folder, **settings), console, report=False)
    return folder, result, console.file.getvalue()


def test_every_trial_ends_and_the_study_goes_on(done):
    _, result, output = done
    assert len(result.trials) == 7 + 2  # two algorithms have a winner to confirm
    first = {trial.algorithm: trial for trial in result.trials[:6]}  # the algorithms take turns
    assert {name: trial.status for name, trial in first.items()} == {
        "FedAvg": "finished",
        "Flash": "finished",
        "Raises": "failed",
        "Diverges": "diverged",
        "Dies": "failed",
        "Hangs": "failed",
    }
    assert {name: trial.attempts for name, trial in first.items() if trial.attempts > 1} == {"Dies": 2, "Hangs": 2}
    assert "time.sleep" not in first["Hangs"].error  # C frames are not shown, the line that called it is
    assert 'stand_in.py", line' in first["Hangs"].error
    assert first["Hangs"].error.endswith("no round ended within study.failures.round_timeout_s = 30 s")
    assert first["Flash"].overrides == {"algorithm": "Flash", "algorithm.lr": 0.1, "algorithm.tau": 0.001}
    assert not result.interrupted
    assert not {winner.trial.algorithm for winner in result.best} & {"Raises", "Diverges", "Dies", "Hangs"}
    assert "starts again: the worker process died" in output
    assert "the third round is too much" in output
    assert "the worker process died" in output


def test_winners_are_trained_again_on_new_seeds(done):
    _, result, _ = done
    best = {winner.trial.number: winner.trial for winner in result.best}
    again = [trial for trial in result.trials if trial.stage == "confirm"]
    assert {trial.confirms for trial in again} == set(best)
    for trial in again:
        assert trial.status == "finished"
        assert trial.overrides == {**best[trial.confirms].overrides, "seeds": [1000, 1001]}
        run = result.run.store.client.get_run(trial.run_id)
        assert (run.data.tags["stage"], run.data.tags["confirms"]) == ("confirm", str(trial.confirms))
        assert run.info.run_name == f"{trial.number} {trial.algorithm} confirms {trial.confirms}"
        table = read_records(result.folder.path / "records" / f"{trial.number}.parquet")
        assert set(table["seed"].to_pylist()) == {1000, 1001}


def test_the_folder_tells_the_study(done):
    folder, result, _ = done
    assert result.folder.path == folder / "studies" / "small"
    expected = StandIn(study=study(name="small")).whole_study()
    assert yaml.safe_load((result.folder.path / "study.yaml").read_text()) == expected
    assert (result.folder.path / "optuna.journal").stat().st_size > 0
    listed = [trial.to_json() for trial in result.folder.read_trials()]
    assert [trial["number"] for trial in listed] == list(range(9))
    finished = next(trial for trial in listed if trial["status"] == "finished")
    assert finished["rounds"] == 6
    assert finished["metrics"]["valid/accuracy"] == finished["objective"]
    failed = next(trial for trial in listed if trial["algorithm"] == "Raises")
    assert failed["error"].strip().endswith("RuntimeError: the third round is too much")
    diverged = next(trial for trial in listed if trial["status"] == "diverged")
    assert diverged["metrics"]["train/loss"] is None
    for trial in listed:
        if trial["algorithm"] in ("Dies", "Hangs"):
            continue  # with its process, before the first rounds were on disk
        table = read_records(result.folder.path / "records" / f"{trial['number']}.parquet")
        assert max(table["round"].to_pylist()) == max(trial["rounds"], 1)


def test_an_mlflow_server_shows_the_study_over_http(done):
    folder, result, _ = done
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mlflow_server(f"sqlite:///{folder}/store/mlflow.db", port) as (address, _process):

        def ask(path, **body):
            query = urllib.request.Request(
                f"{address}/api/2.0/mlflow/{path}",
                data=json.dumps(body).encode() if body else None,
                headers={"Content-Type": "application/json"},
            )
            return json.loads(urllib.request.urlopen(query, timeout=LIMIT_S).read())

        experiment = ask("experiments/get-by-name?experiment_name=flstudy")["experiment"]["experiment_id"]
        runs = ask("runs/search", experiment_ids=[experiment], max_results=50)["runs"]
        tags = {run["info"]["run_id"]: {tag["key"]: tag["value"] for tag in run["data"]["tags"]} for run in runs}
        parents = [run for run in runs if "mlflow.parentRunId" not in tags[run["info"]["run_id"]]]
        assert [run["info"]["run_name"] for run in parents] == ["small"]
        assert parents[0]["info"]["status"] == "FINISHED"
        children = {trial.number: trial.run_id for trial in result.trials}
        assert len(set(children.values())) == 9
        assert set(children.values()) == {run for run, run_tags in tags.items() if "mlflow.parentRunId" in run_tags}
        for trial in result.trials:
            run = next(run for run in runs if run["info"]["run_id"] == trial.run_id)
            run_tags = tags[trial.run_id]
            assert run_tags["mlflow.parentRunId"] == parents[0]["info"]["run_id"]
            assert (run_tags["algorithm"], run_tags["drift"], run_tags["dataset"]) == (
                trial.algorithm,
                "SuddenDrift",
                "none",
            )
            assert run_tags["diverged"] == str(trial.status == "diverged").lower()
            assert run_tags["flstudy.trial"] == str(trial.number)
            assert {"version.torch", "version.ray", "version.optuna", "version.mlflow"} <= set(run_tags)
            assert run["info"]["status"] == ("FAILED" if trial.status == "failed" else "FINISHED")
            if trial.algorithm == "Dies":
                assert run_tags["error"].startswith("the worker process died")
                continue  # before it could tell its parameters
            if trial.algorithm == "Hangs":
                assert run_tags["error"].startswith("the trial hung")
                continue
            params = {param["key"]: param["value"] for param in run["data"]["params"]}
            assert params["algorithm.lr"] == str(trial.overrides["algorithm.lr"])
            if trial.status == "failed":
                assert run_tags["error"] == "RuntimeError: the third round is too much"
        best = next(trial for trial in result.trials if trial.status == "finished")

        def history(name):
            response = ask(f"metrics/get-history?run_id={best.run_id}&metric_key={name}&max_results=100")
            return {int(metric.get("step", 0)): metric["value"] for metric in response["metrics"]}

        assert list(history("train/loss")) == [1, 2, 3, 4, 5, 6]
        accuracy = history("valid/accuracy")
        assert list(accuracy) == [2, 4, 6]
        assert accuracy[6] == pytest.approx(best.objective)
        assert history("valid/accuracy_std")[6] == pytest.approx(0.01)
        assert history("seed44/valid/accuracy")[6] == pytest.approx(best.objective)
        artifacts = ask(f"artifacts/list?run_id={best.run_id}")["files"]
        assert [file["path"] for file in artifacts] == ["config.yaml"]


@pytest.mark.usefixtures("ray_cluster")
def test_too_many_failures_stop_the_study_with_a_reason(tmp_path):
    search = {"algorithm": {"choice": ["Raises"]}, "algorithm.lr": {"loguniform": [1e-3, 1]}}
    console = Console(file=io.StringIO(), width=300)
    result = carry_out(prepared(tmp_path, trials=30, search=search, failures=Failures(most=3)), console, report=False)
    assert 3 <= sum(trial.status == "failed" for trial in result.trials) < 30
    reason = "trials failed (study.failures.most), trial"
    assert reason in result.hopeless
    assert result.hopeless.endswith("with: RuntimeError: the third round is too much")
    assert f"the study stopped: {result.hopeless}" in console.file.getvalue()
    assert (result.failed, result.folder.state()["state"]) == (True, "failed")
    assert result.run.store.client.get_run(result.run.run_id).info.status == "FAILED"


@pytest.mark.usefixtures("ray_cluster")
def test_a_grid_counts_its_points(tmp_path):
    search = {
        "algorithm": {"choice": ["FedAvg", "Flash"]},
        "algorithm.lr": {"choice": [0.01, 0.1]},
        "algorithm.tau": {"choice": [0.001, 0.01]},
    }
    console = Console(file=io.StringIO(), width=200)
    settings = {"trials": 40, "search": search, "sampler": GridSearch(), "concurrent": 1}
    result = carry_out(prepared(tmp_path, **settings), console, report=False)
    assert len(result.trials) == 2 + 4
    assert "small: 1/6 trials, 17% of rounds" in console.file.getvalue()
    assert "small: 6/6 trials, 100% of rounds" in console.file.getvalue()
    assert result.folder.state()["trials"] == 6
    result.folder.write_state("interrupted")
    result.folder.write_trials(result.trials[:2])
    result.folder.config.write_text(yaml.safe_dump({"rounds": 6, "study": {"trials": 40}}))
    (listed,) = list_studies(tmp_path / "studies")
    assert (listed["trials"], listed["counts"]) == (6, {"finished": 2})
    result.folder.write_state("finished")
    assert list_studies(tmp_path / "studies")[0]["trials"] == 2  # all that it came to


@pytest.mark.usefixtures("ray_cluster")
def test_a_second_study_of_a_name_stops_on_ctrl_c_and_prunes(tmp_path):
    (tmp_path / "studies" / "small").mkdir(parents=True)
    search = {"algorithm": {"choice": ["FedAvg", "Flash"]}, "algorithm.lr": {"loguniform": [1e-3, 1]}}
    asha = Asha(grace_rounds=2, reduction_factor=2)
    config = {"rounds": 40, "round_s": 0.05}
    interrupted = prepared(tmp_path, trials=40, search=search, scheduler=asha, config=config)
    path = tmp_path / "studies" / "small-2"

    def interrupt():
        listed = path / "trials.jsonl"
        wait_until(lambda: listed.exists() and '"pruned"' in listed.read_text())
        os.kill(os.getpid(), signal.SIGINT)  # without it the study ends by itself, and is not said to be interrupted

    threading.Thread(target=interrupt, daemon=True).start()
    console = Console(file=io.StringIO(), width=200)
    result = carry_out(interrupted, console, report=False)
    output = console.file.getvalue()
    assert result.interrupted
    assert result.name == "small-2"
    assert "study 'small' exists already: this one is 'small-2'" in output
    assert "stopping: the results so far are kept" in output
    assert len(result.trials) < 40
    assert "pruned" in {trial.status for trial in result.trials}
    assert {trial.status for trial in result.trials} <= {"finished", "pruned", "interrupted"}
    client = result.run.store.client
    assert client.get_run(result.run.run_id).info.status == "KILLED"
    for trial in result.trials:
        run = client.get_run(trial.run_id)
        assert run.info.status == ("KILLED" if trial.status == "interrupted" else "FINISHED")
        assert run.data.tags.get("pruned", "false") == str(trial.status == "pruned").lower()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"search": {"algorithm.lr": {"uniform": [1, 0]}}}, "study.search.algorithm.lr: uniform must have low < high"),
        ({"scheduler": Asha(grace_rounds=7)}, "study.scheduler.grace_rounds must be ≤ rounds (6), got 7"),
        ({"scheduler": HyperBand(grace_rounds=7)}, "study.scheduler.grace_rounds must be ≤ rounds (6), got 7"),
        ({"resources": Resources(cpu=10_000)}, "study.resources.cpu must lie in [0, "),
    ],
)
def test_a_study_that_cannot_work_leaves_nothing_behind(tmp_path, changed, message):
    changed = {"search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}, **changed}
    with pytest.raises(ConfigError) as refusal:
        carry_out(prepared(tmp_path, **changed), report=False)
    assert message in str(refusal.value)
    assert not (tmp_path / "studies").exists()
