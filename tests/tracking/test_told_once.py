"""A study that is stopped again and again tells MLflow every value once: ``python -m tests.tracking.test_told_once
FIRST LAST`` does it for many orders of stops."""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flstudy.study import StudyFolder
from tests.small_study import write_study

COMMAND = [sys.executable, "-m", "flstudy.cli"]
TRIALS, STOPS = 12, 3


def stop_at_random(folder: Path, seed: int) -> list[tuple[str, str, int]]:
    """Run a study of twelve trials that is sent SIGTERM at three moments, and goes on each time; return the values that
    MLflow has more than once, each by run, metric and step."""
    dice = random.Random(seed)
    path = write_study(folder, {"trials": TRIALS, "snapshot_s": 0.0}, rounds=12)
    study = StudyFolder(folder / "studies" / "small")
    for moment in sorted(dice.uniform(0, TRIALS - 1) for _ in range(STOPS)):
        driver = subprocess.Popen(arguments(study, path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 240
        while driver.poll() is None and time.monotonic() < until and ended(study) < int(moment):
            time.sleep(0.02)
        time.sleep(dice.uniform(0, 1.5))
        driver.terminate()
        driver.wait(120)
    if ended(study) < TRIALS:
        subprocess.run(arguments(study, path), check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*COMMAND, "sync", str(study.path)], check=True, stdout=subprocess.DEVNULL)
    assert ended(study) == TRIALS
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("flstudy").experiment_id])
    assert len(runs) == TRIALS + 1
    twice = []
    for run in runs:
        for name in run.data.metrics:
            steps = Counter(value.step for value in client.get_metric_history(run.info.run_id, name))
            twice += [(run.info.run_name, name, step) for step, count in steps.items() if count > 1]
    return twice


def arguments(study: StudyFolder, path: Path) -> list[str]:
    """The command that begins a study, or goes on with it."""
    return [*COMMAND, "tune", *(["--resume", str(study.path)] if study.is_study else [str(path)])]


def ended(study: StudyFolder) -> int:
    """How many trials are over."""
    return sum(trial.is_over for trial in study.read_trials())


@pytest.mark.slow
def test_no_value_is_told_twice_however_often_a_study_is_stopped(tmp_path):
    assert stop_at_random(tmp_path, seed=0) == []


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:])):
        with tempfile.TemporaryDirectory() as temporary:
            print(number, stop_at_random(Path(temporary), number), flush=True)
