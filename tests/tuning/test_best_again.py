"""A trial's configuration is one, whoever tells it: its run in MLflow, `show` and best/*.yaml, which gives the trial's
curve bit for bit when it is run again, from any folder and with the user's own classes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from flstudy import cli
from flstudy.config import Config, StopRun, load
from flstudy.config.composition import quick_check, trial_config
from flstudy.config.values import flat_items
from flstudy.federation import Record
from flstudy.study import Space, load_study
from flstudy.study.records import curve, read_records
from flstudy.tuning.driver import carry_out
from tests.population.datasets.on_disk import SMALL_FILES, accept_any_checksum, write_libsvm
from tests.reproduction.configs import configs_in
from tests.reproduction.test_fedada2_configs import SIZES, write_checkpoint

CONFIGS = Path(__file__).parents[2] / "tune_configs"
SHIPPED = configs_in(CONFIGS)
FEW = {"population.clients": 4, "population.participants": 2, "population.steps": 1, "population.batch_size": 4}
FEW |= {"population.max_steps": None}  # steps are exact
FEW |= {"seeds": [0], "evaluate_every": 1, "executor": "sequential", "accelerator": "cpu", "compile": False}
MODEL = """
import lightning as L
from torch import nn
from torch.nn import functional as F


class StayNet(L.LightningModule):
    '''A network for tables of four columns.'''

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])
"""
METHOD = """
from dataclasses import dataclass

from flstudy.algorithms import FedYogi as Theirs
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedYogi(Theirs):
    '''A variant with its paper's name and half of its step.'''

    half: float = hyper(0.5, "(0, 1]")
    '''Of the step.'''
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_best_trial_is_trained_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lab, elsewhere = tmp_path / "lab", tmp_path / "elsewhere"
    (lab / "data").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(lab)
    (lab / "staying.py").write_text(MODEL)
    (lab / "my_yogi.py").write_text(METHOD)
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(120, 4)), np.arange(120) % 6
    rows = [",".join(map(str, [*x[i], int(x[i].sum() > 0), owners[i]])) for i in range(len(x))]
    (lab / "data" / "rows.csv").write_text("a,b,c,d,label,client\n" + "\n".join(rows))
    content = {
        "task": "./staying.py:StayNet",
        "population": {
            "dataset": {"class_path": "TableFile", "init_args": {"file": "rows.csv", "root": "data"}},
            "clients": 6,
            "participants": 3,
            "batch_size": 5,
        },
        "algorithm": {"class_path": "FedProx", "init_args": {"lr": 0.3, "momentum": 0.5}},
        "rounds": 3,
        "seeds": [0, 44],
        "compile": False,
        "store": f"sqlite:///{tmp_path}/mlflow.db",
        "study": {
            "name": "again",
            "trials": 8,
            "search": {"algorithm.lr": {"loguniform": [0.01, 1.0]}},
            "arms": {
                "FedProx": {"presets": [{"lr": 0.2}]},
                "Mild": {"class_path": "FedProx", "init_args": {"mu": 0.37, "momentum": 0.0}},
                "FedYogi": {"search": {"server_lr": {"uniform": [0.01, 0.5]}}},
                "Mine": {"class_path": "./my_yogi.py:FedYogi", "init_args": {"half": 0.25}},
            },
            "presets": {"Mild": {"lr": 0.4}, "FedYogi": {"beta1": 0.5}},
            "resources": {"cpu": 0.5},
        },
    }
    (lab / "again.yaml").write_text(yaml.safe_dump(content))
    config = load("again.yaml", command="tune")
    result = carry_out(config, Console(file=io.StringIO()))
    study = load_study(result.folder.path)
    assert {trial.status for trial in study.trials} == {"finished"}, study.trials[0].error
    assert sorted(best.trial.algorithm for best in study.best) == sorted(content["study"]["arms"])
    client = result.run.store.client
    trained = {best.trial.algorithm: config.with_overrides(best.trial.overrides) for best in study.best}
    assert all(trained_config.method == name for name, trained_config in trained.items())
    monkeypatch.chdir(elsewhere)
    for best in study.best:
        name, trial = best.trial.algorithm, best.trial
        path = result.folder.best / f"{name}.yaml"
        written = yaml.safe_load(path.read_text())
        params = client.get_run(trial.run_id).data.params
        assert params == {key: str(value) for key, value in trained[name].flat().items()}
        root = {"population.dataset.root": str(lab / "data")}
        assert load(path).flat() == {**trained[name].flat(), **root}
        assert cli.main(["show", str(result.folder.path), str(trial.number), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)["config"]
        where = {"modules": str(lab), "store": content["store"]}  # whoever runs the file chooses the store
        assert dict(flat_items(shown)) == dict(flat_items(written)) | where
        assert cli.main(["run", str(path), "--run.name", name, "--run.track", "false"]) == 0
        capsys.readouterr()
        same_curves(elsewhere / "runs" / name / "records.parquet", study.folder.records(trial.number))
        monkeypatch.chdir(tmp_path)  # and the run's own file, from yet another folder
        run_config, options = elsewhere / "runs" / name / "config.yaml", ["--run.folder", str(elsewhere / "runs")]
        assert cli.main(["run", str(run_config), "--run.name", f"{name}-again", *options]) == 0
        capsys.readouterr()
        same_curves(elsewhere / "runs" / f"{name}-again" / "records.parquet", study.folder.records(trial.number))
        monkeypatch.chdir(elsewhere)


def same_curves(mine: Path, theirs: Path) -> None:
    """The metrics of two records are equal to the last bit, but for times."""
    tables = [read_records(path) for path in (mine, theirs)]
    metrics = [name for name in tables[0]["metric"].unique().to_pylist() if not name.startswith("time/")]
    assert "valid/accuracy" in metrics
    for metric in metrics:
        np.testing.assert_array_equal(curve(tables[0], metric)[1], curve(tables[1], metric)[1], metric)


@pytest.mark.slow
@pytest.mark.usefixtures("let_go")
@pytest.mark.filterwarnings("ignore:MasterFL")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_shipped_study_s_best_file_gives_its_trial_s_curve(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One arm of each study, another in each, trains two rounds of few devices on small files in the format of its data
    set; every arm's values are held to its trial's in tests/config/test_composition.py."""
    values = dict(flat_items(quick_check(path, ())))
    source, few = values["population.dataset"], dict(FEW)
    if source in SMALL_FILES or source == "LibSvm":
        few["population.dataset.root"] = str(tmp_path)
        accept_any_checksum(monkeypatch)
        SMALL_FILES.get(source, lambda root: write_libsvm(root, values["population.dataset.name"]))(tmp_path)
    if source == "AgNews":
        few["population.dataset.vocabulary"] = 20
    if values.get("task.checkpoint"):
        write_checkpoint(tmp_path / "timm.pth")
        few |= {f"task.{key}": value for key, value in {**SIZES, "checkpoint": str(tmp_path / "timm.pth")}.items()}
    elif values["task"].startswith("ResNet") and path != CONFIGS / "flash" / "cifar10.yaml":
        few["task"] = "Mlp"  # a ResNet's rounds take seconds: one of the configs trains it
    config = load(path, few, command="tune")
    arms = list(config.study.arms)
    proposal: dict[str, Any] = {"algorithm": arms[len(path.stem) % len(arms)]} if arms else {}
    keys = config.keys_of(proposal)
    for key, domain in Space.of_study(config.study).of(proposal.get("algorithm")).items():
        if key in keys and key not in proposal:
            proposal[key] = domain.values(3)[-1]
    whole = yaml.safe_load(yaml.safe_dump(config.whole_study()))
    best = tmp_path / "best.yaml"
    best.write_text(yaml.safe_dump(trial_config(whole, proposal)))
    curves = [first_rounds(variant) for variant in (config.with_overrides(proposal), load(best))]
    assert len(curves[0]) == 2
    np.testing.assert_equal(curves[0], curves[1])  # two diverge alike


def first_rounds(config: Config) -> list[dict[str, list[float]]]:
    """The metrics of two rounds, but for times."""
    metrics: list[dict[str, list[float]]] = []

    def keep(record: Record) -> None:
        metrics.append({name: [*values] for name, values in record.metrics.items() if not name.startswith("time/")})
        if record.round == 2:
            raise StopRun

    config.run(keep)
    return metrics
