"""The study's writer: what is acknowledged is on disk, whole or not at all, and of the present attempt only."""

import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import ray
import yaml

from flstudy.config.config import load
from flstudy.federation import Record
from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records, rounds_of
from flstudy.tracking.store import open_store
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.outbox import PART, UNACKNOWLEDGED, Outbox, WriterLostError
from flstudy.tuning.shortage import DeniedError
from flstudy.tuning.trial import run_trial
from flstudy.tuning.writer import Writer
from tests.processes import command, family
from tests.small_study import slow_rounds
from tests.tuning.test_resume_study import SMALL
from tests.tuning.test_shortage import full
from tests.tuning.test_signals import values
from tests.waiting import LIMIT_S, wait_until

IDENTITY = {"study": "s", "study_id": "s", "parent": "0", "tags": {}, "environment": {}}
TRIAL = Trial(number=3, algorithm="FedAvg")


class Near:
    """A writer of this process behind a handle like Ray's; messages are answered when somebody waits for them."""

    def __init__(self, writer):
        self.writer, self.under_way, self.most = writer, 0, 0
        self.open, self.tell = (self.method(name) for name in ("open", "tell"))

    def method(self, name):
        near = self

        class Method:
            @staticmethod
            def remote(*arguments):
                near.under_way += 1
                near.most = max(near.most, near.under_way)
                return lambda: near.answer(name, arguments)

        return Method

    def answer(self, name, arguments):
        self.under_way -= 1
        return getattr(self.writer, name)(*arguments)


@pytest.fixture
def near(tmp_path, monkeypatch):
    """A writer, and the folder that it writes to."""
    monkeypatch.setattr(ray, "get", lambda message, **named: message())
    monkeypatch.setattr(ray, "wait", lambda messages, **named: (messages, []))

    class Here:
        def get_node_id(self):
            return "here"

    monkeypatch.setattr(ray, "get_runtime_context", Here)
    folder = StudyFolder(tmp_path / "s")
    for name in ("records", "snapshots", "models"):
        (folder.path / name).mkdir(parents=True)
    folder.stop_signal_file.touch()
    writer = Near(Writer(folder, open_store(f"sqlite:///{tmp_path}/mlflow.db"), {}, IDENTITY, ["valid/accuracy"]))
    yield folder, writer
    writer.writer.close()


@pytest.mark.slow
def test_a_trial_s_files_arrive_whole(near):
    folder, writer = near
    outbox = Outbox(writer, TRIAL)
    rounds, state, lost = outbox.begin([0, 44])
    assert (state, lost) == (None, None)
    content = os.urandom(2 * PART + 5)
    outbox.save(lambda path: path.write_bytes(content))
    assert folder.snapshot(3).read_bytes() == content
    for r in range(1, 1001):
        rounds.append(Record(r, {"train/loss": [1.0 / r, 2.0 / r], "fit/steps": [1.0, 2.0]}))
        assert writer.under_way <= UNACKNOWLEDGED
    rounds.close()
    assert writer.most == UNACKNOWLEDGED + 1
    records = list(rounds_of(read_records(folder.records(3))))
    assert [record.round for record in records] == list(range(1, 1001))
    assert records[9].metrics == {"train/loss": [0.1, 0.2], "fit/steps": [1.0, 2.0]}
    assert [record.metrics for record in outbox.earlier_rounds()] == [record.metrics for record in records]
    outbox.close()
    assert not outbox.place.exists()


@pytest.mark.slow
def test_half_a_file_and_a_damaged_one_count_for_nothing(near):
    folder, writer = near
    folder.snapshot(3).write_bytes(b"the last one")
    outbox = Outbox(writer, TRIAL)
    outbox.ask("put", "snapshots/3.ckpt", b"half of", None)
    assert folder.snapshot(3).read_bytes() == b"the last one"
    with pytest.raises(ValueError, match="damaged on its way"):
        outbox.ask("put", "snapshots/3.ckpt", b" another", zlib.crc32(b"half or another"))
    assert folder.snapshot(3).read_bytes() == b"the last one"
    assert not list(folder.path.glob("*/*.tmp"))
    for outside in ("snapshots/../study.yaml", "/etc/passwd", "trials.jsonl"):
        with pytest.raises(ValueError, match="snapshots and models only"):
            outbox.ask("put", outside, b"", 0)


@pytest.mark.slow
def test_an_attempt_that_was_given_up_says_nothing_more(near):
    _, writer = near
    first = Outbox(writer, TRIAL)
    second = Outbox(writer, TRIAL)
    second.begin([0])
    with pytest.raises(WriterLostError, match="nothing of this attempt of trial 3"):
        first.begin([0])


@pytest.mark.slow
def test_a_full_disk_is_told_in_its_sentence(near, monkeypatch):
    _, writer = near
    outbox = Outbox(writer, TRIAL)
    rounds, _, _ = outbox.begin([0])
    monkeypatch.setattr("flstudy.study.records.pq.write_table", full)
    rounds.append(Record(1, {"train/loss": [1.0]}))
    with pytest.raises(DeniedError, match="is full"):
        rounds.close()


@pytest.mark.slow
def test_a_trial_through_the_writer_equals_one_on_its_own(near, tmp_path):
    """It stops and goes on once; records are equal, and MLflow has each round once."""
    folder, writer = near
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL | {"rounds": 30}))
    config = load(tmp_path / "small.yaml", options=["--study.snapshot_s", "0"], command="tune")
    alone = Trial(number=3, algorithm="Scaffold", overrides={"algorithm.lr": 0.1})
    run_trial(config, alone, report=lambda *_: True, files=TrialFiles(tmp_path / "alone"))

    def report(trial, save):
        if trial.rounds == 15:
            raise WriterLostError

    outbox = Outbox(writer, alone)
    with pytest.raises(WriterLostError):
        run_trial(config, Trial(**vars(alone)), report=report, files=outbox, tracker=outbox)
    outbox = Outbox(writer, alone)
    trial = run_trial(config, Trial(**vars(alone)), report=lambda *_: True, files=outbox, tracker=outbox)
    writer.writer.close()
    assert (trial.status, trial.objective) == ("finished", alone.objective)
    assert values(folder.records(3)) == values(tmp_path / "alone")
    assert folder.model(3).is_file()
    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    run = store.find({"flstudy.study_id": "s", "flstudy.trial": "3"})
    steps = [metric.step for metric in store.client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == list(range(1, 31))
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_a_worker_imports_nothing_of_tracking():
    code = "import sys; from flstudy.tuning import worker; from flstudy.config import config\n"
    code += "assert not [name for name in sys.modules if name.startswith(('mlflow', 'flstudy.tracking'))]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the writer in /proc")
def test_a_killed_writer_costs_no_round(tmp_path):
    algorithm, slow = slow_rounds(tmp_path)
    content = SMALL | {"rounds": 150, "algorithm": algorithm, "store": f"sqlite:///{tmp_path}/mlflow.db"}
    content["study"] = SMALL["study"] | {"folder": str(tmp_path), "trials": 2}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    tune = [sys.executable, "-m", "flstudy.cli", "tune", str(tmp_path / "small.yaml")]
    driver = subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folder = StudyFolder(tmp_path / "small")
    try:
        wait_until(lambda: list(folder.path.glob("snapshots/*.ckpt")), driver.poll)
        wait_until(lambda: writer_below(driver.pid), driver.poll)
        os.kill(writer_below(driver.pid), signal.SIGKILL)
        slow.unlink()
        output = driver.communicate(timeout=LIMIT_S)[0]
    finally:
        driver.kill()
    assert driver.returncode == 0, output
    assert "Traceback" not in output
    trials = folder.read_trials()
    assert [trial.status for trial in trials] == ["finished"] * 2
    assert max(trial.attempts for trial in trials) > 1
    store = open_store(content["store"])
    assert len(store.client.search_runs([store.experiment_id])) == 3
    config = load(folder.config, command="tune")
    for trial in trials:
        steps = [metric.step for metric in store.client.get_metric_history(trial.run_id, "train/loss")]
        assert steps == list(range(1, 151))
        again = Trial(number=0, algorithm=trial.algorithm, overrides=trial.overrides)
        run_trial(config, again, report=lambda *_: True, files=TrialFiles(tmp_path / f"alone{trial.number}"))
        assert values(tmp_path / f"alone{trial.number}") == values(folder.records(trial.number))


def writer_below(driver):
    """The process of the study's writer; None where there is none."""
    return next((pid for pid in family(driver) if command(pid).startswith("ray::Writer")), None)
