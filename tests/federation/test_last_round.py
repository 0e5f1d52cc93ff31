"""The last round is evaluated, however rare evaluations are and however a run ends."""

import datetime
import time

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks

from flstudy import Coordinator, FederatedRun, RunSettings
from flstudy.algorithms import FedAvg, Scaffold
from flstudy.privacy import Privacy
from tests.worlds import Records, drifting, mlp, run, trainer, wide, world

ROUNDS = 10


def evaluated(records):
    return [record.round for record in records if "valid/loss" in record.metrics]


@pytest.mark.parametrize(("every", "rounds"), [(1, list(range(1, 11))), (4, [4, 8, 10]), (5, [5, 10]), (20, [10])])
def test_of_a_run_and_of_a_trainer(every, rounds):
    plain = FederatedRun(mlp(), FedAvg(lr=0.1), RunSettings(compile=False))
    plain.start(drifting(), ROUNDS, precision="64-true")
    records = list(plain.play(evaluate_every=every))
    assert evaluated(records) == rounds
    fitted = run(FedAvg(lr=0.1), ROUNDS, evaluate=True, population=drifting(), fit={"check_val_every_n_epoch": every})
    assert evaluated(fitted.records) == rounds
    assert records[-1].metrics["valid/loss"] == fitted.records[-1].metrics["valid/loss"]


class Validations(L.Callback):
    """Rounds in which Lightning validated, and the flag that says how often it does."""

    def __init__(self):
        self.rounds, self.flags = [], []

    def on_validation_end(self, trainer, pl_module):
        self.rounds.append(trainer.current_epoch + 1)
        self.flags.append(trainer.check_val_every_n_epoch)


def test_it_is_lightnings_own_validation(tmp_path):
    seen, best = Validations(), callbacks.ModelCheckpoint(tmp_path, "{epoch}", monitor="valid/loss", save_top_k=-1)
    flags = {"check_val_every_n_epoch": 4, "enable_checkpointing": True, "callbacks": [seen, best]}
    run(FedAvg(lr=0.1), ROUNDS, evaluate=True, fit=flags)
    assert seen.rounds == [4, 8, 10]
    assert seen.flags == [4, 4, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=3.ckpt", "epoch=7.ckpt", "epoch=9.ckpt"]


class StopsIn(L.Callback):
    """Ends the fit in a round."""

    def __init__(self, round):
        self.round = round

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop |= trainer.current_epoch + 1 == self.round


class Slow(L.Callback):
    """Makes a round last a fifth of a second."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        time.sleep(0.2)


@pytest.mark.parametrize("flags", [{}, {"min_epochs": 8}, {"min_steps": 8}])
def test_a_fit_that_a_callback_ends(flags):
    rounds = max(6, *flags.values()) if flags else 6
    fitted = run(
        FedAvg(lr=0.1), ROUNDS, evaluate=True, callbacks=[StopsIn(6)], fit={"check_val_every_n_epoch": 4, **flags}
    )
    assert fitted.records[-1].round == rounds
    assert evaluated(fitted.records) == sorted({4, rounds})


@pytest.mark.slow
def test_a_fit_that_its_time_ends():
    flags = {"check_val_every_n_epoch": 4, "max_time": datetime.timedelta(seconds=1)}
    fitted = run(FedAvg(lr=0.1), 1000, evaluate=True, callbacks=[Slow()], fit=flags)
    assert evaluated(fitted.records)[-1] == fitted.records[-1].round < 1000


@pytest.mark.parametrize(
    ("flags", "rounds"),
    [
        ({"check_val_every_n_epoch": None, "val_check_interval": 4}, [4, 8, 10]),  # counted in rounds, by Lightning
        ({"val_check_interval": datetime.timedelta(hours=1)}, [10]),
        ({"limit_val_batches": 0}, []),  # the user wants none
    ],
)
def test_whatever_the_flags_count_in(flags, rounds):
    fitted = run(FedAvg(lr=0.1), ROUNDS, evaluate=True, fit=flags)
    assert evaluated(fitted.records) == rounds


def test_a_run_whose_privacy_is_spent():
    spent = Privacy(clip=0.05, noise=1.0, delta=1e-3, target_epsilon=20.0)
    how = {"population": world(), "privacy": spent}
    fitted = run(FedAvg(lr=0.1, weighting="uniform"), 50, evaluate=True, fit={"check_val_every_n_epoch": 50}, **how)
    last = fitted.records[-1].round
    assert 1 < last < 50
    assert evaluated(fitted.records) == [last]


def test_models_of_participants_that_did_not_stay_are_left_out():
    small = {"population": wide(), "seeds": (0,), "cohort_memory": 1}
    planned = run(Scaffold(lr=0.1), 3, evaluate=True, fit={"check_val_every_n_epoch": 50}, **small)
    assert "test/personal_accuracy" in planned.records[-1].metrics
    how = {"fit": {"check_val_every_n_epoch": 50}, "callbacks": [StopsIn(3)]}
    stopped = run(Scaffold(lr=0.1), 9, evaluate=True, **how, **small)
    assert evaluated(stopped.records) == [3]
    assert "test/personal_accuracy" not in stopped.records[-1].metrics


@pytest.mark.parametrize("when", ["on_validation_end", "on_train_epoch_end"])
def test_a_longer_fit_goes_on_from_it(tmp_path, when):
    flags = {"check_val_every_n_epoch": 3}
    saves = callbacks.ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=when == "on_train_epoch_end")
    run(FedAvg(lr=0.1), 4, evaluate=True, callbacks=[saves], fit={**flags, "enable_checkpointing": True})
    whole = run(FedAvg(lr=0.1), 7, evaluate=True, fit=flags)
    records, module = Records(), Coordinator(mlp(), FedAvg(lr=0.1), RunSettings(compile=False))
    trainer(7, callbacks=[records], **flags).fit(module, datamodule=world(), ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(module.server.x, whole.server.x)
    after = [record for record in records.records if record.round > 4]  # Lightning ends the fourth epoch once more
    assert [record.round for record in after] == [5, 6, 7]
    assert evaluated(after) == [6, 7]
