"""The schema: made from the classes, of one mind with the full build, quick, and understood by others."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import flstudy
from flstudy.cli import main
from flstudy.config import Config, ConfigError, load
from flstudy.config.composition import composed, quick_check, with_edits
from flstudy.config.help import KINDS
from flstudy.config.reading import content_of
from flstudy.config.registry import ROOTS
from flstudy.config.schema import PATH, class_names, config_schema, generated, text
from flstudy.config.shipped import configs
from flstudy.config.starter import Choice, starter
from flstudy.config.values import completed, nodes_of_key
from flstudy.study.space import Space
from flstudy.tasks import Mlp

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
STANDARD = Draft202012Validator(config_schema())

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"rounds": 61},
    {"rounds": 64.0},
    {"seeds": [7]},
    {"compile": False},
    {"max_lanes": None},
    {"matmul_precision": "high"},
    {"algorithm": "FedAvg"},
    {"algorithm": "flstudy.algorithms.FedProx", "algorithm.mu": 0},
    {"algorithm": {"class_path": "FedYogi", "init_args": {"tau": 1}}},
    {"algorithm.gamma": None},
    {"algorithm.beta1": 0},
    {"population.drift": None},
    {"population.drift": {"class_path": "ScheduledDrift", "init_args": {"schedule": {3: [[5, 1]]}}}},
    {"population.drift.change": "Rotation"},
    {"population.drift.change.pairs": [[0, 1]]},
    {"population.partition": "Iid"},
    {"population.steps": 4},
    {"controller": "Restart", "controller.rounds": [5]},
    {"privacy.clip": 1, "algorithm.weighting": "uniform"},
    {"privacy": None},
    {"recovery.window": 5},
    {"study.scheduler": None},
    {"study.sampler": "RandomSearch"},
    {"study.sampler.seed": 3},
    {"study.constraints": {"valid/loss": {"max": 3}}},
    {"study.search.algorithm.lr": {"choice": [0.1, 1]}},
    {"study.presets": {"FedYogi": {"tau": 0.01}}},
]
REFUSED: list[dict[str, Any]] = [
    {"rounds": "many"},
    {"rounds": 0},
    {"rounds": 1.5},
    {"rounds": None},
    {"seeds": 3},
    {"seeds": [-1]},
    {"compile": "yes please"},
    {"executor": "fast"},
    {"algorithm": "FedAvgg"},
    {"algorithm": None},
    {"algorithm": 3},
    {"algorithm.tua": 1},
    {"algorithm": "flstudy.algorithms.Flush"},
    {"algorithm": "FedProx", "algorithm.tau": 1},
    {"algorithm.lr": -1},
    {"algorithm.lr": "fast"},
    {"algorithm.lr": True},
    {"algorithm.beta1": 1},
    {"algorithm.moment": "adams"},
    {"population.client": 3},
    {"population.clients": 0},
    {"population": None},
    {"population.dataset": None},
    {"population.partition.alpha": -1},
    {"population.drift": "RecurrentDrift", "population.drift.round": 5},
    {"population.drift.round": "soon"},
    {"population.drift.p_drift": 1.5},
    {"population.drift.change": "Rotatoin"},
    {"population.drift.change.pairs": [[0, 1, 2]]},
    {"population.drift": {"class_path": "ScheduledDrift", "init_args": {"schedule": {"a": [[5, 1]]}}}},
    {"controller": "Restart"},
    {"privacy.noise": -1},
    {"privacy.clipp": 1},
    {"privacy.adaptive_clip.quantile": 1.0},
    {"study": 4},
    {"study.trails": 3},
    {"study.trials": 0},
    {"study.objective.mode": "most"},
    {"study.constraints": {"valid/loss": {"most": 3}}},
    {"study.constraints": {"valid/loss": {}}},
    {"study.search.algorithm.lr": {"loguniforn": [0.1, 1]}},
    {"study.search.algorithm.lr": {"uniform": [0.1]}},
    {"study.search.algorithm.lr": 0.1},
    {"study.presets": {"FedYogi": {"mu": 0.01}}},
    {"study.scheduler": "Ahsa"},
    {"study.scheduler.grace_rounds": 0},
    {"study.sampler": "Grid"},
    {"study.resources.cpu": -1},
    {"store": 3},
    {"nothing": 1},
]
BEYOND: list[dict[str, Any]] = [  # refused too, but by what a standard validator of the file cannot know
    {"study.search.algorithm.lrr": {"uniform": [0.1, 1]}},
    {"study.search.algorithm.lr": {"uniform": [-1, 1]}},
    {"study.search.algorithm.lr": {"choice": ["fast"]}},
    {"study.search.algorithm": {"choice": ["FedAvg", "Flush"]}},
    {"study.search.population.epochs": {"uniform": [1, 3]}},
    {"study.sampler": {"class_path": "TwoStep", "init_args": {"tie": [["algorithm.lr", "algorithm.sever_lr"]]}}},
    {"study.sampler": {"class_path": "TwoStep", "init_args": {"first": {"algorithm.lrr": [0.1]}}}},
    {"study.presets": {"FedPox": {"mu": 1}}},
    {"study.presets": {"FedProx": {"population.epocs": 2}}},
    {"study.objective.metric": "valid/accurcy"},
    {"study.objectives": [{"metric": "traffic/bit", "mode": "min"}]},
    {"algorithm.lr": float("nan")},
]


def mutated(changes: dict[str, Any]) -> dict[str, Any]:
    """quick.yaml's content with keys changed, as a file would say it."""
    return with_edits(content_of(QUICK), changes.items())


def verdict(action: Any) -> bool:
    """Whether it is accepted; a refusal is one sentence of readable length."""
    try:
        action()
    except ConfigError as error:
        message = str(error)
    else:
        return True
    assert "\n" not in message
    assert len(message) <= 250, message
    return False


@pytest.mark.slow
def test_the_kept_schema_is_that_of_the_classes():
    assert text() == PATH.read_text(encoding="utf-8"), "run: flstudy schema --write"
    assert generated() == config_schema()
    Draft202012Validator.check_schema(config_schema())


@pytest.mark.parametrize("changes", [*ACCEPTED, *REFUSED, *BEYOND], ids=str)
def test_schema_and_full_build_are_of_one_mind(changes, tmp_path):
    content, path = mutated(changes), tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    wanted = changes in ACCEPTED
    assert verdict(lambda: quick_check(path, [])) == wanted
    assert verdict(lambda: load(path)) == wanted
    if changes not in BEYOND:
        assert STANDARD.is_valid(json.loads(json.dumps(content))) == wanted


@pytest.mark.slow
def test_all_shipped_configs_are_valid_for_any_validator():
    assert len(configs()) > 20
    for path in configs():
        assert STANDARD.is_valid(json.loads(json.dumps(content_of(path)))), path
        completed(composed(content_of(path), {}), imports=False)


def test_a_node_says_what_an_editor_shows():
    (schema,), beside = nodes_of_key("algorithm.gamma", {"algorithm": ["Flash"]})
    assert (schema["x-domain"], schema["x-symbol"], schema["default"]) == ("[0, 1e12]", "γ", 0.04)
    assert "early stopping" in schema["description"]
    assert "algorithm.tau" in beside
    flash = config_schema()["$defs"]["Flash"]
    assert (flash["x-class"], flash["x-citations"]) == ("flstudy.algorithms.flash.Flash", ["panchal2023"])
    assert config_schema()["$defs"]["SuddenDrift"]["required"] == ["round"]
    assert {"algorithm.tau", "population.drift.change.size"} <= set(
        config_schema()["$defs"]["StudySection"]["properties"]["search"]["properties"]
    )
    undescribed = [
        f"{name}.{key}"
        for name, node in config_schema()["$defs"].items()
        for key, field in node.get("properties", {}).items()
        if "x-class" in node and "description" not in field
    ]
    assert undescribed == []


MISTAKES = [
    (["run", str(QUICK), "--algoritm", "Flash"], "unknown key 'algoritm': did you mean 'algorithm'?"),
    (["tune", str(QUICK), "--population.clents=3"], "'population.clents': did you mean 'population.clients'?"),
    (["tune", str(QUICK), "--rounds", "many"], "rounds must be an integer, got 'many'"),
    (["tune", str(QUICK), "--algorithm.tau=-1"], "algorithm.tau must lie in (0, 1e12], got -1"),
    (["tune", str(QUICK), "--study.objective.metric", "valid/accurcy"], "did you mean 'valid/accuracy'?"),
    (["tune", str(QUICK), "--study.scheduler.grace_round", "3"], "did you mean 'study.scheduler.grace_rounds'?"),
    (
        ["tune", str(QUICK), "--rounds=3", "--population.drift=null"],
        "grace_rounds must be ≤ rounds (3)",
    ),
    (["run", str(QUICK), "--population.drift.round", "900"], "population.drift.round must be ≤ rounds"),
]
WELCOME = [
    ["tune", "--help"],
    ["run", str(QUICK), "--help"],
    ["run", str(QUICK), "--print_config"],
    ["list", "algorithms", "Flash"],
    ["schema", "--path"],
]


def test_help_tells_a_bound_that_another_key_sets(capsys):
    assert main(["list", "schedulers", "Asha"]) == 0
    assert "study.scheduler.grace_rounds  integer [1, 1e6] ≤ rounds  10" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "sentence"), [*MISTAKES, *((arguments, "") for arguments in WELCOME)], ids=str)
def test_neither_mistakes_nor_help_wait_for_torch(arguments, sentence):
    code = (
        "import sys; from flstudy.cli import main; status = main(sys.argv[1:]); "
        "assert not {'torch', 'lightning', 'ray', 'optuna', 'mlflow'} & set(sys.modules); sys.exit(status)"
    )
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == (2 if sentence else 0), done.stderr
    assert sentence in done.stderr
    assert max(map(len, done.stdout.splitlines()), default=0) <= (100 if "--help" in arguments else 10**6)


@pytest.fixture
def built(monkeypatch):
    """As many entries as networks were built."""
    networks, original = [], Mlp.__init__

    @functools.wraps(original)
    def counted(self, *arguments, **named):
        networks.append(1)
        original(self, *arguments, **named)

    monkeypatch.setattr(Mlp, "__init__", counted)
    return networks


def test_one_trial_builds_its_task_once_and_a_second_run_gets_a_fresh_one(built):
    config = load(QUICK)
    built.clear()
    trial = config.with_overrides({"algorithm.lr": 0.2})
    assert trial.events()
    assert trial.drift_rounds() == [31]
    first = trial.build()
    assert len(built) == 1
    second = trial.build()
    assert len(built) == 2
    assert first[0] is not second[0]
    assert first[1] is not second[1]


def test_validating_a_search_parses_each_candidate_once_and_builds_one_network(built, monkeypatch):
    parsed, original = [], Config.__init__
    config = load(QUICK, command="tune")
    monkeypatch.setattr(Config, "__init__", lambda self, *arguments: (parsed.append(1), original(self, *arguments))[1])
    built.clear()
    space = Space.parse(config.study.search)
    space.validate(config)
    space.defaults(config)
    assert len(parsed) <= 4
    assert len(built) <= 1  # to be looked at
    (_, first), (_, second), *_ = space.candidates(config)
    assert len({id(candidate.build()[0].task) for candidate in (config, first, second)}) == 3  # and by each that is run
    parsed.clear()
    assert "algorithm.tau" in config.keys_of({"algorithm": "FedYogi"}) - config.keys_of({"algorithm": "FedAvg"})
    assert not parsed


OWN = '''
import lightning as L
import torch
from flstudy.algorithms import FedAvg
from flstudy.population import Iid


class Net(L.LightningModule):
    def __init__(self, classes: int, width: int = 8, *, depth=1):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)

    def example_losses(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")


class Mine(FedAvg):
    """FedAvg by another name."""


class Even(Iid):
    """Iid by another name."""
'''


def test_classes_beside_the_file_are_imported_checked_and_completed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_the_study.py").write_text(OWN)
    content = content_of(QUICK)
    content["task"] = {"class_path": "beside_the_study.Net", "init_args": {"width": 4}}
    content["algorithm"] = "beside_the_study.Mine"
    content["population"]["partition"] = "beside_the_study.Even"
    content["study"]["search"] = {"algorithm.lr": {"loguniform": [0.01, 1]}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    quick_check(path, [])  # takes the classes on trust
    assert "beside_the_study" not in sys.modules
    config = load(path)
    assert config.flat()["task.depth"] == 1
    assert config.flat()["algorithm.server_lr"] == 1.0
    assert config.tags()["algorithm"] == "Mine"
    coordinator, population = config.build()
    assert coordinator.task.net[1].out_features == 4
    assert type(population.partition).__name__ == "Even"
    for key, value, message in (
        ("task.wide", 3, "unknown key 'task.wide' of Net: did you mean 'task.width'?"),
        ("algorithm.lr", -1, "algorithm.lr must lie in (0, 1e12], got -1"),
        ("algorithm", "beside_the_study.Net", "algorithm must name a subclass of Algorithm, got beside_the_study.Net"),
        ("task", "beside_the_study.Nett", "task must name a class that can be imported, got beside_the_study.Nett"),
    ):
        with pytest.raises(ConfigError) as refusal:
            load(path, {key: value})
        assert message in str(refusal.value)


def test_a_study_to_start_from(tmp_path, capsys):
    path = tmp_path / "first.yaml"
    assert main(["init", str(path)]) == 0
    assert path.read_text() == starter()
    assert str(Path(flstudy.__file__).parent) not in path.read_text()  # it can be handed to others
    assert not re.search(r"(?<![\w.])/\w+/", path.read_text())
    assert "# Rounds that every trial gets" in path.read_text()
    assert "# γ of the devices' early stopping" in starter(Choice(algorithms=["Flash"]))
    quick_check(path, [])
    assert STANDARD.is_valid(yaml.safe_load(path.read_text()))
    assert main(["init", str(path)]) == 2
    assert "there is a file" in capsys.readouterr().err


def test_every_key_that_names_classes_is_listed(capsys):
    assert set(KINDS.values()) == {key for key, root in ROOTS.items() if class_names(key)}
    for kind, key in KINDS.items():
        assert main(["list", kind]) == 0
        listed = capsys.readouterr().out
        assert all(name in listed for name in class_names(key))
    assert main(["list", "algorithms", "Flush"]) == 2
    assert "flstudy list algorithms knows no 'Flush': did you mean 'Flash'?" in capsys.readouterr().err


def test_numbers_are_numbers_as_in_yaml_1_2(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(QUICK.read_text().replace("tau: 1.0e-3", "tau: 1e-3"))
    assert load(path).flat()["algorithm.tau"] == 1e-3
    assert load(QUICK, options=["--study.name", "2024", "--algorithm.tau", "2e-3"]).study.name == "2024"
