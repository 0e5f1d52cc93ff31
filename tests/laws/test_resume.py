"""Law: a run that is stopped and taken up again is, bit for bit, the run that was not stopped."""

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.controllers import DynamicInitialModel, Restart
from flstudy.execution import ModelEvaluator, model_evaluator, programs
from flstudy.population import AlternatingGroups
from flstudy.tasks import Mlp

from ..tiers import in_tiers
from ..waiting import LIMIT_S, wait_until
from ..worlds import CLASSES, FEATURES, difference, drifting, measured, run
from .cases import FORMS, plain
from .killed import main

REPOSITORY = Path(__file__).parents[2]
TWICE = {"seeds": (0, 44), "initial": "seeded"}
LANES = 6  # three devices of each replica


def saved(path: Path) -> dict:
    """A checkpoint, read as safely as torch can."""
    return torch.load(path, weights_only=True)


def check_equal(checkpoint: dict, other: dict) -> None:
    """All that the coordinator saved, and Lightning's counters."""
    ours, structure = pytree.tree_flatten(checkpoint["flstudy"])
    theirs, same = pytree.tree_flatten(other["flstudy"])
    assert structure == same
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert (checkpoint["global_step"], checkpoint["epoch"]) == (other["global_step"], other["epoch"])


def controllers():
    """A restart before the checkpoint and one after it, which needs the state that is remembered from round 0."""
    return [Restart(rounds=[2]), Restart(rounds=[5], keep_model=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(plain(), FORMS))
def test_three_rounds_a_checkpoint_and_three_rounds_are_six_rounds(name, tmp_path):
    algorithm = replace(plain()[name], gamma=0.05, weight_decay=0.02)

    def go(rounds, folder, **more):
        saving = ModelCheckpoint(folder, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        return run(
            algorithm,
            rounds,
            population=drifting(participants=3),
            seeds=(0, 44),
            initial="seeded",
            controllers=controllers(),
            callbacks=[saving],
            fit={"enable_checkpointing": True, "default_root_dir": folder},
            evaluate=True,
            **more,
        )

    whole = go(6, tmp_path / "whole")
    go(3, tmp_path / "half")
    resumed = go(6, tmp_path / "half", ckpt_path=str(tmp_path / "half" / "epoch=2.ckpt"))
    assert [record.round for record in resumed.records] == [4, 5, 6]
    check_equal(saved(tmp_path / "whole" / "epoch=5.ckpt"), saved(tmp_path / "half" / "epoch=5.ckpt"))
    assert saved(tmp_path / "whole" / "epoch=5.ckpt")["global_step"] == 6
    for a, b in zip(pytree.tree_leaves(whole.server), pytree.tree_leaves(resumed.server), strict=True):
        assert torch.equal(a, b)
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert torch.equal(measured(whole, *names)[3:], measured(resumed, *names))
    assert [record.events for record in whole.records[3:]] == [record.events for record in resumed.records]
    assert {event.round for record in whole.records for event in record.events} == {2, 5}


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_fits_and_evaluations_resume_as_well(threads, tmp_path, monkeypatch):
    """Parts of lanes on threads, devices that stop early, and evaluations by loops from some round on."""
    weigh, before = ModelEvaluator.weigh, torch.get_num_threads()
    monkeypatch.setattr(programs, "ENTRY", 1)  # or there would be one part
    monkeypatch.setattr(model_evaluator, "COST_S", 0.0)
    monkeypatch.setattr(ModelEvaluator, "weigh", lambda self, _, left: weigh(self, 1.0 - bool(self.compiled), left))

    def go(rounds, folder, **more):
        saving = ModelCheckpoint(folder, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        more |= {"fit": {"enable_checkpointing": True, "default_root_dir": folder}, "evaluate": True, "compile": True}
        world = drifting(participants=3)
        return run(Scaffold(lr=0.1, gamma=0.05), rounds, population=world, callbacks=[saving], **TWICE, **more)

    torch.set_num_threads(threads)
    try:
        whole = go(6, tmp_path / "whole")
        go(4, tmp_path / "half")
        resumed = go(6, tmp_path / "half", ckpt_path=str(tmp_path / "half" / "epoch=3.ckpt"))
    finally:
        torch.set_num_threads(before)
    assert whole.executor.choices()["part_lanes"] == -(-LANES // threads)
    assert saved(tmp_path / "half" / "epoch=3.ckpt")["flstudy"]["choices"]["compile_survey"] is True
    check_equal(saved(tmp_path / "whole" / "epoch=5.ckpt"), saved(tmp_path / "half" / "epoch=5.ckpt"))
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert torch.equal(measured(whole, *names)[4:], measured(resumed, *names))


@pytest.mark.parametrize("executor", in_tiers(["sequential", "threads", "trainer"], ["sequential"]))
def test_the_other_executors_resume_as_well(executor, tmp_path):
    def go(rounds, **more):
        saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        fit = {"enable_checkpointing": True, "default_root_dir": tmp_path}
        return run(Flash(lr=0.1), rounds, executor=executor, population=drifting(), callbacks=[saving], fit=fit, **more)

    whole = go(4)
    resumed = go(4, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert torch.equal(whole.server.x, resumed.server.x)
    assert len(resumed.records) == 2


@pytest.mark.slow
def test_sessions_and_what_is_remembered_of_them_resume_as_well(tmp_path):
    def go(rounds, **more):
        saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        fit = {"enable_checkpointing": True, "default_root_dir": tmp_path}
        population = drifting(availability=AlternatingGroups(rounds=1), participants=2)
        more = {"controllers": [DynamicInitialModel(gradient_rounds=2)], "seeds": (0, 44), "evaluate": True, **more}
        return run(Scaffold(lr=0.1), rounds, population=population, callbacks=[saving], fit=fit, **more)

    whole = go(7)
    half = go(4)  # the remembered models and gradients of sessions 2 to 4
    assert half.run.state.controllers[0].models.shape[1] == 3
    resumed = go(7, ckpt_path=str(tmp_path / "epoch=3.ckpt"))
    assert torch.equal(whole.server.x, resumed.server.x)
    for tensor, other in zip(whole.run.state.controllers[0], resumed.run.state.controllers[0], strict=True):
        assert torch.equal(tensor, other)
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert torch.equal(measured(whole, *names)[4:], measured(resumed, *names))


class Forgetful(Mlp):
    """With dropout, whose masks have to be drawn again."""

    def forward(self, x):
        return self.network(F.dropout(x, 0.3, self.training))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_dropout_masks_are_drawn_again(executor, tmp_path):
    def go(rounds, **more):
        torch.manual_seed(rounds)  # as different as two processes can be
        saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        fit = {"enable_checkpointing": True, "default_root_dir": tmp_path}
        task = Forgetful((FEATURES,), CLASSES, hidden=5)
        more = {"initial": "seeded", "executor": executor, **more}
        return run(Flash(lr=0.1), rounds, task=task, population=drifting(), callbacks=[saving], fit=fit, **more)

    whole = go(4)
    go(2)
    resumed = go(4, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert torch.equal(whole.server.x, resumed.server.x)
    plain = run(Flash(lr=0.1), 4, population=drifting(), initial="seeded", executor=executor)
    assert difference(whole.server.x, plain.server.x) > 1e-3


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_replica_s_dropout_masks_are_those_of_a_run_of_its_own(executor):
    def go(*seeds):
        task = Forgetful((FEATURES,), CLASSES, hidden=5)
        return run(
            FedAvg(lr=0.1), 2, task=task, population=drifting(), seeds=seeds, initial="seeded", executor=executor
        )

    together = go(0, 44)
    assert together.task_function.findings.draws
    for place, seed in enumerate((0, 44)):
        assert difference(together.server.x[place], go(seed).server.x[0]) <= 1e-14


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, filename="{epoch}")
    run(FedAvg(lr=0.1), 1, callbacks=[saving], fit={"enable_checkpointing": True, "default_root_dir": tmp_path})
    path = str(tmp_path / "epoch=0.ckpt")
    for sentence, algorithm, more in (
        ("algorithm 'FedAvg', but this run has 'Flash'", Flash(lr=0.1), {}),
        (r"seeds \[0\], but this run has \[1\]", FedAvg(lr=0.1), {"seeds": (1,)}),
        ("executor 'vectorized', but this run has 'sequential'", FedAvg(lr=0.1), {"executor": "sequential"}),
    ):
        with pytest.raises(ValueError, match=sentence):
            run(algorithm, 2, ckpt_path=path, **more)


def start(folder: Path, rounds: int, seconds: float, *ckpt_path: str) -> subprocess.Popen:
    """The run in a process of its own."""
    command = [sys.executable, "-m", "tests.laws.killed", str(folder), str(rounds), str(seconds), *ckpt_path]
    return subprocess.Popen(command, cwd=REPOSITORY)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    rounds, kill_after = 12, random.randint(2, 7)
    killed = start(tmp_path / "killed", rounds, 0.8)
    last = tmp_path / "killed" / "last.ckpt"
    try:
        main(tmp_path / "whole", rounds, 0.0, None)  # while the other one starts
        wait_until(lambda: list((tmp_path / "killed").glob(f"epoch={kill_after}-*.ckpt")), killed.poll)
        time.sleep(random.uniform(0, 0.8))
    finally:
        killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    paths = [path for path in [last, *(tmp_path / "killed").glob("epoch=*.ckpt")] if path.exists()]
    newest = max(paths, key=readable)  # the kill may have hit the writing of one of them
    assert 1 <= readable(newest) < rounds
    assert start(tmp_path / "killed", rounds, 0.0, str(newest)).wait(timeout=LIMIT_S) == 0
    check_equal(saved(tmp_path / "whole" / "last.ckpt"), saved(last))
    assert saved(last)["global_step"] == rounds


def readable(path: Path) -> int:
    """Rounds done in a checkpoint; -1 if it was cut short."""
    try:
        return saved(path)["epoch"] + 1
    except Exception:
        return -1


@pytest.mark.parametrize("when", ["round", "evaluation", "step"])
def test_a_resume_works_from_whatever_moment_lightning_saves_at(when, tmp_path):
    """Not only from the end of an epoch: with rare evaluations, Lightning's default is the end of an evaluation, and
    it then goes through that evaluation again."""
    settings = {
        "round": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
        "evaluation": {"every_n_epochs": 1, "monitor": "valid/accuracy", "mode": "max"},
        "step": {"every_n_train_steps": 1},
    }[when]

    def go(**more):
        saving = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", **settings)
        fit = {"enable_checkpointing": True, "default_root_dir": tmp_path, "check_val_every_n_epoch": 2}
        return run(FedAvg(lr=0.1), 6, callbacks=[saving], fit=fit, population=drifting(), evaluate=True, **more)

    whole = go()
    resumed = go(ckpt_path=str(tmp_path / "step=4.ckpt"))
    assert torch.equal(whole.server.x, resumed.server.x)
    evaluated = {record.round: record.metrics.get("valid/loss") for record in whole.records}
    assert [record.round for record in resumed.records][-2:] == [5, 6]
    assert all(record.metrics.get("valid/loss") == evaluated[record.round] for record in resumed.records)
