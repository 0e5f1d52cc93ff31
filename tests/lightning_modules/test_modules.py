"""Every module trains by default: its loss falls, and what its own steps log are metrics of the federation."""

import warnings

import numpy as np
import pytest
import torch

from flstudy import Coordinator, Population
from flstudy.algorithms import FedAvg
from flstudy.metrics.registry import METRICS

from ..worlds import Ragged, Records, trainer
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
    return Population(data, clients=4, participants=4, partition=Ragged(SIZES), batch_size=4)


def trained(module, rounds=ROUNDS, kind="classes", evaluate=5, algorithm=None, **coordinator):
    """A coordinator after its rounds, and the training losses of all of them."""
    torch.manual_seed(0)
    task = module()
    coordinator = Coordinator(task=task, algorithm=algorithm or FedAvg(lr=0.1), **coordinator)
    kept = Records()
    fits = trainer(rounds, "32-true", callbacks=[kept], check_val_every_n_epoch=evaluate)
    fits.fit(coordinator, datamodule=world(kind))
    return coordinator, [record.metrics["train/loss"][0] for record in kept.records]


CASES = [
    (m.LitAutoEncoder, "classes", ["val_loss"], False),
    (m.LitClassifier, "classes", ["val_loss", "val_acc"], True),
    (m.LitRegression, "numbers", ["val_mae", "test_mae"], False),
    (m.LitBatchNorm, "classes", ["val_loss", "val_acc"], True),
    (m.LitDropout, "classes", ["val_loss", "val_acc"], True),
    (m.LitScheduler, "classes", ["val_loss", "val_acc"], True),
    (m.LitTorchMetrics, "classes", ["valid_acc", "val_MulticlassPrecision", "val_MulticlassRecall"], True),
    (m.LitFrozen, "classes", ["val_loss", "val_acc"], True),
    (m.LitTied, "classes", ["val_loss"], False),
    (m.LitDictBatch, "rows", ["val_acc"], False),
    (m.LitSeveralLoaders, "classes", ["val_loss_0"], True),
    (m.LitDictReturn, "classes", ["val_loss", "val_acc"], True),
    (m.LitLogDict, "classes", [f"{split}/{name}" for split in ("valid", "test") for name in BOTH], True),
    (m.LitNested, "classes", ["val/ce"], True),
    (m.LitOutputs, "classes", ["val_epoch_acc"], True),
    (m.LitItem, "classes", ["val_loss", "val_acc"], True),
]


@pytest.mark.parametrize(("module", "kind", "own", "classifies"), CASES)
def test_a_module_trains_by_default_and_its_own_metrics_appear(module, kind, own, classifies):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator, losses = trained(module, kind=kind)
    assert len(losses) == ROUNDS
    assert np.mean(losses[-2:]) < 0.97 * losses[0]
    metrics = coordinator.record.metrics
    strange = {name for name in metrics if name not in METRICS}
    assert strange == {*own, *(f"{name}_spread" for name in own)}
    assert all(np.isfinite(metrics[name]).all() for name in strange)
    assert {"valid/loss", "test/loss"} <= set(metrics)
    assert any("accuracy" in name for name in metrics) == classifies
    assert {*metrics} <= {*coordinator.measures(world(kind), ROUNDS)}
