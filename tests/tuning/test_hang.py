"""A worker that stands still ends, and says where it stood."""

import subprocess
import sys

import pytest

from flstudy.tuning.trial import HangWatch
from tests.waiting import LIMIT_S

SCRIPT = """
import sys, time
from pathlib import Path
from flstudy.tuning.trial import HangWatch

def stands_still():
    time.sleep(3600)

limit_s, path = 10, Path(sys.argv[1])
with HangWatch(limit_s, path) as watch:
    until = time.monotonic() + limit_s + 2
    while time.monotonic() < until:
        time.sleep(0.1)
        watch.beat()
    if sys.argv[2] == "hangs":
        stands_still()
time.sleep(limit_s + 2)  # the clock is off
"""


def exit_status(path, *arguments) -> int:
    """The exit status of a process that is watched."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), *arguments], timeout=LIMIT_S, check=False
    ).returncode


@pytest.mark.slow
def test_a_hung_process_ends_with_its_traceback(tmp_path):
    path = tmp_path / "7.hung"
    assert exit_status(path, "hangs") != 0
    assert "stands_still" in path.read_text()


@pytest.mark.slow
def test_nothing_is_left_of_a_trial_that_moves(tmp_path):
    path = tmp_path / "7.hung"
    assert exit_status(path, "moves") == 0
    assert not path.exists()


def test_a_trial_without_a_limit_is_not_watched(tmp_path):
    path = tmp_path / "7.hung"
    with HangWatch(None, path) as watch:
        watch.beat()
    assert not path.exists()
