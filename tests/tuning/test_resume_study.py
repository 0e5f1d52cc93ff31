"""A study whose driver is killed goes on: nothing is lost, nothing is done twice."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest
import yaml
from rich.console import Console

from flstudy import cli
from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.reporting import write_report
from flstudy.study import StudyFolder, Trial, load_study
from flstudy.study.records import read_records
from flstudy.study.resuming import load_study_config
from flstudy.tracking.store import open_store
from flstudy.tuning.driver import carry_out
from flstudy.tuning.trial import run_trial
from tests.processes import command, family
from tests.small_study import slow_rounds
from tests.waiting import wait_until

ROUNDS = 150
SMALL = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 6, "participants": 2, "batch_size": 4, "steps": 4},
    "algorithm": "Scaffold",  # its devices keep state
    "rounds": ROUNDS,
    "evaluate_every": 5,
    "compile": False,
    "study": {
        "trials": 3,
        "search": {"algorithm.lr": {"loguniform": [1e-3, 1]}},
        "resources": {"cpu": 0.5},
        "snapshot_s": 0.2,
        "name": "small",
    },
}


@pytest.fixture
def written(tmp_path):
    algorithm, slow = slow_rounds(tmp_path)
    content = {**SMALL, "algorithm": algorithm, "store": f"sqlite:///{tmp_path}/mlflow.db"}
    content["study"] = {**SMALL["study"], "folder": str(tmp_path / "studies")}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "small.yaml", tmp_path / "studies" / "small", slow


def started(folder) -> list[dict]:
    """The list of trials, as far as there is one."""
    try:
        return [trial.to_json() for trial in StudyFolder(folder).read_trials()]
    except ValueError:
        return []


def ray_workers(pids) -> set[int]:
    """Those of some processes that are Ray's workers, not agents of its own."""
    names = {pid: command(pid) for pid in pids}
    return {pid for pid, name in names.items() if name.startswith("ray::") and "Agent" not in name}


@pytest.mark.slow
def test_a_killed_study_goes_on(written, ray_cluster):
    path, folder, slow = written
    driver = subprocess.Popen([sys.executable, "-m", "flstudy.cli", "tune", str(path)], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(started(folder)) == 3 and list((folder / "snapshots").glob("*.ckpt")), driver.poll)
    workers = ray_workers(family(driver.pid))
    assert workers
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {trial["number"]: trial["overrides"] for trial in started(folder)}
    assert json.loads((folder / "state.json").read_text())["state"] == "running"
    slow.unlink()
    wait_until(lambda: not ray_workers(workers))  # Ray ends those of a lost driver

    config = load(folder / "study.yaml", options=["--study.trials", "4"], command="tune")
    result = carry_out(config, Console(file=io.StringIO()), resume=folder, report=False)
    assert [trial.status for trial in result.trials] == ["finished"] * 4, [trial.error for trial in result.trials]
    assert {trial.number: trial.overrides for trial in result.trials[:3]} == before
    assert json.loads((folder / "state.json").read_text())["state"] == "finished"
    assert not list((folder / "snapshots").iterdir())

    client = result.run.store.client
    runs = client.search_runs([result.run.store.experiment_id], max_results=100)
    assert sorted(run.data.tags.get("flstudy.trial", "") for run in runs) == ["", "0", "1", "2", "3"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    for trial in result.trials:
        steps = [metric.step for metric in client.get_metric_history(trial.run_id, "train/loss")]
        assert steps == list(range(1, ROUNDS + 1))
        table = read_records(folder / "records" / f"{trial.number}.parquet")
        losses = table.filter(pc_equal(table, "train/loss"))
        assert losses["round"].to_pylist() == list(range(1, ROUNDS + 1))
        fresh = Trial(number=0, algorithm=trial.algorithm, overrides=trial.overrides)
        alone = run_trial(config, fresh, report=lambda trial, save: True)
        assert alone.objective == trial.objective  # bit for bit what nobody disturbed


@pytest.mark.slow
def test_a_killed_study_of_five_arms_goes_on_with_a_sixth(written, ray_cluster):
    """Two arms are of one class; all get equal budgets, and are named alike wherever a study is looked at."""
    path, folder, slow = written
    content = yaml.safe_load(path.read_text())
    patient = {"class_path": content["algorithm"], "init_args": {"server_lr": 0.5}}
    arms = {"FedAvg": {}, "FedYogi": {"search": {"server_lr": {"uniform": [0.01, 0.1]}}}, "Ditto": {}}
    arms |= {"Patient": patient, "Eager": {"class_path": content["algorithm"], "presets": [{"lr": 0.05}]}}
    content["study"] |= {"trials": 10, "arms": arms}
    path.write_text(yaml.safe_dump({**content, "rounds": 30}, sort_keys=False))
    driver = subprocess.Popen([sys.executable, "-m", "flstudy.cli", "tune", str(path)], stdout=subprocess.DEVNULL)
    wait_until(lambda: len(started(folder)) >= 5 and list((folder / "snapshots").glob("*.ckpt")), driver.poll)
    workers = ray_workers(family(driver.pid))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {trial["number"]: (trial["algorithm"], trial["overrides"]) for trial in started(folder)}
    assert 5 <= len(before) < 10  # it was in the middle
    slow.unlink()
    wait_until(lambda: not ray_workers(workers))

    sixth = "{class_path: FedYogi, init_args: {beta1: 0.5}, search: {server_lr: {uniform: [0.5, 0.6]}}}"
    options = ["--study.arms.Gentle-Yogi", sixth, "--study.trials", "12"]
    assert cli.main(["tune", "--resume", str(folder), *options]) == 0
    names = [*arms, "Gentle-Yogi"]
    results = load_study(folder)
    assert {trial.status for trial in results.trials} == {"finished"}
    assert Counter(trial.algorithm for trial in results.trials) == dict.fromkeys(names, 2)
    assert {t.number: (t.algorithm, t.overrides) for t in results.trials if t.number in before} == before
    trained = {trial.algorithm: results.trial_config(trial)["algorithm"] for trial in results.trials}
    assert trained["Patient"]["class_path"] == trained["Eager"]["class_path"]
    assert (trained["Patient"]["init_args"]["server_lr"], trained["Eager"]["init_args"]["server_lr"]) == (0.5, 1.0)
    assert 0.5 <= trained["Gentle-Yogi"]["init_args"]["server_lr"] <= 0.6

    report = write_report(folder)
    narrow = Console(file=io.StringIO(), width=80)
    report.print(narrow)
    lines = narrow.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 or all("flstudy" in line or "/" in line for line in lines if len(line) > 80)
    ranked = [table for table in report.tables if "Algorithm" in table.header]
    assert len(ranked) >= 3
    for table in ranked:
        shown = Console(file=io.StringIO(), width=80)
        shown.print(table)
        words = shown.file.getvalue().split()
        assert {name for name in names if name in words} == {*names}, table.title  # none is cut or folded
    summary, latex = report.summary_path.read_text(), report.latex_path.read_text()
    assert all(f"| {name} |" in summary and f" {name} &" in latex for name in names)
    assert {file.stem for file in (folder / "best").iterdir()} >= {*names}
    store = open_store(results.config["store"])
    runs = store.client.search_runs([store.experiment_id], filter_string="tags.stage = 'search'", max_results=100)
    assert Counter(run.data.tags["algorithm"] for run in runs) == dict.fromkeys(names, 2)


def pc_equal(table, name):
    """Which rows are of a metric."""
    import pyarrow.compute as pc

    return pc.equal(table["metric"], name)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["interrupted", "running"])  # stopped by a signal, killed
def test_a_study_that_was_stopped_behind_its_last_trial_comes_to_its_end(written, ray_cluster, state):
    path, folder, slow = written
    slow.unlink()
    quiet = Console(file=io.StringIO())
    before = carry_out(load(path, {"rounds": 5}, command="tune"), quiet).trials
    shutil.rmtree(folder / "report")
    written_state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**written_state, "state": state, "boot": "of yesterday"}))

    result = carry_out(load_study_config(StudyFolder(folder)), quiet, resume=folder)
    assert [trial.to_json() for trial in result.trials] == [trial.to_json() for trial in before]
    assert StudyFolder(folder).state()["state"] == "finished"
    assert (folder / "report" / "report.html").is_file()
    with pytest.raises(ConfigError, match=r"study\.trials must be > 3, the trials that the study has, got 3"):
        carry_out(load_study_config(StudyFolder(folder)), quiet, resume=folder)


@pytest.mark.slow
def test_what_cannot_be_resumed_is_refused(written, capsys):
    path, folder, _ = written
    assert cli.main(["tune", "--resume", str(folder)]) == 2
    assert f"--resume: there is no study {str(folder)!r}: see flstudy studies" in capsys.readouterr().err
    StudyFolder.create(load(path, command="tune")).write_config(load(path, command="tune"))
    assert cli.main(["tune", "--resume", str(folder), "--rounds", "5"]) == 2
    message = capsys.readouterr().err
    assert "a study goes on as it began; rounds cannot change" in message
    config = f"{folder / 'study.yaml'} --rounds 5 --import-from {folder}"
    assert f"begin another one, which takes over the trials that are the same: flstudy tune {config}" in message
    assert cli.main(["tune", "--resume", str(folder)]) == 2  # nobody has begun it, so its method may be anybody's
    assert "study small would run code that you have not agreed to" in capsys.readouterr().err
    StudyFolder(folder).write_state("interrupted", modules=str(path.parent))
    assert cli.main(["tune", "--resume", str(folder), "--trust"]) == 2
    assert "cannot be resumed: it has no state.json with the study's id" in capsys.readouterr().err
    assert cli.main(["tune", str(path), "--import-from", "nothing"]) == 2
    assert "--import-from: there is no study 'nothing': see flstudy studies" in capsys.readouterr().err
    assert cli.main(["tune", "--resume", str(folder), "--import-from", str(folder)]) == 2
    assert "leave out one of the two" in capsys.readouterr().err
    StudyFolder(folder).write_state("interrupted", study_id="x")
    with StudyFolder(folder).claim():
        assert cli.main(["tune", "--resume", str(folder)]) == 2
    assert re.search(
        rf"study small is running in process {os.getpid()} on .*: wait for its end", capsys.readouterr().err
    )


def test_a_study_that_goes_on_from_another_folder_reads_the_files_that_it_began_with(tmp_path, monkeypatch):
    lab, elsewhere = tmp_path / "lab", tmp_path / "elsewhere"
    for place in (lab, elsewhere):
        place.mkdir()
    dataset = {"class_path": "TableFile", "init_args": {"file": "rows.csv", "root": "data"}}
    content = {**SMALL, "population": {"dataset": dataset, "clients": 6, "participants": 2}}
    (lab / "small.yaml").write_text(yaml.safe_dump(content))
    (lab / "data").mkdir()
    (lab / "data" / "rows.csv").write_text("a,label,client\n" + "".join(f"{n},{n % 2},{n % 6}\n" for n in range(60)))
    monkeypatch.chdir(lab)
    config = load("small.yaml", command="tune")
    folder = StudyFolder.create(config)
    folder.write_config(config)
    folder.write_state("interrupted", study_id="x", cwd=str(lab))
    assert load_study_config(folder).flat()["population.dataset.root"] == "data"
    monkeypatch.chdir(elsewhere)
    assert load_study_config(folder).flat()["population.dataset.root"] == str(lab / "data")
