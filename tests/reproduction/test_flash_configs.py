"""Every config of FLASH's reproduction loads, and runs two rounds on small files in its data set's real format."""

from pathlib import Path

import pytest
import yaml

from flstudy.config.config import load
from flstudy.study.space import Space
from tests.population.datasets.on_disk import SMALL_FILES, accept_any_checksum
from tests.reproduction.configs import configs_in
from tests.tiers import in_tiers

FOLDER = Path(__file__).parents[2] / "tune_configs" / "flash"
CONFIGS = configs_in(FOLDER)
DRIFTS = {"emnist": 600, "cifar10": 2000, "cifar100": 2000, "synthetic": 500}
WORLDS = {  # App. A: R, B, E, η, η_g, γ; devices: sec. 5.1 and the data sets'
    "emnist": (1500, 20, 10, 0.05, 1.0, 0.04, 3400),
    "stackoverflow": (2000, 16, 10, 0.3, 1.0, 0.05, 5000),
    "shakespeare": (1500, 4, 10, 0.1, 1.0, 0.05, 715),
    "cifar10": (4000, 20, 15, 0.05, 0.5, 0.04, 500),
    "cifar100": (4000, 20, 15, 0.01, 0.5, 0.05, 500),
    "synthetic": (1000, 10, 8, 0.01, 0.05, 0.03, 30),
}
OWN = {  # App. A: values of one algorithm; CIFAR10's list of rates and Synthetic's FedDC are read as the configs say
    "emnist": {
        "FedProx": {"mu": 0.001},
        "FedNova": {"momentum": 0.8},
        "Scaffold": {"lr": 0.03},
        "FedDyn": {"lr": 0.03, "alpha": 0.001},
        "FedDC": {"alpha": 0.5},
        "Apfl": {"alpha": 0.25},
        "Ditto": {"lr": 0.01, "lam": 0.1},
    },
    "stackoverflow": {
        "FedProx": {"mu": 0.01},
        "FedNova": {"momentum": 0.9},
        "FedDyn": {"alpha": 0.001},
        "Apfl": {"alpha": 0.25},
        "Ditto": {"lam": 0.1},
    },
    "shakespeare": {
        "FedProx": {"mu": 0.001},
        "FedNova": {"momentum": 0.85},
        "FedDyn": {"alpha": 0.001},
        "FedDC": {"alpha": 0.5},
        "Apfl": {"alpha": 0.5},
        "Ditto": {"lam": 0.1},
    },
    "cifar10": {
        "FedProx": {"mu": 0.08},
        "FedNova": {"momentum": 0.9},
        "Scaffold": {"lr": 0.01},
        "HypCluster": {"lr": 0.01},
        "FedDyn": {"lr": 0.01, "alpha": 0.05},
        "FedDC": {"alpha": 0.01},
        "Apfl": {"lr": 0.09, "alpha": 0.25},
        "Ditto": {"lam": 0.01},
    },
    "cifar100": {
        "FedProx": {"mu": 0.01},
        "FedNova": {"momentum": 0.8},
        "Scaffold": {"lr": 0.03},
        "FedDyn": {"alpha": 0.01},
        "FedDC": {"alpha": 0.01},
        "Apfl": {"alpha": 0.25},
        "Ditto": {"lam": 0.01},
    },
    "synthetic": {
        "FedProx": {"mu": 0.25},
        "FedNova": {"momentum": 0.95},
        "Scaffold": {"lr": 0.005},
        "FedDyn": {"lr": 0.005, "alpha": 0.01},
        "FedDC": {"lr": 0.05, "alpha": 0.1},
        "Apfl": {"alpha": 0.5},
        "Ditto": {"lr": 0.005, "lam": 0.01},
    },
}
FEW = {"population.clients": 4, "population.participants": 2, "population.epochs": 1, "rounds": 2, "evaluate_every": 1}


def model_is_another_s(path):
    """Whether a config before this one has the same task: the first of them trains it."""
    tasks = {other: yaml.safe_load(other.read_text())["task"] for other in CONFIGS}
    return path != next(other for other in CONFIGS if tasks[other] == tasks[path])


@pytest.mark.slow
@pytest.mark.usefixtures("let_go")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_loads_and_runs_on_small_files(path, tmp_path, monkeypatch):
    config = load(path)
    name = config.tags()["dataset"]
    few = {**FEW, "seeds": [0], "accelerator": "cpu", "executor": "sequential"}
    if model_is_another_s(path):
        few["task"] = "Logistic"  # its own is built, not trained once more: a ResNet's rounds take seconds
        assert config.build()[0].task_function.layout.n > 0
    if name in SMALL_FILES:
        SMALL_FILES[name](tmp_path)
        accept_any_checksum(monkeypatch)
        few["population.dataset.root"] = str(tmp_path)
    if config.flat()["population.drift"] is not None:
        few["population.drift.round"] = 2
    small, records = config.with_overrides(few), []
    small.rehearse()
    small.run(records.append)
    assert [record.round for record in records] == [1, 2]
    assert 0 <= records[-1].metrics["valid/accuracy"][0] <= 1


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS if path.stem.partition("_")[0] in WORLDS])
def test_the_paper_s_worlds(name):
    """Rounds, batches, epochs, devices, cohorts, seeds and drifts of sec. 5.1 and App. A."""
    config, world = load(FOLDER / f"{name}.yaml"), name.partition("_")[0]
    flat = config.flat()
    rounds, batch, epochs, *_, devices = WORLDS[world]
    assert (config.rounds, flat["population.batch_size"], flat["population.epochs"]) == (rounds, batch, epochs)
    assert (flat["population.clients"], flat["population.participants"]) == (devices, 10)
    assert config.seeds == [0, 44, 56]
    assert config.drift_rounds() == ([DRIFTS[world]] if "_" in name else [])


PRESET = [path.stem for path in CONFIGS if "presets:" in path.read_text()]


@pytest.mark.parametrize("name", in_tiers(PRESET, [name for name in PRESET if "cifar" not in name]))
def test_an_equal_budget_and_appendix_a_s_values_first(name):
    """Each algorithm's first trial has, of every key that is searched and that it has, its published value or its own
    default; what App. A does not say of it is the same for all."""
    config = load(FOLDER / f"{name}.yaml", command="tune")
    algorithms, world = config.study.search["algorithm"]["choice"], name.partition("_")[0]
    assert list(config.study.arms) == algorithms
    assert algorithms[-1] == "Flash-clamped"
    assert config.study.allocation == "equal"
    assert config.study.trials % len(algorithms) == 0
    assert {*config.study.presets, "Flash-clamped"} == {*algorithms}  # whose values are Flash's
    assert ("Oracle" in algorithms) == bool(config.events())
    space = Space.of_study(config.study)
    assert space.outside_remarks(config) == []
    points, candidates = space.defaults(config), [candidate for _, candidate in space.candidates(config)]
    assert [point["algorithm"] for point in points] == algorithms
    for point, candidate in zip(points, candidates, strict=True):
        values = candidate.flat()
        assert all(values[key] == value for key, value in point.items() if key != "algorithm")
        assert values["algorithm"] == config.study.arms[point["algorithm"]].class_path
        assert set(point) == {key for key in config.study.search if key in values}
        flat = {key.removeprefix("algorithm."): value for key, value in values.items()}
        assert flat["weighting"] == "uniform"  # Algorithm 1, line 16, and the metrics weigh devices alike
        if world in WORLDS:
            *_, lr, server_lr, gamma, _ = WORLDS[world]
            published = {"lr": lr, "server_lr": server_lr, "gamma": gamma} | OWN[world].get(point["algorithm"], {})
            assert {key: flat[key] for key in published} == published
        assert flat.get("clamp") == (0.1 if point["algorithm"] == "Flash-clamped" else None)
        if point["algorithm"] == "AdaptiveFedAvg":
            assert flat["beta2"] == 0.5
