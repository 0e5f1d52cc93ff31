"""Every config of device sessions loads, and runs three sessions on small files in its data set's real format."""

import csv
from pathlib import Path

import pytest
import yaml

from flstudy.config.config import load
from flstudy.reproduction.plan import read_paper
from tests.population.datasets.on_disk import SMALL_FILES, accept_any_checksum
from tests.reproduction.configs import configs_in

FOLDER = Path(__file__).parents[2] / "tune_configs" / "sessions"
CONFIGS = configs_in(FOLDER)
SMALL = {
    "population.clients": 4,
    "population.participants": 2,
    "population.steps": 1,
    "population.max_steps": None,
    "population.batch_size": 2,
    "population.availability.rounds": 1,
    "population.partition.alpha": 5.0,
    "controller.pilots": 1,
    "rounds": 3,
    "evaluate_every": 3,
    "seeds": [0],
    "executor": "sequential",
}
ROUNDS = {"mnist": 50, "fmnist": 50, "svhn": 200, "tinyimagenet": 200, "cifar10": 150, "cifar100": 150, "agnews": 100}


def model_is_another_s(path):
    """Whether a config before this one has a task of the same family: the first of them trains it."""
    families = {other: str(yaml.safe_load(other.read_text())["task"]).replace("34", "18") for other in CONFIGS}
    return path != next(other for other in CONFIGS if families[other] == families[path])


@pytest.mark.slow
@pytest.mark.usefixtures("let_go")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_loads_and_runs_on_small_files(path, tmp_path, monkeypatch):
    config = load(path)
    name, small = config.tags()["dataset"], dict(SMALL)
    if model_is_another_s(path):
        small["task"] = "Logistic"  # its own is built, not trained once more: a ResNet's rounds take seconds
        assert config.build()[0].task_function.layout.n > 0
    if name in SMALL_FILES:
        SMALL_FILES[name](tmp_path)
        accept_any_checksum(monkeypatch)
        small["population.dataset.root"] = str(tmp_path)
    if name == "AgNews":
        small["population.dataset.vocabulary"] = 20
    if config.flat()["population.drift"] is not None:
        small["population.drift.round"] = 2
    if config.flat().get("controller") is None:
        small["controller"] = "DynamicInitialModel"
    small_config, records = config.with_overrides(small), []
    small_config.rehearse()
    small_config.run(records.append)
    assert [record.round for record in records] == [1, 2, 3]
    assert [event.label for event in records[2].events] == ["initial model"]
    metrics = records[-1].metrics
    assert 0 <= metrics["valid/accuracy"][0] <= 1
    assert metrics["train/lr"][0] == pytest.approx(small_config.build()[0].algorithm.lr)
    assert "controller.pilots" in small_config.flat()


@pytest.mark.parametrize("name", ROUNDS)
def test_the_paper_s_numbers(name):
    """App. C-A and C-B: seven sessions, one pilot, a hundred devices in each, five steps of 128, R; eq. (19)'s norm."""
    config = load(FOLDER / f"{name}.yaml")
    flat = config.flat()
    assert config.rounds == 7 * ROUNDS[name] == 7 * flat["population.availability.rounds"]
    assert flat.get("schedule.rounds") is None  # the session's
    assert (flat["population.clients"], flat["population.participants"]) == (200, 100)
    assert (flat["population.max_steps"], flat["population.batch_size"], config.seeds) == (5, 128, [100, 200, 300])
    assert flat["controller.scale"] == (800 if name == "agnews" else 10)
    assert flat["controller.similarity"] == "l2"
    assert len(config.session_rounds()) == 6
    algorithms = config.study.search["algorithm"]["choice"]
    assert set(config.study.presets) == set(algorithms)
    assert config.study.trials == 8 * len(algorithms)
    assert config.study.allocation == "equal"


def published(table):
    """(world, algorithm, measure) -> value of one of the paper's tables, as it is written."""
    with (FOLDER / "published.csv").open() as file:
        rows = {(row["world"], row["algorithm"], row["measure"]): row for row in csv.DictReader(file)}
    plan = read_paper("sessions", FOLDER.parent)
    again = {world.name for world in plan.worlds if not world.on_request}
    return {key: row["value"] for key, row in rows.items() if row["table"] == table and key[0] not in again}


@pytest.mark.slow
def test_all_of_the_paper_s_tables_are_there():
    """Values in each: rows times columns."""
    sizes = {"II": 16 * 8, "III": 16 * 6, "IV": 8 * 4, "V": 4 * 6, "VI": 4 * 6, "VII": 4 * 15, "VIII": 108 * 2}
    sizes |= {"IX": 112 * 2, "X": 5 * 16 * 8, "XI": 40 * 9, "XII": 30 * 9, "XIII": 2 * 6, "XIV": 7 * 9}
    assert {table: len(published(f"Table {table}")) for table in sizes} == sizes


@pytest.mark.slow
def test_what_the_paper_prints_twice_is_the_same_but_for_one_value():
    """V = 1 and the lowest R are the settings of Tables II, III and X: a check of what was transcribed."""
    main = published("Table II") | published("Table III") | published("Table X")
    main = {(world.split("-")[0], *rest, world): value for (world, *rest), value in main.items()}
    different = []
    for table, first, kind in (("Table V", "V=1", "gradients"), ("Table VI", "R=", "scales")):
        for (world, algorithm, measure), value in published(table).items():
            start, number = measure.split()
            if start == first or start in ("R=10", "R=800"):
                same = [
                    v
                    for (d, a, m, _), v in main.items()
                    if (d, a, m) == (world[: -len(kind) - 1], algorithm, f"Proposed {number}")
                ]
                assert len(same) == 4
                different += [] if value in same else [(table, world, measure, value)]
    assert different == [("Table V", "tinyimagenet-gradients", "V=1 7", "0.6556")]  # 66.56 in Tables II and VI


def test_rows_that_the_paper_prints_under_two_names():
    """Three rows of Tables XI to XIII stand there for two worlds each, to the last digit: one of them must be wrong."""
    values = published("Table XI") | published("Table XII") | published("Table XIII")

    def row(world, algorithm):
        return [value for (w, a, _), value in values.items() if (w, a) == (world, algorithm)]

    assert row("mnist-partial-overlap", "FedProx") == row("cifar100-half", "FedProx")
    assert row("mnist-two-shard", "FedProx") == row("mnist-two-shard", "FedAvg")
    assert row("fmnist-two-shard", "FedProx") == row("fmnist-two-shard", "FedAvg")
    tiny, svhn = row("tinyimagenet-partial-overlap", "FedAvg"), row("svhn-partial-overlap", "FedAvg")
    assert tiny == [value for place, value in enumerate(svhn) if place % 3 < 2]


@pytest.mark.parametrize("world", ["mnist-partial-overlap-of-100", "fmnist-partial-overlap-of-100"])
def test_three_methods_that_the_paper_prints_of_one_run(world):
    """Table XIV: FedAvg, FedProx and MOON have transitions 1 to 3, 2 to 4 and 3 to 5 of the same five."""
    table = published("Table XIV")

    def row(algorithm):
        return [float(value) for (w, a, _), value in table.items() if (w, a) == (world, algorithm)]

    assert row("FedAvg")[3:] == row("FedProx")[:6]
    assert row("FedProx")[3:] == pytest.approx(row("Moon")[:6], abs=1.01e-4)
