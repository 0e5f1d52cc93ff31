"""A scheduler's signals to a study: SIGUSR1 saves what runs, SIGTERM ends it so that nothing is lost."""

import io
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from rich.console import Console

from flstudy.config.config import load
from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records
from flstudy.tracking.store import open_store
from flstudy.tuning.driver import carry_out
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.stop_signal import Directive, Lookout, StopSignal
from flstudy.tuning.trial import run_trial
from tests.small_study import slow_rounds
from tests.tuning.test_resume_study import SMALL
from tests.waiting import LIMIT_S, wait_until

ROUNDS = 300


def test_a_trial_looks_out_for_its_study(tmp_path):
    stop_signal = StopSignal(tmp_path / "going")
    lookout = Lookout(stop_signal.path)
    assert lookout.look() is Directive.GO_ON
    stop_signal.ask_for_snapshots()
    assert lookout.look() is Directive.GO_ON  # the next look is too near
    assert lookout.look(closely=True) is Directive.SAVE
    assert lookout.look(closely=True) is Directive.GO_ON
    assert not stop_signal.is_sent
    stop_signal.send()
    stop_signal.send()
    assert stop_signal.is_sent
    assert lookout.look(closely=True) is Directive.STOP
    assert Lookout(stop_signal.path).look() is Directive.STOP  # a trial that starts too late
    assert Lookout(None).look(closely=True) is Directive.GO_ON


@pytest.mark.slow
def test_a_stopped_trial_loses_no_round(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL | {"rounds": 30}))
    config = load(tmp_path / "small.yaml", options=["--study.snapshot_s", "1000"], command="tune")
    stop_signal, reports = StopSignal(tmp_path / "going"), []
    (tmp_path / "snapshots").mkdir()

    def train(records, **more):
        def report(trial, save):
            reports.append((trial.status, trial.rounds))
            if trial.rounds == 15 and "stop_signal" in more:
                stop_signal.send()
                return False  # as Ray does a moment later
            return True

        trial = Trial(number=0, algorithm="Scaffold", overrides={"algorithm.lr": 0.1})
        return run_trial(config, trial, report=report, files=TrialFiles(tmp_path / records, **more))

    files = {"snapshot": tmp_path / "snapshots" / "0.ckpt", "stop_signal": stop_signal.path}
    stopped = train("stopped", **files)
    assert (stopped.status, stopped.rounds, stopped.error) == ("interrupted", 15, None)
    assert reports[-1] == ("interrupted", 15)
    assert files["snapshot"].is_file()
    StopSignal(stop_signal.path)
    reports.clear()
    resumed = train("stopped", snapshot=files["snapshot"])
    assert reports[0] == ("running", 20)  # five rounds after the snapshot
    assert (resumed.status, resumed.objective) == ("finished", train("alone").objective)
    assert values(tmp_path / "stopped") == values(tmp_path / "alone")


def load_rounds(snapshot):
    """The rounds of a snapshot."""
    return torch.load(snapshot, weights_only=True)["epoch"] + 1


def values(path):
    """What a trial recorded of every round, but for the seconds that it took."""
    rows = read_records(path).to_pylist()
    return sorted(
        (row["metric"], row["round"], row["replica"], repr(row["value"]))
        for row in rows
        if not row["metric"].startswith("time/")
    )


@pytest.mark.slow
def test_sigterm_ends_a_study_that_then_goes_on_as_if_nothing_had_been(tmp_path, ray_cluster):
    algorithm, slow = slow_rounds(tmp_path)
    content = SMALL | {"rounds": ROUNDS, "algorithm": algorithm, "store": f"sqlite:///{tmp_path}/mlflow.db"}
    content["study"] = SMALL["study"] | {"folder": str(tmp_path), "trials": 2, "snapshot_s": 1000.0}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "flstudy.cli", "tune", str(tmp_path / "small.yaml")]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folder = StudyFolder(tmp_path / "small")
    try:
        wait_until(lambda: all(any(folder.records(n).glob("0*")) for n in range(2)), driver.poll)
        driver.send_signal(signal.SIGUSR1)
        wait_until(lambda: all(folder.snapshot(n).is_file() for n in range(2)), driver.poll)
        driver.send_signal(signal.SIGTERM)
        driver.send_signal(signal.SIGTERM)  # some send it twice
        output = driver.communicate(timeout=LIMIT_S)[0]
    finally:
        driver.kill()  # does nothing where it has ended
    assert "every running trial writes a snapshot after its round" in output
    assert output.count("stopping: the results so far are kept") == 1
    assert f"flstudy tune --resume {folder.path}" in output
    assert "Traceback" not in output
    assert driver.returncode == 1  # no trial had finished: as after Ctrl-C
    assert folder.state()["state"] == "interrupted"
    stopped = folder.read_trials()
    assert [trial.status for trial in stopped] == ["interrupted"] * 2
    assert all(0 < trial.rounds < ROUNDS for trial in stopped)
    for trial in stopped:
        assert load_rounds(folder.snapshot(trial.number)) == trial.rounds  # the last one
    store = open_store(content["store"])
    runs = store.client.search_runs([store.experiment_id])
    assert [run.info.status for run in runs] == ["KILLED"] * 3

    slow.unlink()
    config = load(folder.config, command="tune")
    result = carry_out(config, Console(file=io.StringIO()), resume=folder.path, report=False)
    assert [trial.status for trial in result.trials] == ["finished"] * 2, [trial.error for trial in result.trials]
    trial = result.trials[0]
    again = Trial(number=0, algorithm=trial.algorithm, overrides=trial.overrides)
    alone = run_trial(config, again, report=lambda *_: True, files=TrialFiles(tmp_path / "alone"))
    assert alone.objective == trial.objective
    assert values(tmp_path / "alone") == values(folder.records(trial.number))
