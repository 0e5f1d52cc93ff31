"""Every config of FLASH's reproduction loads, and runs two rounds on small files in its data set's real format."""

from collections import Counter
from pathlib import Path

import pytest

from flstudy.config.config import load
from flstudy.tuning.space import Space
from tests.population.datasets.on_disk import (
    accept_any_checksum,
    write_cifar,
    write_emnist,
    write_shakespeare,
    write_stackoverflow,
)

FOLDER = Path(__file__).parents[2] / "tune_configs" / "flash"
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "reproduction.yaml")
DRIFTS = {"emnist_drift": 600, "cifar10_drift": 2000, "cifar100_drift": 2000, "synthetic_drift": 500}
ROUNDS = {
    "emnist": 1500,
    "stackoverflow": 2000,
    "shakespeare": 1500,
    "cifar10": 4000,
    "cifar100": 4000,
    "synthetic": 1000,
}
FEW = {"population.clients": 4, "population.participants": 2, "population.epochs": 1, "rounds": 2, "evaluate_every": 1}
FILES = {
    "Emnist": write_emnist,
    "Shakespeare": write_shakespeare,
    "StackOverflow": lambda root: write_stackoverflow(root, words=10_000),
    "Cifar10": lambda root: write_cifar(root, 10),
    "Cifar100": lambda root: write_cifar(root, 100, 200),
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_loads_and_runs_on_small_files(path, tmp_path, monkeypatch):
    config = load(path)
    name = config.tags()["dataset"]
    few = {**FEW, "seeds": [0], "accelerator": "cpu", "executor": "sequential"}
    if name in FILES:
        FILES[name](tmp_path)
        accept_any_checksum(monkeypatch)
        few["population.dataset.root"] = str(tmp_path)
    if config.flat()["population.drift"] is not None:
        few["population.drift.round"] = 2
    small, records = config.with_overrides(few), []
    small.rehearse()
    small.run(records.append)
    assert [record.round for record in records] == [1, 2]
    assert 0 <= records[-1].metrics["valid/accuracy"][0] <= 1


@pytest.mark.parametrize(
    "name", [path.stem for path in CONFIGS if "choice" in path.read_text().partition("algorithm:")[2]]
)
def test_the_paper_s_numbers(name):
    """Rounds, seeds, cohorts and drifts of sec. 5.1 and App. A, and an equal budget for every algorithm."""
    config = load(FOLDER / f"{name}.yaml")
    world = name.removesuffix("_drift")
    if world in ROUNDS:
        assert config.rounds == ROUNDS[world]
        assert config.flat()["population.participants"] == 10
    assert config.seeds == [0, 44, 56]
    assert config.drift_rounds() == ([DRIFTS[name]] if name in DRIFTS else config.drift_rounds())
    if not config.study.presets:
        return
    algorithms = config.study.search["algorithm"]["choice"]
    assert config.study.allocation == "equal"
    assert config.study.trials % len(algorithms) == 0
    assert set(config.study.presets) == set(algorithms)
    assert all("gamma" in values for values in config.study.presets.values())  # sec. 5.2: everybody stops early
    assert ("Oracle" in algorithms) == bool(config.events())


def test_presets_are_appendix_a_s():
    """A few of its numbers as what an algorithm is made with, so that no key is lost on the way."""
    said = {
        ("emnist", "FedDyn"): {"lr": 0.03, "server_lr": 1.0, "alpha": 0.001, "gamma": 0.04},
        ("emnist", "Ditto"): {"lr": 0.01, "lam": 0.1},
        ("stackoverflow", "FedNova"): {"lr": 0.3, "momentum": 0.9, "gamma": 0.05},
        ("shakespeare", "Apfl"): {"lr": 0.1, "alpha": 0.5},
        ("cifar10", "FedProx"): {"lr": 0.05, "server_lr": 0.5, "mu": 0.08},
        ("cifar100_drift", "Scaffold"): {"lr": 0.03, "gamma": 0.05},
        ("synthetic", "FedDC"): {"lr": 0.05, "server_lr": 0.05, "alpha": 0.1, "gamma": 0.03},
        ("synthetic_drift", "Flash"): {"lr": 0.01, "server_lr": 0.05, "gamma": 0.03},
    }
    for (name, algorithm), expected in said.items():
        made = load(FOLDER / f"{name}.yaml", {"algorithm": algorithm}).build()[0].algorithm
        assert {key: getattr(made, key) for key in expected} == expected


def test_each_algorithm_s_preset_is_its_first_trial():
    config = load(FOLDER / "digits.yaml", command="tune")
    points = Space.parse(config.study.search).defaults(config)
    assert Counter(point["algorithm"] for point in points) == Counter(config.study.search["algorithm"]["choice"])
    assert next(point for point in points if point["algorithm"] == "FedProx")["algorithm.mu"] == 0.25
