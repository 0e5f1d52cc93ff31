"""A store that goes away costs nothing: what it missed it gets when it is back, or later from the study's folder."""

import json
import time
from pathlib import Path

import pytest
import yaml

from flstudy import cli
from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.federation import Record
from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.folder import FORMAT
from flstudy.study.records import RecordWriter
from flstudy.tracking.content import PARENT, STUDY_ID, TRIAL
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import open_store
from flstudy.tracking.sync import sync_study
from tests.servers import server
from tests.waiting import LIMIT_S, wait_until

SEEDS = [0, 44]
PER_ROUND = 5  # figures: train/loss and valid/accuracy, its spread, and two seeds
CONFIG = {
    "task": "Logistic",
    "population": {
        "dataset": "Digits",
        "clients": 6,
        "participants": 2,
        "drift": {"class_path": "SuddenDrift", "init_args": {"round": 30}},
    },
    "algorithm": "FedAvg",
    "rounds": 60,
    "seeds": SEEDS,
    "study": {"name": "small", "trials": 5, "search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}},
}


def record(r: int) -> Record:
    return Record(r, {"train/loss": [1.0 / r, 2.0 / r], "valid/accuracy": [0.5, 0.7]})


def keep(folder: StudyFolder, number: int, rounds: int) -> None:
    """A trial's records."""
    with RecordWriter(folder.records(number), SEEDS) as writer:
        for r in range(1, rounds + 1):
            writer.append(record(r))


def trial(number: int, status: str = "finished", rounds: int = 60, **more) -> Trial:
    fields = {"objective": 0.6, "synced": False, "started": 1.7e9, "ended": 1.7e9 + 60, **more}
    overrides = {"algorithm.lr": 0.1 * (number + 1)}
    return Trial(number=number, algorithm="FedAvg", overrides=overrides, status=Status(status), rounds=rounds, **fields)


def study_folder(parent: Path, *trials: Trial, **state) -> StudyFolder:
    """What a study leaves behind, but for its records."""
    folder = StudyFolder(parent / "studies" / "small")
    folder.report.mkdir(parents=True)
    (parent / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    folder.write_config(load(parent / "small.yaml", command="tune"))
    defaults = {"format": FORMAT, "study_id": "5" * 32, "state": "finished", "started": 1.7e9, "ended": 1.7e9 + 300}
    folder.state_file.write_text(json.dumps({**defaults, "environment": {}, **state}))
    folder.write_trials(trials)
    return folder


def steps(store, run_id: str, name: str) -> list[int]:
    return sorted(metric.step for metric in store.client.get_metric_history(run_id, name))


def assert_all_there(store, run_id: str, rounds: int) -> None:
    """Every figure of every round once."""
    data = store.client.get_run(run_id).data
    names = {"train/loss", "valid/accuracy", "valid/accuracy_std", "seed0/valid/accuracy", "seed44/valid/accuracy"}
    assert set(data.metrics) == names
    for name in names:
        assert steps(store, run_id, name) == list(range(1, rounds + 1)), name
    assert data.tags["rounds"] == data.tags["flstudy.delivered"] == str(rounds)


def trial_run(store, number: int = 0, **named) -> TrialRun:
    key = {STUDY_ID: "5" * 32, TRIAL: str(number)}
    return TrialRun(store, name=f"{number} FedAvg", key=key, every_s=0.1, **named)


def begun(run: TrialRun, rounds: int) -> None:
    """Some rounds are delivered, so that the store goes away in the middle."""
    run.start(params={"algorithm": "FedAvg"}, tags={}, seeds=SEEDS, config={"rounds": 60})
    for r in range(1, rounds + 1):
        run.log(record(r))
    wait_until(lambda: run.run_id is not None and len(steps(run.store, run.run_id, "train/loss")) == rounds)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    with server(tmp_path_factory.mktemp("server")) as running_server:
        yield running_server


@pytest.mark.slow
def test_a_server_that_comes_back_misses_nothing(mlflow):
    store = open_store(mlflow.address)
    run = trial_run(store, 1, patience_s=LIMIT_S)
    begun(run, 20)
    mlflow.kill()
    for r in range(21, 51):
        run.log(record(r))
    time.sleep(1.0)  # some attempts fail
    mlflow.start()
    for r in range(51, 61):
        run.log(record(r))
    wait_until(lambda: len(steps(store, run.run_id, "train/loss")) == 60)
    assert run.finish(tags={"rounds": "60"})
    assert_all_there(store, run.run_id, 60)
    runs = store.client.search_runs([store.experiment_id], f"tags.`{TRIAL}` = '1'")
    assert [(stored_run.info.run_id, stored_run.info.status) for stored_run in runs] == [(run.run_id, "FINISHED")]


def give_up(run, disturb) -> None:
    """End a run of sixty rounds whose server is disturbed after twenty, and does not come back before this returns."""
    begun(run, 20)
    disturb()
    for r in range(21, 61):
        run.log(record(r))
    time.sleep(0.5)  # some attempts fail
    assert not run.finish(tags={"rounds": "60"})


@pytest.mark.slow
def test_a_server_that_stays_away_holds_up_nothing_and_is_served_later(mlflow, tmp_path):
    folder = study_folder(tmp_path, trial(0))
    store = open_store(mlflow.address)
    run = trial_run(store)
    give_up(run, mlflow.kill)
    assert not run.delivered
    keep(folder, 0, 60)
    with pytest.raises(Exception, match="refused"):
        sync_study(folder, store)

    mlflow.start()
    delivered = len(steps(store, run.run_id, "train/loss"))
    assert delivered == 20
    sent = sync_study(folder, store)
    assert sent.counts["values"] == (60 - delivered) * PER_ROUND + 1  # and best/FedAvg
    assert (sent.counts["runs"], sent.run_ids) == (1, {0: run.run_id})  # the study's own
    assert_all_there(store, run.run_id, 60)
    assert store.client.get_run(run.run_id).info.status == "FINISHED"
    assert str(sync_study(folder, store)) == "nothing was missing"


@pytest.mark.slow
def test_a_server_that_hangs_does_not_hold_up_a_trial_for_ever(mlflow):
    give_up(trial_run(open_store(mlflow.address), 2), mlflow.freeze)


@pytest.mark.slow
def test_an_empty_store_gets_the_whole_study(tmp_path):
    error = "Traceback\n  line 3\nRuntimeError: too much\n"
    ends = [("finished", 60), ("pruned", 20), ("diverged", 7), ("interrupted", 30), ("running", 26)]
    trials = [trial(n, status, rounds) for n, (status, rounds) in enumerate(ends)]
    folder = study_folder(tmp_path, *trials, trial(5, "failed", 3, error=error))
    for n, (_, rounds) in enumerate(ends):
        keep(folder, n, rounds)
    (folder.report / "report.html").write_text("<h1>small</h1>")
    store = open_store(f"sqlite:///{tmp_path}/other.db")
    sent = sync_study(folder, store)
    rounds = sum(rounds for _, rounds in ends)
    assert (sent.counts["runs"], sent.counts["values"], sent.counts["ends"]) == (7, rounds * PER_ROUND + 1, 7)

    runs = {run.info.run_id: run for run in store.client.search_runs([store.experiment_id])}
    assert len(runs) == 7
    trials = [runs[sent.run_ids[n]] for n in range(6)]
    status = [run.info.status for run in trials]
    assert status == ["FINISHED", "FINISHED", "FINISHED", "KILLED", "KILLED", "FAILED"]
    for n, (run, (end, rounds)) in enumerate(zip(trials, ends, strict=False)):
        assert_all_there(store, run.info.run_id, rounds)
        assert run.data.params["algorithm.lr"] == str(0.1 * (n + 1))
        assert run.data.params["population.clients"] == "6"
        assert run.data.tags["drift"] == "SuddenDrift"
        assert run.info.run_name == f"{n} FedAvg"
        assert (run.info.start_time, run.info.end_time) == (1700000000000, 1700000060000)
        bad = {name for name in ("pruned", "diverged", "failed", "interrupted") if run.data.tags.get(name) == "true"}
        assert bad == ({"interrupted"} if end == "running" else {end} - {"finished"})
        assert [file.path for file in store.client.list_artifacts(run.info.run_id)] == ["config.yaml"]
    assert trials[5].data.tags["error"] == "RuntimeError: too much"
    (parent,) = {run.data.tags[PARENT] for run in trials}
    study = runs[parent]
    assert (study.info.run_name, study.info.status) == ("small", "FINISHED")
    assert study.data.params["study.trials"] == "5"
    assert study.data.metrics == {"best/FedAvg": 0.6}
    assert study.data.tags["best.run_id"] == sent.run_ids[0]
    assert {file.path for file in store.client.list_artifacts(parent)} == {"config.yaml", "report", "trials.jsonl"}
    assert [file.path for file in store.client.list_artifacts(parent, "report")] == ["report/report.html"]
    assert {trial.run_id for trial in folder.read_trials()} == set(sent.run_ids.values())

    assert str(sync_study(folder, store)) == "nothing was missing"
    (folder.report / "report.html").write_text("<h1>SMALL</h1>")
    assert str(sync_study(folder, store)) == "1 file"


@pytest.mark.slow
def test_only_what_is_missing_is_sent(tmp_path):
    folder = study_folder(tmp_path, trial(0), state="interrupted")
    keep(folder, 0, 60)
    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    run = trial_run(store, patience_s=LIMIT_S)
    run.start(params={}, tags={}, seeds=SEEDS)
    for r in (*range(1, 11), *range(31, 41)):  # with a hole
        run.log(record(r))
    run.finish("KILLED", tags={"interrupted": "true"})
    assert run.delivered
    sent = sync_study(folder, store)
    assert sent.counts["values"] == 40 * PER_ROUND + 1
    assert_all_there(store, run.run_id, 60)
    tags = store.client.get_run(run.run_id).data.tags
    assert tags["interrupted"] == "false"  # it went on, and finished
    assert str(sync_study(folder, store)) == "nothing was missing"


@pytest.mark.slow
def test_trials_of_a_study_s_run_that_was_deleted_belong_to_the_new_one(tmp_path):
    folder, store = study_folder(tmp_path, trial(0), trial(1)), open_store(f"sqlite:///{tmp_path}/mlflow.db")
    keep(folder, 0, 60), keep(folder, 1, 60)
    sync_study(folder, store)
    (parent,) = (run for run in store.client.search_runs([store.experiment_id]) if TRIAL not in run.data.tags)
    store.client.delete_run(parent.info.run_id)
    delivery = sync_study(folder, store)
    assert delivery.counts["runs"] == 1
    runs = store.client.search_runs([store.experiment_id])
    (again,) = (run for run in runs if TRIAL not in run.data.tags)
    assert again.info.run_id != parent.info.run_id
    assert {run.data.tags[PARENT] for run in runs if TRIAL in run.data.tags} == {again.info.run_id}
    assert str(sync_study(folder, store)) == "nothing was missing"


@pytest.mark.slow
def test_the_best_trial_of_the_run_is_that_of_the_study(tmp_path):
    """Whatever was ahead when it was pruned, and whatever led before it was trained again."""
    ahead = trial(1, "pruned", 20, objective=0.9)
    searched = trial(0, objective=0.8), ahead, trial(2, objective=0.79), trial(3, "diverged", 7, objective=0.0)
    again = [
        trial(4, objective=0.7, stage="confirm", confirms=0),
        trial(5, objective=0.75, stage="confirm", confirms=2),
    ]
    folder = study_folder(tmp_path, *searched, *again)
    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    sent = sync_study(folder, store)
    run = store.find({STUDY_ID: "5" * 32, "flstudy.kind": "study"})
    best = {name.removeprefix("best."): value for name, value in run.data.tags.items() if name.startswith("best.")}
    assert best == {"trial": "2", "algorithm": "FedAvg", "run_id": sent.run_ids[2]}
    assert run.data.metrics == {"best/FedAvg": 0.75}
    assert "| valid/accuracy | objective, max | fraction | Mean over devices on" in run.data.tags["mlflow.note.content"]
    link = f"[2 FedAvg](#/experiments/{store.experiment_id}/runs/{sent.run_ids[2]}?workflowType=machine_learning)"
    assert f"| 1 | FedAvg | 0.75 |  | {link} |" in run.data.tags["mlflow.note.content"]
    confirming = store.client.get_run(sent.run_ids[5])
    assert (confirming.info.run_name, confirming.data.tags["confirms"]) == ("5 FedAvg confirms 2", "2")


@pytest.mark.slow
def test_the_command_says_what_it_delivered(tmp_path, capsys):
    folder = study_folder(tmp_path, trial(0))
    keep(folder, 0, 60)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    assert cli.main(["sync", str(folder.path), "--store", store]) == 0
    assert capsys.readouterr().out.startswith("small: 2 runs, 301 values, ")
    assert cli.main(["sync", str(folder.path), "--store", store]) == 0
    assert capsys.readouterr().out == f"small: nothing was missing ({store})\n"
    assert cli.main(["sync", str(folder.path), "--store", "http://127.0.0.1:9"]) == 2
    assert "store must be a server that answers" in capsys.readouterr().err
    assert cli.main(["sync", str(folder.path / "absent")]) == 2
    assert "there is no study" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_without_a_state_is_refused(tmp_path):
    folder = study_folder(tmp_path, trial(0))
    folder.state_file.unlink()
    with pytest.raises(ConfigError, match="must be the folder of a study that was started"):
        sync_study(folder, open_store(f"sqlite:///{tmp_path}/mlflow.db"))
