"""Every module trains by default: its loss falls, and what its own steps log are metrics of the federation."""

import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F

from flstudy import Coordinator, Population
from flstudy.algorithms import FedAvg, FedProx, Scaffold
from flstudy.metrics.registry import METRICS, of_server
from tests.tiers import in_tiers

from ..worlds import Ragged, Records, arguments, difference, trainer
from . import modules as m

SIZES = (13, 17, 21, 26)
ROUNDS = 10
BOTH = ["ce", "acc"]


def world(kind="classes"):
    """Four ragged devices; labels follow the inputs."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(sum(SIZES), m.FEATURES)).astype(np.float32)
    scores = x @ rng.normal(size=(m.FEATURES, m.CLASSES))
    y = scores.argmax(1)
    data = torch.from_numpy(x), torch.from_numpy(y)
    if kind == "numbers":
        data = data[0], torch.from_numpy(scores[:, 0] / 4)  # float64, as numpy has it
    if kind == "rows":
        data = [
            {"values": x[k], "mask": np.ones(m.FEATURES, dtype=np.int64), "label": int(y[k])} for k in range(len(y))
        ]
    if kind == "nested":
        data = [{"inputs": (x[k], np.ones(1)), "target": {"label": int(y[k])}} for k in range(len(y))]
    if kind == "tuples":
        data = [(x[k], x[k, 0] ** 2, int(y[k])) for k in range(len(y))]
    return Population(data, clients=4, participants=4, partition=Ragged(SIZES), batch_size=4)


def trained(module, rounds=ROUNDS, kind="classes", evaluate=5, algorithm=None, **coordinator):
    """A coordinator after its rounds, and the training losses of all of them."""
    torch.manual_seed(0)
    task = module()
    coordinator = {"compile": False, **coordinator}  # "auto" compiles where the machine is busy and rounds are long
    coordinator = Coordinator(task=task, algorithm=algorithm or FedAvg(lr=0.1), **arguments(**coordinator))
    recorder = Records()
    fits = trainer(rounds, "32-true", callbacks=[recorder], check_val_every_n_epoch=evaluate)
    fits.fit(coordinator, datamodule=world(kind))
    coordinator.kept = recorder.records
    return coordinator, [record.metrics["train/loss"][0] for record in recorder.records]


CASES = [
    (m.LitAutoEncoder, "classes", ("val_loss",), False),
    (m.LitClassifier, "classes", ("val_loss", "val_acc"), True),
    (m.LitRegression, "numbers", ("val_mae", "test_mae"), False),
    (m.LitBatchNorm, "classes", ("val_loss", "val_acc"), True),
    (m.LitDropout, "classes", ("val_loss", "val_acc"), True),
    (m.LitScheduler, "classes", ("val_loss", "val_acc"), True),
    (m.LitTorchMetrics, "classes", ("valid_acc", "val_MulticlassPrecision", "val_MulticlassRecall"), True),
    (m.LitFrozen, "classes", ("val_loss", "val_acc"), True),
    (m.LitTied, "classes", ("val_loss",), False),
    (m.LitDictBatch, "rows", ("val_acc",), False),
    (m.LitSeveralLoaders, "classes", ("val_loss_0",), True),
    (m.LitDictReturn, "classes", ("val_loss", "val_acc"), True),
    (m.LitLogDict, "classes", tuple(f"{split}/{name}" for split in ("valid", "test") for name in BOTH), True),
    (m.LitNested, "classes", ("val/ce",), False),
    (m.LitOutputs, "classes", ("val_epoch_acc",), True),
    (m.LitItem, "classes", ("val_loss", "val_acc"), True),
]
TOLD = {  # by training_step, wherever it is called; torchmetrics are left out
    m.LitRegression: set(), m.LitDictReturn: set(), m.LitDictBatch: set(), m.LitTorchMetrics: set(),
    m.LitNested: {"train/ce"},
}  # fmt: skip


@pytest.mark.parametrize(("module", "kind", "metric_names", "classifies"), in_tiers(CASES, CASES[::3]))
def test_a_module_trains_by_default_and_its_own_metrics_appear(module, kind, metric_names, classifies):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator, losses = trained(module, kind=kind)
    assert len(losses) == ROUNDS
    assert np.mean(losses[-2:]) < 0.97 * losses[0]
    metrics = coordinator.record.metrics
    strange = {name for name in metrics if name not in METRICS}
    assert coordinator.task_function.findings.runs == ("one by one" if module is m.LitItem else "mapped")
    training_metrics = TOLD.get(module, {"train_loss"})
    of_devices = {*metric_names, *(f"{name}_{end}" for name in metric_names for end in ("spread", "devices"))}
    assert strange == {*of_devices, *map(of_server, of_devices), *training_metrics}
    if "train_loss" in training_metrics:
        assert metrics["train_loss"] == pytest.approx(metrics["train/loss"], rel=0.3)  # which means over steps
    assert all(np.isfinite(metrics[name]).all() for name in strange)
    assert {"valid/loss", "test/loss"} <= set(metrics)
    assert any("accuracy" in name for name in metrics) == classifies
    assert {*metrics} <= {*coordinator.measures(world(kind), ROUNDS)}


class LitTwofold(m.LitClassifier):
    """Logs each name by another pair of on_step and on_epoch, given in the two ways that there are."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("told", loss)
        self.log("told_twice", loss, on_epoch=True)
        self.log("told_by_place", loss, True, True, True, True)
        self.log_dict({"told_at_last": loss}, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", F.cross_entropy(self(x), y))
        self.log("val_twice", F.cross_entropy(self(x), y), on_step=True)


@pytest.mark.parametrize("executor", ["vectorized", "sequential", "trainer"])
def test_the_epoch_s_value_of_a_name_that_is_logged_twofold_has_lightning_s_name(executor, tmp_path):
    x, y = world().dataset.examples[:2]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32)
    by_lightning = trainer(1, "32-true")
    by_lightning.fit(LitTwofold(), loader, loader)
    saving = ModelCheckpoint(tmp_path, monitor="told_twice_epoch", filename="{told_by_place_epoch:.2f}")
    federated = trainer(1, "32-true", callbacks=[saving], enable_checkpointing=True)
    coordinator = Coordinator(LitTwofold(), FedAvg(lr=0.1), **arguments(compile=False, executor=executor))
    federated.fit(coordinator, datamodule=world())
    names = {name for name in by_lightning.callback_metrics if not name.endswith("_step")}
    assert names <= set(federated.callback_metrics)
    ours = {name for name in federated.callback_metrics if name.endswith("_epoch")}
    assert ours == {name for name in names if name.endswith("_epoch")} == {
        "told_twice_epoch", "told_by_place_epoch", "val_twice_epoch"
    }  # fmt: skip
    assert saving.best_model_score == federated.callback_metrics["told_twice"]
    assert "told_by_place" in federated.progress_bar_metrics


@pytest.mark.slow
def test_a_module_that_optimises_by_itself_runs_under_a_trainer_and_its_players_learn():
    with pytest.warns(
        UserWarning, match="executor: trainer in place of vectorized, since LitGan cannot run there: it op"
    ):
        coordinator, losses = trained(m.LitGan, evaluate=1)
    first, last = coordinator.kept[0], coordinator.record
    assert last.metrics["val_gap"][0] < 0.9 * first.metrics["val_gap"][0]
    assert len(losses) == ROUNDS
    assert np.isfinite(losses).all()
    assert not any("accuracy" in name or name == "valid/loss" for name in last.metrics)
    assert {"g_loss", "d_loss"} <= set(last.metrics)


class LitTold(m.LitClassifier):
    """Logs numbers of a batch, one of them under the name of its validation."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        right = (logits.argmax(1) == y).float().mean()
        self.log_dict({"ce": loss, "val_acc": right, "two": 2})
        return loss


@pytest.mark.slow
def test_what_is_logged_in_training_is_the_same_in_every_executor():
    runs = {}
    for executor in ("vectorized", "sequential", "trainer"):
        records = trained(LitTold, rounds=2, evaluate=1, executor=executor)[0].kept
        runs[executor] = [
            [record.metrics[name][0] for name in ("ce", "train/val_acc", "val_acc", "two")] for record in records
        ]
    assert runs["vectorized"][1] == pytest.approx(runs["sequential"][1], rel=1e-5)
    assert runs["vectorized"][1] == pytest.approx(runs["trainer"][1], rel=1e-5)
    assert runs["trainer"][0][3] == 2


class LitByHand(m.LitClassifier):
    """Manual optimisation without chance."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.slow
def test_steps_by_hand_are_those_of_the_same_steps_by_lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator, losses = trained(LitByHand)
        other, expected = trained(m.LitClassifier)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert difference(coordinator.server.x, other.server.x) <= 1e-5
    assert coordinator.record.metrics["val_acc"] == other.record.metrics["val_acc"]


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (Scaffold(), "its control variates divide what a device did by K η"),
        (FedProx(mu=0.1), "its devices have a step of their own"),
        (FedAvg(gamma=0.1), "gamma and clip_norm need losses"),
    ],
)
def test_methods_that_correct_steps_refuse_it(algorithm, why):
    with pytest.raises(ValueError, match=f"LitGan optimises by itself .* makes no sense for .*: {why}"):
        Coordinator(task=m.LitGan(), algorithm=algorithm)
