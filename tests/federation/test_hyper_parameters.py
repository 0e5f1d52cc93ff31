"""Hyper-parameters go to any Lightning logger, by the names of a config's keys."""

import inspect
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import FedAvg, FedBlended, Flash
from flstudy.algorithms.fedblended import Strategy
from flstudy.config import load
from flstudy.config.registry import LINKED
from flstudy.config.shipped import config_folder, configs
from flstudy.controllers import DynamicInitialModel, MasterFL
from flstudy.federation.hyper_parameters import hyper_parameters
from flstudy.population import Dirichlet, SuddenDrift
from flstudy.privacy import Privacy
from flstudy.tasks import Mlp
from tests.tiers import in_tiers

NO_RUN_S = ("rounds", "evaluate_every", "accelerator", "devices", "num_nodes", "precision", "matmul_precision")
"""Keys at the top of a config that are the Trainer's."""
FOLDER = Path(__file__).parents[2] / "tune_configs"
NAMES = [str(path.relative_to(config_folder()).with_suffix("")) for path in configs()]
CONFIGS = [name for name in NAMES if name not in ("fedada2/cifar100", "fedada2/gld23k")]
"""All but those whose first model is read from a file that is not here."""


class Net(L.LightningModule):
    """A user's module, with hyper-parameters of its own."""

    def __init__(self, width: int = 8, rate: float = 0.5, extra: object = None):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.ReLU(), torch.nn.Linear(width, 3))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def data():
    torch.manual_seed(0)
    x = torch.randn(160, 6)
    return x, x[:, :3].argmax(1)


def fitted(logger, task=None, **parts):
    coordinator = Coordinator(Net(width=4), Flash(lr=0.1, tau=1e-2), RunSettings(seeds=[0, 44], compile=False), **parts)
    population = Population(
        data(), clients=8, participants=4, partition=Dirichlet(alpha=0.5), drift=SuddenDrift(round=2)
    )
    trainer = L.Trainer(
        max_epochs=2, logger=logger, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(coordinator, datamodule=population)
    return coordinator, population


EXPECTED = {
    "algorithm": "Flash",
    "algorithm.lr": 0.1,
    "algorithm.tau": 1e-2,
    "population.clients": 8,
    "population.participants": 4,
    "population.partition": "Dirichlet",
    "population.partition.alpha": 0.5,
    "population.drift": "SuddenDrift",
    "population.drift.round": 2,
    "population.drift.change": "LabelSwap",
    "population.dataset": "InMemory",
    "task.width": 4,
    "task.rate": 0.5,
    "task.extra": None,
    "controller": "MasterFL",
    "controller.rho_hat_scale": 0.5,
    "privacy.clip": 0.7,
    "seeds": [0, 44],
    "executor": "vectorized",
}
PARTS = {"controllers": [MasterFL(rho_hat_scale=0.5, lr="algorithm")], "privacy": Privacy(clip=0.7)}


def test_a_csv_logger_has_them(tmp_path):
    fitted(CSVLogger(tmp_path, name="", version=""), **PARTS)
    logged = yaml.safe_load((tmp_path / "hparams.yaml").read_text())
    assert {name: logged[name] for name in EXPECTED} == EXPECTED
    assert logged["task"].endswith("test_hyper_parameters.Net")
    assert all(isinstance(value, str | int | float | list | None) for value in logged.values())


@pytest.mark.slow
def test_mlflow_s_logger_has_them(tmp_path):
    logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "artifacts"))
    fitted(logger, **PARTS)
    params = logger.experiment.get_run(logger.run_id).data.params
    assert {name: params[name] for name in EXPECTED} == {name: str(value) for name, value in EXPECTED.items()}


def test_tensorboard_s_logger_has_them(tmp_path):
    loggers = pytest.importorskip("lightning.pytorch.loggers.tensorboard")
    try:
        logger = loggers.TensorBoardLogger(tmp_path, name="", version="")
    except ModuleNotFoundError:
        pytest.skip("needs tensorboard")
    fitted(logger, **PARTS)
    assert logger.hparams["algorithm.lr"] == 0.1


def test_several_controllers_are_numbered():
    both = [DynamicInitialModel(scale=3.0), MasterFL()]
    run = Coordinator(Net(), FedAvg(), controllers=both).run
    named = hyper_parameters(run, Population(data(), clients=8, participants=4))
    assert (named["controller"], named["controller.2"]) == ("DynamicInitialModel", "MasterFL")
    assert named["controller.scale"] == 3.0


def test_a_task_of_flstudy_s_has_its_defaults_too():
    run = Coordinator(Mlp((6,), 3), FedAvg()).run
    named = hyper_parameters(run, Population(data(), clients=8, participants=4))
    assert named["task"] == "Mlp"
    assert named["task.hidden"] == inspect.signature(Mlp.__init__).parameters["hidden"].default


def test_a_list_of_settings_is_told_by_its_values():
    method = FedBlended(strategies=[Strategy(optimizer="adam"), Strategy(optimizer="sgd", steps=3)])
    named = hyper_parameters(Coordinator(Net(), method).run, Population(data(), clients=8, participants=4))
    assert [(part["optimizer"], part["steps"]) for part in named["algorithm.strategies"]] == [
        ("adam", None),
        ("sgd", 3),
    ]


FIRST = ["quick", "flash/digits", "sessions/digits_drift", "fedada2/digits"]


@pytest.mark.parametrize("name", in_tiers(CONFIGS, FIRST))
def test_they_are_a_config_s_own_keys_and_values(name):
    config = load(FOLDER / f"{name}.yaml")
    flat, every = config.flat(), config.hyper_parameters()
    of_run = hyper_parameters(config.parts.coordinator.run, config.parts.population)
    wanted = {key: value for key, value in flat.items() if not key.startswith("recovery.") and key not in NO_RUN_S}
    assert {key: of_run.get(key, "missing") for key in wanted} == wanted
    assert {key for key in of_run if key not in wanted} <= {f"task.{name}" for name in LINKED}
    assert {key: every[key] for key in flat} == flat
