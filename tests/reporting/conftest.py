"""Writes the folder of a study as the tuner does, from curves made up by the test."""

import json
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import numpy as np
import pytest
import yaml

from flstudy.study.records import RecordWriter


class Record(NamedTuple):
    round: int
    metrics: dict[str, list[float]]


def make_trial(name, algorithm="FedAvg", objective=0.5, status="finished", rounds=10, **more):
    """An entry of trials.jsonl."""
    overrides = {"algorithm": algorithm, "algorithm.lr": 0.1}
    entry = {"number": int(name), "overrides": overrides, "algorithm": algorithm, "status": status, "rounds": rounds}
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
        trial_seeds = next(
            (t["overrides"]["seeds"] for t in trials if t["number"] == int(name) and "seeds" in t["overrides"]), seeds
        )
        with RecordWriter(folder / "records" / f"{name}.parquet", trial_seeds) as writer:
            for index in range(next(iter(columns.values())).shape[1]):
                writer.append(Record(index + 1, {metric: list(c[:, index]) for metric, c in columns.items()}))
    return folder


def is_drawn(path: Path) -> bool:
    """Whether a PNG has a figure of some width with something on it."""
    picture = matplotlib.image.imread(path)
    return picture.shape[1] >= 800 and picture.std() > 0.03


@pytest.fixture
def trial():
    return make_trial


@pytest.fixture
def write_study():
    return make_study


@pytest.fixture
def drifting(tmp_path):
    """Flash and FedAvg over 10 rounds with a drift at round 5, two seeds; FedYogi without a finished trial.

    Flash:  before 0.90 and 0.92; dip 0.50 and 0.60; back within 0.02 of its level before from round 6.
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


def make_confirmation(name, of, algorithm, objective, seeds=(101, 102, 103, 104, 105), **more):
    """An entry of trials.jsonl for a trial that ran again on seeds of its own."""
    overrides = {"algorithm": algorithm, "algorithm.lr": 0.1, "seeds": list(seeds)}
    return make_trial(name, algorithm, objective, stage="confirm", confirms=int(of), overrides=overrides, **more)


@pytest.fixture
def confirmation():
    return make_confirmation


@pytest.fixture
def confirmed():
    """A function that makes trials 0 and 1 of A and 2 of B, and their confirmations 3 to 5, by their objectives."""

    def make(searched, again):
        ends = [make_trial(str(n), "AAB"[n], value) for n, value in enumerate(searched)]
        return ends + [make_confirmation(str(n + 3), str(n), "AAB"[n], value) for n, value in enumerate(again)]

    return make


ALGORITHMS = {"FedAvg": 0.78, "FedYogi": 0.82, "Flash": 0.86}  # what each reaches when it is tuned well


@pytest.fixture(scope="session")
def searched(tmp_path_factory):
    """A study as large as a real one: three algorithms of 12 trials each, two objectives, a drift at round 5; the two
    best trials of each were trained again on five new seeds. Accuracy falls with the distance of lr from 0.1; FedYogi's
    and Flash's tau matters little, FedAvg's momentum not at all. The largest lr diverge; one trial failed, one was
    pruned, one is outside the constraints with the best value of all."""
    rng = np.random.default_rng(7)
    trials, curves = [], {}

    def add(entry, level, count):
        shape = np.array([0.5, 0.8, 0.95, 1.0, 0.6, 0.8, 0.95, 1.0, 1.0, 1.0])
        accuracy = level[:, None] * shape + rng.normal(0, 0.003, (count, 10))
        number = str(entry["number"])
        curves[number] = {
            "valid/accuracy": accuracy.clip(0, 1),
            "test/accuracy": (accuracy - 0.01).clip(0, 1),
            "traffic/down_bytes": np.full((count, 10), 1000.0),
            "traffic/up_bytes": np.full((count, 10), 500.0),
            "time/round_s": np.full((count, 10), 0.72),
        }
        trials.append(entry)

    number = 0
    best: dict[str, list] = {}
    for algorithm, reach in ALGORITHMS.items():
        for place in range(12):
            lr = float(10 ** (-3 + 3 * place / 11))
            overrides = {"algorithm": algorithm, "algorithm.lr": lr}
            if algorithm == "FedAvg":
                overrides["algorithm.momentum"] = [0.0, 0.5, 0.9][place % 3]
            else:
                overrides["algorithm.tau"] = float(10 ** rng.uniform(-4, -1))
            name = str(number)
            number += 1
            if place == 11:
                trials.append(make_trial(name, algorithm, None, status="diverged", rounds=2, overrides=overrides))
                continue
            level = reach - 0.06 * abs(np.log10(lr) + 1) + rng.normal(0, 0.01, 3)
            objective, bits = float(level.mean()), 1e6 * (1 + place)
            more = {"values": [objective, bits], "metrics": {"time/total_s": 36.0, "traffic/bits": 120000.0}}
            add(make_trial(name, algorithm, objective, overrides=overrides, **more), level, 3)
            best.setdefault(algorithm, []).append((objective, name, overrides))
    extra = {"algorithm": "FedAvg", "algorithm.lr": 0.09, "algorithm.momentum": 0.5}
    outside = {"feasible": False, "values": [0.99, 1.0]}
    trials.append(make_trial(str(number), "FedAvg", 0.99, overrides=extra, **outside))
    trials.append(make_trial(str(number + 1), "Flash", 0.8, status="pruned", rounds=4, started=0.0, ended=36.0))
    error = "Traceback\n  ...\nRuntimeError: out of <memory> & 100 %"
    trials.append(make_trial(str(number + 2), "Flash", None, status="failed", rounds=0, error=error, attempts=2))
    number += 3
    for algorithm, candidates in best.items():
        for _, of, overrides in sorted(candidates, reverse=True)[:2]:
            level = ALGORITHMS[algorithm] - 0.02 + rng.normal(0, 0.004, 5)
            entry = make_confirmation(str(number), of, algorithm, float(level.mean()), metrics={"time/total_s": 60.0})
            entry["overrides"] |= overrides
            add(entry, level, 5)
            number += 1
    study = {
        "trials": 36,
        "objective": {"metric": "valid/accuracy", "mode": "max"},
        "objectives": [{"metric": "traffic/bits", "mode": "min"}],
        "constraints": {"traffic/bits": {"max": 1e9}},
        "search": {
            "algorithm": {"choice": list(ALGORITHMS)},
            "algorithm.lr": {"loguniform": ["1e-3", 1.0]},
            "algorithm.tau": {"loguniform": [1e-4, 0.1]},
            "algorithm.momentum": {"choice": [0.0, 0.5, 0.9]},
        },
        "sampler": {"class_path": "flstudy.config.Tpe"},
        "scheduler": {"class_path": "flstudy.config.Asha", "init_args": {"grace_rounds": 10}},
    }
    population = {"dataset": {"class_path": "Digits"}, "partition": "Dirichlet", "drift": "SuddenDrift", "clients": 20}
    folder = tmp_path_factory.mktemp("home") / "studies" / "searched"
    return make_study(
        folder, trials, curves=curves, events=[(5, "sudden drift")], seeds=(0, 1, 2), study=study, population=population
    )
