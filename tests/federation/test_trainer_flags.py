"""Every flag of a Lightning Trainer works under the coordinator, or is refused in a sentence with what to say instead.

`FLAGS` is the table of them: a flag that Lightning adds fails here until it is told what becomes of it.
"""

import csv
import inspect
import re
from datetime import timedelta

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import LightningEnvironment

from flstudy import Coordinator
from flstudy.algorithms import FedAvg
from flstudy.controllers import Polynomial
from flstudy.execution.vectorized import Vectorized
from flstudy.federation.trainer_flags import MEANINGS, REFUSALS, flags_page

from ..docs.blocks import DOCS
from ..worlds import arguments, difference, drifting, mlp, trainer

WORKS = None
ROUNDS = 2
FLAGS = {  # by flag: values, and WORKS (the models are those of a run without it) or the sentence that refuses it
    "accelerator": [("cpu", WORKS)],
    "strategy": [("auto", WORKS), ("lanes", WORKS), ("ddp", "models are trained as lanes on one device; leave it out")],
    "devices": [
        (1, WORKS),
        (2, "every process would train the same thing; add strategy='lanes', which divides a round's lanes"),
    ],
    "num_nodes": [
        (2, "every machine would train the same thing; add strategy='lanes', or spread trials with flstudy tune")
    ],
    "precision": [("64-true", WORKS), ("bf16-true", "it must be one of 32-true, 64-true, bf16-mixed")],
    "logger": [(False, WORKS)],
    "callbacks": [
        ([callbacks.Timer(), callbacks.LambdaCallback()], WORKS),
        (
            callbacks.StochasticWeightAveraging(1e-2),
            "it acts on weights that devices train by themselves; leave it out",
        ),
    ],
    "fast_dev_run": [(True, WORKS)],  # one round
    "max_epochs": [(ROUNDS, WORKS)],  # rounds
    "min_epochs": [(1, WORKS)],
    "max_steps": [(ROUNDS, WORKS)],  # rounds, too
    "min_steps": [(1, WORKS)],
    "max_time": [(timedelta(hours=1), WORKS)],  # until the round after which it has passed
    "limit_train_batches": [(1.0, WORKS), (0.5, "a round is one batch; use population.steps or population.epochs")],
    "limit_val_batches": [
        *((value, WORKS) for value in (0, 1, 1.0)),
        (0.5, "an evaluation is one batch of everybody; use population.valid or check_val_every_n_epoch"),
    ],
    "limit_test_batches": [
        (0.5, "an evaluation is one batch of everybody; use population.test or check_val_every_n_epoch")
    ],
    "limit_predict_batches": [(3, WORKS)],  # devices
    "overfit_batches": [(1, "a round is one batch; use population.steps or fewer clients")],
    "val_check_interval": [
        (timedelta(hours=1), WORKS),
        (0.5, "a round is one batch; use check_val_every_n_epoch"),
        (5, "a round is one batch; use check_val_every_n_epoch=5"),
    ],
    "check_val_every_n_epoch": [(2, WORKS)],  # evaluates every so many rounds
    "num_sanity_val_steps": [(2, WORKS)],  # there is nothing to check before the first round
    "log_every_n_steps": [(1, WORKS)],  # every round is logged; callbacks such as LearningRateMonitor follow it
    "enable_checkpointing": [(False, WORKS)],
    "enable_progress_bar": [(True, WORKS)],
    "enable_model_summary": [(True, WORKS)],  # of the task
    "accumulate_grad_batches": [(2, "devices step by themselves; use batch_size")],
    "gradient_clip_val": [(1.0, "devices clip by themselves; use algorithm.clip_norm")],
    "gradient_clip_algorithm": [("value", "devices clip the norm; use algorithm.clip_norm")],
    "deterministic": [(True, WORKS)],
    "benchmark": [(True, WORKS)],
    "inference_mode": [(False, WORKS)],
    "use_distributed_sampler": [(False, WORKS)],  # there is one process
    "profiler": [("simple", WORKS)],
    "detect_anomaly": [(True, WORKS)],
    "barebones": [(True, WORKS)],
    "plugins": [([LightningEnvironment()], WORKS)],
    "sync_batchnorm": [(True, "devices share no statistics; leave it out")],
    "reload_dataloaders_every_n_epochs": [(1, WORKS)],
    "default_root_dir": [("here", WORKS)],
    "enable_autolog_hparams": [(False, WORKS)],
    "model_registry": [(None, WORKS)],
}
CASES = [(flag, value, outcome) for flag, cases in FLAGS.items() for value, outcome in cases]


def fitted(outer, algorithm=None, **more):
    """A coordinator after a fit."""
    coordinator = Coordinator(mlp(), algorithm or FedAvg(lr=0.1), **arguments(**{"compile": False, **more}))
    outer.fit(coordinator, datamodule=drifting())
    return coordinator


@pytest.fixture(scope="module")
def plain():
    """What a Trainer without any flag makes after 1 and 2 rounds."""
    return [fitted(trainer(rounds)).server.x for rounds in (1, ROUNDS)]


def test_all_flags_are_told_here_and_in_the_docs():
    trainer_flags = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
    assert set(FLAGS) == set(MEANINGS) == trainer_flags
    refused = {flag for flag, cases in FLAGS.items() if any(outcome is not WORKS for _, outcome in cases)}
    assert {refusal.flag for refusal in REFUSALS} == refused
    assert all(any(outcome is WORKS for _, outcome in FLAGS[flag]) for flag in FLAGS if flag not in refused)
    assert (DOCS / "trainer_flags.md").read_text() == flags_page(), "write the page anew, as it says"


@pytest.mark.parametrize(("flag", "value", "outcome"), CASES, ids=[f"{flag}={value}"[:40] for flag, value, _ in CASES])
def test_a_flag_works_or_is_refused(flag, value, outcome, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {flag: value} | (
        {"check_val_every_n_epoch": None} if isinstance(value, timedelta) and "val" in flag else {}
    )
    if flag == "barebones":  # refuses to be told of what it turns off
        outer = L.Trainer(max_epochs=ROUNDS, accelerator="cpu", devices=1, precision="64-true", barebones=True)
    else:
        outer = trainer(ROUNDS, **flags)
    try:
        if outcome is not WORKS:
            with pytest.raises(ValueError, match=rf"^Trainer\({flag}=.*\): {re.escape(outcome)}$") as refused:
                fitted(outer)
            assert len(str(refused.value)) <= 200
        else:
            assert torch.equal(fitted(outer).server.x, plain[0 if flag == "fast_dev_run" else 1])
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_a_time_limit_leaves_no_time_to_compile(monkeypatch):
    asked = []
    monkeypatch.setattr(Vectorized, "weigh", lambda self, seconds, left: asked.append((seconds, left)) or False)
    outer = trainer(-1, max_time=timedelta(seconds=1))
    coordinator = fitted(outer, compile="auto")
    assert coordinator.record.round == outer.current_epoch >= 1
    assert all(seconds * left <= 1 for seconds, left in asked)  # 15 s of compiling never pay
    asked.clear()
    fitted(trainer(-1, max_steps=4), compile="auto")
    assert [left for _, left in asked] == [3, 2, 1, 0]


def test_callbacks_hear_of_the_devices_learning_rate(tmp_path):
    rates = callbacks.LearningRateMonitor("epoch")
    outer = trainer(3, callbacks=[rates], logger=CSVLogger(tmp_path), log_every_n_steps=1)
    algorithm = FedAvg(lr=0.1)
    fitted(outer, algorithm, schedule=Polynomial(floor=0.5))
    assert rates.lrs["lr-RoundClock"] == pytest.approx([Polynomial(floor=0.5).at(algorithm, t, 3).lr for t in range(3)])


class Tells(L.Callback):
    """Logs the epoch after each batch and at its end, by the module as callbacks do."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.log("batch", float(trainer.current_epoch), on_step=True)

    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("end", float(trainer.current_epoch))


class OfLightning(L.LightningModule):
    """A module of Lightning's own, which logs its loss."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).mean()
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_callbacks_log_stands_beside_the_round_as_in_lightning(tmp_path):
    logs = {}
    for name in ("flstudy", "lightning"):
        outer = trainer(3, "32-true", callbacks=[Tells(), callbacks.LearningRateMonitor("epoch")], log_every_n_steps=1)
        outer.logger = CSVLogger(tmp_path, name=name)
        if name == "flstudy":
            fitted(outer)
        else:
            ones = torch.utils.data.TensorDataset(torch.ones(2, 1))
            outer.fit(OfLightning(), torch.utils.data.DataLoader(ones, batch_size=2))
        with open(tmp_path / name / "version_0" / "metrics.csv") as file:
            rows = list(csv.DictReader(file))
        shared = ("train/loss", "batch", "end")
        logs[name] = {key: [(row["step"], row["epoch"]) for row in rows if row[key]] for key in shared}
    assert logs["flstudy"] == logs["lightning"]
    assert logs["flstudy"]["train/loss"] == logs["flstudy"]["end"] == [("0", "0"), ("1", "1"), ("2", "2")]


def test_the_summary_is_the_task_s_and_the_bar_shows_numbers(capsys):
    outer = trainer(1, callbacks=[callbacks.ModelSummary()])
    shown = callbacks.ModelSummary.summarize
    counts = []
    callbacks.ModelSummary.summarize = staticmethod(lambda data, total, *rest, **more: counts.append(total))
    try:
        coordinator = fitted(outer)
    finally:
        callbacks.ModelSummary.summarize = shown
    assert counts == [sum(p.numel() for p in coordinator.task.parameters())]
    assert {type(value) for value in outer.progress_bar_metrics.values()} == {float}


def test_a_trainer_that_evaluates_limits_devices_too():
    outer = trainer(1, limit_predict_batches=3)
    coordinator = fitted(outer)
    assert len(outer.predict(coordinator, datamodule=drifting())) == 3
    assert difference(coordinator.server.x, fitted(trainer(1)).server.x) == 0
    with pytest.raises(ValueError, match=r"^Trainer\(limit_test_batches=0\.5\): an evaluation is one batch"):
        trainer(1, limit_test_batches=0.5).test(coordinator, datamodule=drifting())
