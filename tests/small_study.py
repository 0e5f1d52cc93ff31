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
