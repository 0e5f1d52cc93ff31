"""`flstudy data`: sentences, tables within 100 columns, and a picture of a population before anything trains."""

import json

import numpy as np
import pytest
import yaml

from flstudy.cli import main
from flstudy.config.config import load
from flstudy.preparation.picture import portrait

from ..population.datasets.on_disk import write_emnist, write_idx

CONFIG = {
    "task": {"class_path": "Logistic"},
    "algorithm": {"class_path": "FedAvg", "init_args": {"lr": 0.1}},
    "rounds": 6,
    "seeds": [0, 44],
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(capsys, *arguments, status=0):
    assert main(["data", *arguments]) == status
    captured = capsys.readouterr()
    lines = (captured.out + captured.err).splitlines()
    assert max(map(len, lines), default=0) <= 100 or status == 2
    return captured.err if status else captured.out


def test_prepare_list_describe(here, capsys):
    write_emnist(here / "published")
    assert "data/prepared holds no prepared data set yet" in run_command(capsys, "list")
    output = run_command(capsys, "prepare", "Emnist", "--source", "published", "--largest", "9")
    assert "data/prepared/Emnist: 41 examples of 5 clients" in output
    assert "init_args: {path: data/prepared/Emnist}" in output
    assert "prepared before from the same files" in run_command(
        capsys, "prepare", "Emnist", "--source", "published", "--largest", "9"
    )
    assert "Emnist" in run_command(capsys, "list")
    entry = json.loads(run_command(capsys, "list", "--json"))["prepared"][0]
    assert (entry["examples"], entry["clients"], entry["classes"]) == (41, 5, 62)
    assert "all bytes read and right" in run_command(capsys, "describe", "data/prepared/Emnist", "--verify")
    (here / "data/prepared/Emnist/metadata.json").write_text("{")
    assert "metadata.json is damaged: it is no JSON; prepare it again" in run_command(
        capsys, "describe", "data/prepared/Emnist", status=2
    )


@pytest.mark.slow
def test_a_population_is_drawn_before_anything_trains(here, capsys):
    write_idx(here, "FashionMNIST", 200)
    run_command(capsys, "prepare", "FashionMnist", "--source", ".")
    population = {
        "dataset": {"class_path": "FederatedParquet", "init_args": {"path": "data/prepared/FashionMnist"}},
        "clients": 8,
        "participants": 3,
        "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5, "min_size": 4}},
        "drift": {"class_path": "SuddenDrift", "init_args": {"round": 3}},
        "availability": {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}},
    }
    (here / "study.yaml").write_text(yaml.safe_dump({**CONFIG, "population": population}))
    output = run_command(capsys, "describe", "study.yaml")
    assert "8 devices, in round 1" in output
    assert (here / "study-population.png").read_bytes()[:4] == b"\x89PNG"
    described = json.loads(run_command(capsys, "describe", "study.yaml", "--json", "--population.clients", "6"))
    assert described["devices"] == 6
    assert sum(described["examples"][split]["mean"] for split in ("train", "valid", "test")) == pytest.approx(40)
    seen = portrait(load("study.yaml"))
    assert seen.sizes.sum() == 240
    assert seen.labels.sum() == seen.sizes[:, 0].sum()
    assert (seen.concepts.sum(1) == 8).all()
    assert seen.concepts[1].tolist() == [8, 0]
    assert seen.concepts[2, 1] > 0
    assert seen.there.tolist() == np.array([4] * 6).tolist()
    assert {event.round for event in seen.events} == {3, 5}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prepare", "Emnits"], "knows no data set 'Emnits': did you mean 'Emnist'?"),
        (["prepare", "Digits"], "Digits is not read from files, so there is nothing to prepare"),
        (["prepare", "Emnist", "--source", "nowhere"], "there is no 'nowhere': set --source to the folder that holds"),
        (["prepare", "Emnist", "--source", ".", "--download"], "--download: no library fetches Emnist"),
        (["prepare", "Emnist", "--source", ".", "--larg", "3"], "did you mean 'dataset.largest'?"),
        (["prepare", "Emnist", "--source", "."], "Emnist: there is no file 'fed_emnist_train.h5'"),
        (["prepair"], "knows no 'prepair': did you mean 'prepare'?"),
        (["describe", "nothing.yaml"], "there is no config file 'nothing.yaml'"),
    ],
)
def test_a_mistake_is_a_sentence(arguments, sentence, capsys):
    assert sentence in run_command(capsys, *arguments, status=2)
