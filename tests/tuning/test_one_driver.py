"""Of two drivers that go on with the same study at once, one does; killed, it locks nobody out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flstudy.study import StudyFolder
from flstudy.tracking.trust import remember_store
from tests.small_study import read_study
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def children(pid: int) -> set[int]:
    """All processes that descend from one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    descendants, grown = {pid}, {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - descendants
        descendants |= grown
    return descendants - {pid}


def open_files(pid: int) -> set[str]:
    """What a process has open."""
    paths = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            paths.add(os.readlink(file))
        except OSError:
            continue
    return paths


def test_one_of_two_drivers_goes_on(tmp_path):
    config = read_study(tmp_path, {"trials": 1}, rounds=100_000)
    folder = StudyFolder.create(config)
    folder.write_config(config)
    folder.write_state("interrupted", study_id="7" * 32)
    remember_store(config.store)  # as who began the study did

    command = [sys.executable, "-m", "flstudy.cli", "tune", "--resume", str(folder.path)]
    errors = tmp_path / "errors.txt"
    with errors.open("a") as file:
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file) for _ in range(2)]
    try:
        wait_until(lambda: any(process.poll() is not None for process in both))
        refused, driver = sorted(both, key=lambda process: process.poll() is None)
        assert refused.returncode == 2
        message = errors.read_text()
        assert message.startswith(f"flstudy: error: study small is running in process {driver.pid} on ")
        assert message.count("\n") == 1

        wait_until(lambda: folder.read_trials() and list(folder.records(0).glob("*.parquet")), driver.poll)
        assert folder.state()["state"] == "running"
        of_ray = children(driver.pid)
        assert len(of_ray) > 3  # Ray's own and a worker
        holds = {pid for pid in {driver.pid, *of_ray} if str(folder.lock.path) in open_files(pid)}
        assert holds == {driver.pid}

        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert folder.state()["state"] == "killed"
        with folder.claim():
            pass
    finally:
        for process in both:
            process.kill()
            process.wait()
