"""The coordinator under an ordinary Trainer: checkpoints, loggers, frequencies, and where the model goes."""

import csv

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import FedAvg, Flash

from ..worlds import CLASSES, FEATURES, difference, drifting, examples, measured, mlp, run, trainer, world


class Net(L.LightningModule):
    """What a user writes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.net(x)

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


def test_a_user_s_script(tmp_path):
    data = examples().examples
    task = Net()
    coordinator = Coordinator(task, Flash(lr=0.1, server_lr=0.1, tau=1e-2), RunSettings(seeds=(0, 44)))
    saving = ModelCheckpoint(tmp_path / "best", monitor="valid/accuracy", mode="max", filename="{epoch}")
    outer = L.Trainer(
        max_epochs=8,
        callbacks=[saving],
        logger=CSVLogger(tmp_path, name="logs"),
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    outer.fit(coordinator, datamodule=Population((data.x.float(), data.y), clients=5, participants=3, batch_size=4))
    with open(tmp_path / "logs" / "version_0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    accuracy = [float(row["valid/accuracy"]) for row in rows if row["valid/accuracy"]]
    assert len(accuracy) == 8
    assert len([row for row in rows if row["train/loss"]]) == 8
    for name in ("test/accuracy_spread", "server/effective_lr", "traffic/up_bytes", "fit/epochs", "time/round_s"):
        assert len([row for row in rows if row[name]]) == 8, name
    best = max(range(8), key=lambda epoch: accuracy[epoch])
    assert saving.best_model_path.endswith(f"epoch={best}.ckpt")
    assert float(saving.best_model_score) == pytest.approx(max(accuracy))
    saved = torch.load(saving.best_model_path, weights_only=True)
    assert (saved["epoch"], saved["global_step"]) == (best, best + 1)
    assert outer.global_step == outer.current_epoch == 8
    assert torch.equal(task.net.weight.detach().flatten(), coordinator.server.x[0, : FEATURES * CLASSES])
    assert torch.equal(coordinator.load_into(Net(), replica=1).net.bias.detach(), coordinator.server.x[1, -CLASSES:])


def test_the_task_holds_the_trained_model_after_fit():
    task = mlp()
    before = torch.cat([p.detach().reshape(-1) for p in task.parameters()])
    module = run(FedAvg(lr=0.1), 2, task=task)
    after = torch.cat([p.detach().reshape(-1) for p in task.parameters()])
    assert difference(after, module.server.x[0]) <= 1e-7  # the task keeps its own precision
    assert difference(after, before) > 1e-2
    assert module.task is task
    assert "task" not in dict(module.named_children())


def test_given_parameters_are_kept_and_seeded_ones_drawn():
    still = FedAvg(lr=1e-12)
    task = mlp()
    with torch.no_grad():
        next(task.parameters()).fill_(0.25)
    pretrained = torch.cat([p.detach().reshape(-1) for p in task.parameters()])
    pretrained_run = run(still, 1, task=task, seeds=(0, 44), initial="given")
    assert difference(pretrained_run.server.x, pretrained.expand(2, -1)) <= 1e-9
    seeded = run(still, 1, task=task, seeds=(0, 44), initial="seeded")
    assert difference(seeded.server.x[0], pretrained) > 1e-2
    assert difference(seeded.server.x[0], seeded.server.x[1]) > 1e-2
    again = run(still, 1, task=mlp(), seeds=(44,), initial="seeded")
    assert torch.equal(again.server.x[0], seeded.server.x[1])


def test_evaluation_is_as_rare_as_the_trainer_says():
    rare = run(FedAvg(lr=0.1), 7, evaluate=True, fit={"check_val_every_n_epoch": 3}, population=drifting())
    always = run(FedAvg(lr=0.1), 7, evaluate=True, population=drifting())
    evaluated = [record.round for record in rare.records if "valid/accuracy" in record.metrics]
    assert evaluated == [3, 6, 7]  # the last round, too
    assert torch.equal(rare.server.x, always.server.x)  # looking changes nothing
    for record in rare.records:
        assert "train/loss" in record.metrics
        if record.round in evaluated:
            assert record.metrics["test/accuracy"] == always.records[record.round - 1].metrics["test/accuracy"]


def test_sanity_checks_and_other_callbacks_are_harmless():
    module = run(
        FedAvg(lr=1e-12),
        10,
        evaluate=True,
        fit={"num_sanity_val_steps": 2},
        callbacks=[EarlyStopping("valid/loss", patience=2, min_delta=0.01)],
    )
    assert len(module.records) == 3  # nothing improves
    same = run(FedAvg(lr=1e-12), 3, evaluate=True)
    assert torch.equal(measured(module, "test/loss"), measured(same, "test/loss"))


def test_lightning_sees_means_over_replicas():
    outer = trainer(2)
    module = Coordinator(mlp(), FedAvg(lr=0.1), RunSettings(seeds=(0, 44, 56), initial="seeded"))
    outer.fit(module, datamodule=drifting())
    for name in ("train/loss", "valid/accuracy", "test/personal_accuracy", "server/update_norm"):
        values = module.record.metrics[name]
        assert len(values) == 3
        assert float(outer.callback_metrics[name]) == pytest.approx(sum(values) / 3, rel=1e-6)


def test_a_run_can_be_continued_by_hand_with_another_fit():
    """A second fit starts anew: the coordinator's state is that of its run."""
    module = Coordinator(mlp(), FedAvg(lr=0.1), RunSettings(initial="seeded"))
    trainer(2).fit(module, datamodule=drifting())
    first = module.server.x.clone()
    trainer(2).fit(module, datamodule=drifting())
    assert torch.equal(module.server.x, first)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: run(FedAvg(), 1, seeds=()), r"seeds must be one or more different integers ≥ 0, got \[\]"),
        (lambda: run(FedAvg(), 1, max_lanes=0), r"max_lanes must lie in \[1, 1e6\], got 0"),
        (lambda: run(FedAvg(), 1, seeds=(1, 1)), r"different integers ≥ 0, got \[1, 1\]"),
        (lambda: run(FedAvg(), 1, seeds=(-1,)), r"integers ≥ 0, got \[-1\]"),
        (
            lambda: run(FedAvg(), 1, executor="ray"),
            "executor must be one of vectorized, threads, sequential, trainer, auto, got 'ray'",
        ),
        (
            lambda: trainer(1).fit(
                Coordinator(mlp(), FedAvg()), torch.utils.data.DataLoader([1]), torch.utils.data.DataLoader([1])
            ),
            r"the coordinator needs a Population: call trainer\.fit\(coordinator, datamodule=Population\(",
        ),
        (lambda: FedAvg(lr=0.0), r"FedAvg: lr must lie in \(0, 1e12\], got 0\.0"),
        (lambda: FedAvg(momentum=1.0), r"FedAvg: momentum must lie in \[0, 1\), got 1\.0"),
        (lambda: Flash(clamp=1.5), r"Flash: clamp must lie in \[0, 1\], got 1\.5"),
        (lambda: Flash(gamma=-1.0), r"Flash: gamma must lie in \[0, 1e12\], got -1\.0"),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_one_population_serves_several_runs():
    population = world()
    first = run(FedAvg(lr=0.1), 2, population=population)
    run(FedAvg(lr=0.1), 2, population=population, seeds=(3, 4))
    again = run(FedAvg(lr=0.1), 2, population=population)
    assert torch.equal(first.server.x, again.server.x)


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
def test_mixed_precision_computes_in_bfloat16_and_keeps_full_models(executor):
    data = examples().examples
    more = {"population": world(dataset=(data.x.float(), data.y)), "executor": executor, "evaluate": True}
    mixed, full = (run(FedAvg(lr=0.1), 3, precision=precision, **more) for precision in ("bf16-mixed", "32-true"))
    assert mixed.server.x.dtype == full.server.x.dtype == torch.float32
    assert 1e-6 < difference(mixed.server.x, full.server.x) < 0.05
    assert mixed.record.metrics["valid/loss"] == pytest.approx(full.record.metrics["valid/loss"], rel=0.05)
