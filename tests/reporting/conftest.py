"""Writes the folder of a study as the tuner does, from curves made up by the test."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from flstudy.tracking.records import RecordWriter


class Record(NamedTuple):
    round: int
    metrics: dict[str, list[float]]


def make_trial(name, algorithm="FedAvg", objective=0.5, status="finished", rounds=10, **more):
    """An entry of trials.jsonl."""
    overrides = {"algorithm": algorithm, "algorithm.lr": 0.1}
    entry = {"trial": name, "overrides": overrides, "algorithm": algorithm, "status": status, "rounds": rounds}
    return entry | {"objective": objective, "metrics": {}, "run_id": None, "error": None} | more


def make_study(folder: Path, trials, *, curves=None, events=None, rounds=10, seeds=(0, 44), **config) -> Path:
    """`curves`: trial -> test accuracy [S, T], from round 1 on; other metrics: {trial: {metric: values}}."""
    folder.mkdir(parents=True)
    study = {"objective": {"metric": "valid/accuracy", "mode": "max"}}
    config = {"rounds": rounds, "seeds": list(seeds), "study": study} | config
    (folder / "study.yaml").write_text(yaml.safe_dump(config))
    (folder / "trials.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in trials))
    if events is not None:
        (folder / "events.json").write_text(json.dumps([{"round": r, "label": label} for r, label in events]))
    for name, curve in (curves or {}).items():
        metrics = curve if isinstance(curve, dict) else {"test/accuracy": curve}
        columns = {metric: np.atleast_2d(values) for metric, values in metrics.items()}
        with RecordWriter(folder / "records" / f"{name}.parquet", seeds) as writer:
            for index in range(next(iter(columns.values())).shape[1]):
                writer.append(Record(index + 1, {metric: list(c[:, index]) for metric, c in columns.items()}))
    return folder


@pytest.fixture
def trial():
    return make_trial


@pytest.fixture
def write_study():
    return make_study


@pytest.fixture
def drifting(tmp_path):
    """Flash and FedAvg over 10 rounds with a drift at round 5, two seeds; FedYogi without a finished trial.

    Flash:  before 0.90 and 0.92; dip 0.50 and 0.60; back at the level of its last five evaluations from round 6.
    FedAvg: before 0.80 twice; dip 0.20 and 0.40; the second seed is still climbing at the end.
    """
    flash = [[0.90] * 4 + [0.50] + [0.88] * 5, [0.92] * 4 + [0.60] + [0.90] * 5]
    fedavg = [[0.80] * 4 + [0.20] + [0.70] * 5, [0.80] * 4 + [0.40, 0.44, 0.52, 0.60, 0.68, 0.76]]
    overrides = {"algorithm": "Flash", "algorithm.lr": 0.0316227766, "algorithm.tau": 1e-05}
    trials = [
        make_trial("0", "FedAvg", 0.71, metrics={"test/accuracy": 0.73}),
        make_trial("1", "FedAvg", 0.95, status="pruned", rounds=6),
        make_trial("2", "Flash", 0.89, overrides=overrides),
        make_trial("3", "FedAvg", 0.60),
        make_trial("4", "FedYogi", None, status="diverged", rounds=3),
        make_trial(
            "5", "FedYogi", None, status="failed", rounds=0, error="Traceback\n  ...\nRuntimeError: out of memory"
        ),
    ]
    curves = {"0": fedavg, "2": flash}
    return make_study(tmp_path / "studies" / "quick", trials, curves=curves, events=[(5, "sudden drift")])
