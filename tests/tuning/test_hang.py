"""A worker that stands still ends, and says where it stood."""

import subprocess
import sys
import textwrap
import time

import pytest

from flstudy.tuning.trial import HangWatch

SCRIPT = """
import sys, time
from pathlib import Path
from flstudy.tuning.trial import HangWatch

def stands_still():
    time.sleep(60)

with HangWatch(0.5, Path(sys.argv[1])) as watch:
    for _ in range(4):
        time.sleep(0.3)
        watch.beat()
    stands_still()
"""


@pytest.mark.thorough
def test_a_hung_process_ends_with_its_traceback(tmp_path):
    path = tmp_path / "7.hung"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT), str(path)], timeout=50, check=False)
    assert done.returncode != 0
    assert "stands_still" in path.read_text()


def test_nothing_is_left_of_a_trial_that_moves(tmp_path):
    path = tmp_path / "7.hung"
    with HangWatch(0.2, path) as watch:
        for _ in range(4):
            time.sleep(0.1)
            watch.beat()
    time.sleep(0.3)  # the clock is off
    assert not path.exists()
    with HangWatch(None, path) as watch:
        watch.beat()
    assert not path.exists()
