"""One process at a time holds a study's folder, and a dead one never does."""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flstudy.config import ConfigError
from flstudy.study import StudyFolder
from flstudy.study.lock import SILENT_S, FolderLock, Holder
from tests.waiting import wait_until

HOLD = """
import sys, subprocess
from flstudy.study import StudyFolder
with StudyFolder(sys.argv[1]).claim():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return StudyFolder(tmp_path / "mine")


@pytest.fixture
def driver(folder):
    """Another process that holds the folder and has started a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    yield process
    os.kill(child, 9)
    process.kill()
    process.communicate()


def said_by(folder, **changed):
    """A lock file that nobody locks, as a driver on another machine or on a disk without locks leaves it."""
    folder.lock.path.write_text(json.dumps({**vars(Holder()), **changed}))


@pytest.mark.slow
def test_a_second_process_is_refused_in_a_sentence(folder, driver):
    folder.write_state("running", study_id="1")
    assert folder.state()["state"] == "running"
    with pytest.raises(ConfigError) as refusal, folder.claim():
        pass
    message = str(refusal.value)
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.fullmatch(
        rf"study mine is running in process {driver.pid} on \S+ since {when}: "
        r"wait for its end, or stop it there \(Ctrl-C\)", message
    )  # fmt: skip
    assert len(message) <= 200
    assert folder.busy_message() == message


@pytest.mark.slow
def test_the_kernel_frees_the_lock_of_a_killed_process_though_its_child_lives(folder, driver):
    folder.write_state("running", study_id="1")
    driver.kill()
    driver.wait()
    assert folder.state()["state"] == "killed"
    assert folder.busy_message() is None
    with folder.claim():
        assert folder.lock.holder() == Holder.parse(folder.lock.path.read_bytes())
    assert folder.lock.path.read_bytes() == b""


def open_files(process: int) -> set[str]:
    """Files that a process holds open; one that it closes while we look counts as closed."""
    files = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            files.add(os.readlink(descriptor))
    return files


@pytest.mark.slow
def test_a_forked_process_does_not_keep_the_lock(folder):
    with folder.claim():
        child = os.fork()
        if not child:
            time.sleep(3600)
            os._exit(0)
        try:
            wait_until(lambda: str(folder.lock.path) not in open_files(child))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


@pytest.mark.parametrize(
    "pid",
    [1, os.getpid(), os.getppid(), -1, 0, 10**30, "abc", None],
    ids=["init", "own", "parent", "negative", "zero", "huge", "text", "none"],
)
def test_a_reused_or_wild_process_number_locks_nobody_out(folder, pid):
    folder.write_state("running", study_id="1")
    folder.state_file.write_text(json.dumps(json.loads(folder.state_file.read_text()) | {"pid": pid}))
    said_by(folder, pid=pid, start="1")
    assert folder.state()["state"] == "killed"
    with folder.claim():
        assert folder.state()["state"] == "running"


def test_a_driver_on_a_machine_whose_lock_does_not_reach_this_one_is_told_by_its_beat(folder):
    said_by(folder, host="other", boot="another", pid=7)
    with pytest.raises(ConfigError, match=r"in process 7 on other since .*, or try again in 60 s if it is gone$"):
        folder.claim().__enter__()
    past = time.time() - SILENT_S - 1
    os.utime(folder.lock.path, (past, past))
    with folder.claim():
        pass


@pytest.mark.slow
def test_a_disk_that_cannot_lock_is_said_and_processes_are_told_apart(folder, monkeypatch, caplog, driver):
    def refuse(file, kind):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=f"running in process {driver.pid} "):
        folder.claim().__enter__()
    assert not caplog.records
    driver.kill()
    driver.wait()
    with folder.claim():
        assert folder.lock.holder() == Holder.parse(folder.lock.path.read_bytes())
    assert [record.getMessage().endswith("this disk cannot lock, so two drivers are told apart by their processes")
            for record in caplog.records] == [True]  # fmt: skip
    assert folder.busy_message() is None


def test_the_beat_goes_on_as_long_as_the_folder_is_held(folder, monkeypatch):
    monkeypatch.setattr("flstudy.study.lock.BEAT_S", 0.01)
    with folder.claim():
        os.utime(folder.lock.path, (0, 0))
        wait_until(lambda: folder.lock.path.stat().st_mtime > 1)


def test_what_cannot_be_a_lock_is_refused_in_a_sentence(folder, tmp_path):
    (tmp_path / "target").touch()
    folder.lock.path.symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match=r"study mine cannot be locked: .*lock \("):
        folder.claim().__enter__()
    assert FolderLock(tmp_path / "no" / "lock").holder() is None
