"""What a study does when the machine denies it something: a full disk, one that cannot be written to, memory."""

import errno
import io
import os
import shutil
import subprocess

import pytest
import yaml
from rich.console import Console

from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.study import StudyFolder, Trial
from flstudy.study import folder as folder_module
from flstudy.study.records import RecordWriter
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.proposals import result_of
from flstudy.tuning.shortage import MEMORY, check_disks, remedy, shortage
from flstudy.tuning.trial import run_trial
from flstudy.tuning.trial_table import TrialTable
from tests.tuning.stand_in import StandIn, proposal
from tests.tuning.test_resume_study import SMALL
from tests.tuning.test_signals import values

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL | {"rounds": 60}))
    options = ["--study.snapshot_s", "0", "--study.folder", str(tmp_path / "studies")]
    return load(tmp_path / "small.yaml", options=options, command="tune")


@pytest.fixture
def mounted(tmp_path):
    """A disk of 96 kB; what is done to it: remount with other options."""
    place = tmp_path / "mounted"
    place.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a tmpfs")

    mount("size=96k")
    yield place, mount
    subprocess.run(["umount", str(place)], check=True)


def train(config, records, snapshot=None):
    trial = Trial(number=0, algorithm="Scaffold", overrides={"algorithm.lr": 0.1})
    return run_trial(config, trial, report=lambda *_: True, files=TrialFiles(records, snapshot))


def resumed_alike(config, folder, alone):
    """Whether a trial goes on from its snapshot to the rounds of one that nobody disturbed."""
    ended = train(config, folder.records(0), folder.snapshot(0))
    return ended.status == "finished" and values(folder.records(0)) == values(alone)


def test_an_error_is_the_machine_s_or_the_trial_s_own(tmp_path):
    assert shortage(FULL, tmp_path).startswith("the disk of ")
    assert shortage(FULL, tmp_path).endswith(" is full")
    read_only = OSError(errno.EROFS, "", str(tmp_path / "records" / "0.parquet"))
    assert shortage(read_only, tmp_path) == f"{tmp_path} is read-only"
    wrapped = ValueError("records path must be a writable directory")
    wrapped.__cause__ = read_only
    assert shortage(wrapped, tmp_path) == f"{tmp_path} is read-only"
    assert shortage(MemoryError(), tmp_path) == MEMORY
    assert shortage(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), None) == MEMORY
    assert shortage(FileNotFoundError(errno.ENOENT, "", "/nowhere/images.npz"), tmp_path) is None  # a user's own file
    assert shortage(FileNotFoundError(errno.ENOENT, "", str(tmp_path / "a" / "b")), tmp_path) == f"{tmp_path} is gone"
    assert shortage(FileNotFoundError(errno.ENOENT, "", "x"), tmp_path / "away") == f"{tmp_path / 'away'} is gone"
    assert shortage(RuntimeError("the third round is too much"), tmp_path) is None
    assert shortage(OSError("no number"), tmp_path) is None
    for sentence in (shortage(FULL, tmp_path), f"{tmp_path} is read-only", f"{tmp_path} is gone", MEMORY):
        assert remedy(sentence)


@pytest.mark.slow
def test_a_trial_that_cannot_write_is_interrupted_and_goes_on_from_its_snapshot(small, tmp_path, monkeypatch):
    folder = StudyFolder.create(small)
    written = RecordWriter.write

    def write(self, *arguments):
        return written(self, *arguments) if parts(folder) < 9 else full()

    monkeypatch.setattr(RecordWriter, "write", write)
    stopped = train(small, folder.records(0), folder.snapshot(0))
    assert (stopped.status, stopped.rounds) == ("interrupted", 10)
    assert stopped.reason.endswith(" is full")
    assert not list(folder.snapshot(0).parent.glob("*.tmp"))
    monkeypatch.setattr(RecordWriter, "write", written)
    train(small, tmp_path / "alone")
    assert resumed_alike(small, folder, tmp_path / "alone")


def parts(folder):
    """How many parts of its records a trial has written."""
    return len(list(folder.records(0).glob("0*")))


def full(*arguments, **named):
    """A disk without room."""
    raise FULL


@pytest.mark.slow
def test_a_full_disk_interrupts_a_trial_and_freed_it_goes_on(small, mounted, tmp_path):
    place, _ = mounted
    folder = StudyFolder(place / "small")
    folder.records(0).mkdir(parents=True)
    folder.snapshot(0).parent.mkdir()
    stopped = train(small, folder.records(0), folder.snapshot(0))
    assert (stopped.status, stopped.reason) == ("interrupted", f"the disk of {folder.path} is full")
    assert 0 < stopped.rounds < 60
    subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)
    train(small, tmp_path / "alone")
    assert resumed_alike(small, folder, tmp_path / "alone")


def table_of(config):
    folder = StudyFolder.create(config)
    console = Console(file=io.StringIO())
    return folder, TrialTable(config, folder, StudyProgress(console, name="s", config=config, quiet=True))


def test_the_table_keeps_in_memory_what_the_disk_did_not_take(tmp_path, monkeypatch):
    config = StandIn()
    config.study = config.study.__class__(**{**vars(config.study), "folder": str(tmp_path)})
    folder, table = table_of(config)
    table.ensure_started(proposal(0), anew=True)
    before = folder.trials.read_text()
    write = os.write

    def half(descriptor, content):
        if len(content) < 10:
            raise FULL
        return write(descriptor, content[: len(content) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.os, "write", half)
        patch.setattr(folder_module, "replace_text", full)
        table.ensure_started(proposal(1), anew=True)
        assert folder.trials.read_text() == before  # nothing of a line that did not fit
        folder.snapshot(0).touch()
        ended = Trial(number=0, algorithm="FedAvg", status="finished", rounds=6, objective=0.5)
        table.end(proposal(0), result_of(ended))
        assert folder.snapshot(0).exists()  # as long as the disk says that the trial runs
    assert "is full: free space, then flstudy tune --resume " in table.hopeless
    table.close(complete=False)
    assert [trial.status for trial in folder.read_trials()] == ["finished", "interrupted"]
    assert not folder.snapshot(0).exists()


def test_what_is_denied_to_a_trial_stops_the_study_or_not(tmp_path):
    config = StandIn()
    config.study = config.study.__class__(**{**vars(config.study), "folder": str(tmp_path)})
    folder, table = table_of(config)

    def interrupted(number, error):
        table.ensure_started(proposal(number), anew=True)
        trial = Trial(number=number, algorithm="FedAvg", status="interrupted", rounds=2, objective=0.1, error=error)
        table.report(proposal(number), result_of(trial))
        table.end(proposal(number), result_of(trial))

    interrupted(0, f"Traceback ...\nMemoryError\n{MEMORY}")
    assert table.hopeless is None
    assert [trial.number for trial in table.starved] == [0]
    table.end(proposal(1), None, error=f"Ray's monitor\n{MEMORY}")
    assert [trial.number for trial in table.starved] == [0, 1]
    interrupted(2, "Traceback ...\nthe disk of /there is full")
    assert table.hopeless == f"the disk of /there is full: free space, then flstudy tune --resume {folder.path}"
    assert [trial.status for trial in folder.read_trials()] == ["interrupted"] * 3


def test_room_is_asked_for_before_anything_starts(small, mounted, tmp_path):
    place, mount = mounted
    check_disks(small, None, tmp_path / "mlflow.db")
    (tmp_path / "studies").touch()
    with pytest.raises(ConfigError, match=r"study.folder '.*/studies' must be writable \(Not a directory\)"):
        check_disks(small, None, None)
    (tmp_path / "studies").unlink()
    with pytest.raises(ConfigError, match=r"study.folder '.*' must have 1\.\d MB free at least, got 0\.1 MB"):
        check_disks(small, place / "small", None)
    with pytest.raises(ConfigError, match=r"the store's folder '.*' must have 1\.\d MB free at least"):
        check_disks(small, None, place / "mlflow.db")
    mount("ro")
    with pytest.raises(ConfigError, match=r"must be writable \(Read-only file system\)"):
        check_disks(small, place / "small", None)
    subprocess.run(["umount", str(place)], check=True)
