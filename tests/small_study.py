"""Small studies of real trials on the digits, which take seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flstudy.config.config import Config, load

DIGITS = {"dataset": "Digits", "clients": 6, "participants": 2, "batch_size": 4, "steps": 4}
TWO_METHODS = {  # of which one has a key that the other lacks
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 4, "participants": 2},
    "algorithm": {"class_path": "FedYogi", "init_args": {"lr": 0.1}},
    "seeds": [0, 44],
    "compile": False,
}
TWO_METHODS_SEARCH = {
    "algorithm": {"choice": ["FedAvg", "FedYogi"]},
    "algorithm.lr": {"loguniform": [1e-2, 1.0]},
    "algorithm.tau": {"choice": [0.001, 0.01]},
}

SLOW = """
import time
from pathlib import Path
from flstudy.algorithms import Scaffold

class SlowScaffold(Scaffold):
    "A method whose devices keep state; its rounds take 0.3 s as long as a file is there."
    def server_step(self, server, inbox, round):
        if Path({file!r}).exists():
            time.sleep(0.3)
        return super().server_step(server, inbox, round)
"""


def slow_rounds(folder: Path) -> tuple[str, Path]:
    """Write a method whose rounds take a while, so that a test can meet its trials in the middle on any machine.

    Args:
        folder: where the config that names the method lies.

    Returns:
        The method's class path, and the file without which its rounds take no longer than Scaffold's.
    """
    file = folder / "slow"
    file.touch()
    module = f"{folder.name}_method.py"  # a module's name is its own in this process
    (folder / module).write_text(SLOW.format(file=str(file)))
    return f"./{module}:SlowScaffold", file


def write_study(folder: Path, study: Mapping[str, Any] = {}, **changed: Any) -> Path:
    """The file of a small study whose results and store lie in the same folder.

    Args:
        folder: where the file goes.
        study: values of the section ``study``.
        changed: other values of the file.
    """
    usual = {"task": "Logistic", "population": DIGITS, "algorithm": "FedAvg", "compile": False}
    usual["store"] = f"sqlite:///{folder}/mlflow.db"
    searched = {"search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}}
    section = {"name": "small", "folder": str(folder / "studies"), **searched, **study}
    path = folder / "small.yaml"
    path.write_text(
        yaml.safe_dump(
            {**usual, "store": f"sqlite:///{folder}/mlflow.db", **changed, "study": section}, sort_keys=False
        )
    )
    return path


def read_study(folder: Path, study: Mapping[str, Any] = {}, **changed: Any) -> Config:
    """The same, read for `flstudy tune`."""
    return load(write_study(folder, study, **changed), command="tune")
