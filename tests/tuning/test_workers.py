"""What the workers of a real study do once for all their trials: read the data, and compile."""

import io
import os
import subprocess
import sys

import pytest
from ray import cloudpickle
from rich.console import Console

from flstudy.config.registry import IMPORT_ONLY
from flstudy.execution import programs
from flstudy.population import Digits
from flstudy.tuning.driver import carry_out
from tests.foreign_study import CANARY
from tests.small_study import read_study, write_study
from tests.tuning import noted
from tests.tuning.noted import Noted, count, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
cloudpickle.register_pickle_by_value(noted)  # workers cannot import from tests


@pytest.mark.skipif(not programs.has_compiler(), reason="no C++ compiler")
def test_a_worker_compiles_and_reads_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Digits, "load", Digits.load)  # put back afterwards
    monkeypatch.setattr(Digits, "loads", 0, raising=False)
    count(Digits)
    config = Noted.of(
        read_study(tmp_path, {"trials": 16, "concurrent": 2}, rounds=2, evaluate_every=2, compile=True),
        tmp_path / "notes",
    )
    result = carry_out(config, Console(file=io.StringIO()), report=False)
    assert [trial.status for trial in result.trials] == ["finished"] * 16, [trial.error for trial in result.trials]
    notes = read(tmp_path / "notes")
    assert len(notes) == 16
    assert Digits.loads == 1  # here, in the driver
    assert [note["loads"] for note in notes] == [0] * 16
    assert [note["warned"] for note in notes] == [[]] * 16
    for note in notes:  # already after a worker's first trial, and no more after its last
        assert note["programs"] == 1
    assert 1 <= len({note["pid"] for note in notes}) <= 2


PACKAGES = ("mlflow", "optuna", "ray", "torch", "lightning", "numpy", "pyarrow", "pandas", "yaml", "rich", "matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["tune", "run"])
def test_a_class_beside_a_config_trains_anywhere_and_no_file_is_taken_for_a_package(tmp_path, command):
    """In the processes of trials and of their devices, from any folder."""
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        for package in PACKAGES:
            (folder / f"{package}.py").write_text(CANARY.format(canary=str(tmp_path / "canary")))
    (beside / "mynet.py").write_text("from flstudy.tasks import Logistic\n\n\nclass MyNet(Logistic):\n    pass\n")
    study = {"trials": 1, "resources": {"cpu": 2}} if command == "tune" else {"search": {}}
    path = write_study(beside, study, task="./mynet.py:MyNet", rounds=2, devices=2)
    environment = {**os.environ, IMPORT_ONLY: "flstudy,mynet"}
    words = [sys.executable, "-P", "-m", "flstudy.cli", command, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=here, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "canary").exists(), (tmp_path / "canary").read_text()
