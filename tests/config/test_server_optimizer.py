"""Optimizers of torch that a config names: their arguments are keys like any other, and are refused in a sentence."""

import sys
from pathlib import Path

import pytest
import torch
import yaml

from flstudy.config import ConfigError, load
from flstudy.config.composition import quick_check
from flstudy.config.reading import content_of
from flstudy.config.written import config_of

from .test_doors import QUICK

NADAM = {"class_path": "torch.optim.NAdam", "init_args": {"lr": 0.02, "betas": [0.8, 0.99]}}
COSINE = {"class_path": "torch.optim.lr_scheduler.CosineAnnealingLR", "init_args": {"T_max": 10}}
FEDOPT = {"class_path": "FedOpt", "init_args": {"lr": 0.1, "optimizer": NADAM, "lr_scheduler": COSINE}}


def written(folder: Path, algorithm, **study) -> Path:
    """quick.yaml with a method and a study."""
    content = content_of(QUICK)
    content["algorithm"] = algorithm
    content["study"] = {"trials": 4, **study}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_its_arguments_are_keys_and_its_lists_tuples_where_it_says_so(tmp_path):
    config = load(written(tmp_path, FEDOPT), options=["--algorithm.optimizer.lr", "3e-3"])
    flat = config.flat()
    assert flat["algorithm.optimizer"] == "torch.optim.NAdam"
    assert (flat["algorithm.optimizer.lr"], flat["algorithm.optimizer.eps"]) == (3e-3, 1e-8)
    assert flat["algorithm.lr_scheduler.T_max"] == 10
    assert "algorithm.optimizer.params" not in flat
    assert "algorithm.server_lr" not in flat
    method = config.parts.algorithm
    assert method.optimizer.func is torch.optim.NAdam
    assert method.optimizer.keywords["betas"] == (0.8, 0.99)
    assert load(written(tmp_path, "FedOpt")).flat()["algorithm.optimizer.lr"] == 1.0


def test_objects_are_written_as_the_config_that_makes_them(tmp_path):
    config = load(written(tmp_path, FEDOPT), command="tune")
    again = config_of({"task": "Logistic", "population": config.plain()["population"],
                       "algorithm": config.parts.algorithm}, {}, "again")  # fmt: skip
    ours, theirs = (
        {key: value for key, value in parts.flat().items() if key.startswith("algorithm")} for parts in (config, again)
    )
    assert ours == theirs


def test_rates_and_classes_are_searched(tmp_path):
    search = {
        "algorithm.optimizer": {"choice": ["torch.optim.NAdam", "torch.optim.RMSprop"]},
        "algorithm.optimizer.lr": {"loguniform": [1e-3, 0.1]},
        "algorithm.optimizer.alpha": {"uniform": [0.5, 0.9]},
    }
    config = load(written(tmp_path, FEDOPT, search=search), command="tune")
    proposal = {"algorithm.optimizer": "torch.optim.RMSprop", "algorithm.optimizer.lr": 0.01,
                "algorithm.optimizer.alpha": 0.7}  # fmt: skip
    optimizer = config.with_overrides(proposal).parts.algorithm.optimizer
    assert optimizer.func is torch.optim.RMSprop
    assert (optimizer.keywords["lr"], optimizer.keywords["alpha"]) == (0.01, 0.7)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--algorithm.optimizer", "Adam"], "algorithm.optimizer must name a class by its module, such as those of"),
        (["--algorithm.optimizer", "torch.optim.Nadam"], "torch.optim has no Nadam"),
        (["--algorithm.optimizer", "torch.nn.Linear"], "algorithm.optimizer must name a subclass of Optimizer"),
        (["--algorithm.optimizer", "null"], "algorithm.optimizer must name a class"),
        (["--algorithm.optimizer", "torch.optim.LBFGS"], "LBFGS needs a closure"),
        (["--algorithm.optimizer", "torch.optim.Muon"], "Muon only supports 2D parameters"),
        (["--algorithm.optimizer.rate", "3"], "unknown key 'algorithm.optimizer.rate' of NAdam"),
        (["--algorithm.optimizer.lr", "fast"], "algorithm.optimizer.lr must be a number"),
        (["--algorithm.optimizer.lr", "-1"], "optimizer cannot be made: Invalid learning rate"),
        (["--algorithm.server_lr", "0.1"], "unknown key 'algorithm.server_lr' of FedOpt"),
    ],
)
def test_what_no_server_can_step_by_is_refused_before_the_first_round(options, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        load(written(tmp_path, FEDOPT), options=options).checked()


OWN = '''
from dataclasses import dataclass
from typing import Literal

from flstudy.algorithms import FedAvg


@dataclass(frozen=True, kw_only=True)
class Named(FedAvg):
    """FedAvg with an argument that is called as FedOpt's."""

    optimizer: Literal["sgd", "adam"] = "sgd"
'''


def test_an_argument_of_that_name_of_one_s_own_method_holds_its_own_values(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "named_alike.py").write_text(OWN)
    search = {"algorithm.optimizer": {"choice": ["adam", "sgd"]}, "algorithm.lr": {"loguniform": [0.01, 1]}}
    path = written(tmp_path, "./named_alike.py:Named", search=search)
    quick_check(path, [])
    config = load(path, command="tune")
    assert config.parts.algorithm.optimizer == "sgd"
    assert config.with_overrides({"algorithm.optimizer": "adam"}).parts.algorithm.optimizer == "adam"
    with pytest.raises(ConfigError, match=r"algorithm.optimizer must be one of sgd, adam"):
        load(path, options=["--algorithm.optimizer", "torch.optim.Adam"])
