"""Law: devices' rows in files are those in memory, bit for bit, and a run with them goes on from a checkpoint."""

import errno
import os
import re

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy.algorithms import Moon, Scaffold
from flstudy.controllers import Restart
from flstudy.execution import ClientBank
from flstudy.run_settings import IN_MEMORY
from flstudy.tuning.shortage import shortage

from ..worlds import drifting, run, state

SCAFFOLD = Scaffold(lr=0.1)
ROW = 89 * 8  # bytes of a control variate of the worlds' network


def go(algorithm, rounds=4, memory=IN_MEMORY, **more):
    population = drifting(participants=2)
    return run(algorithm, rounds, population=population, seeds=(0, 44), initial="seeded", bank_memory=memory, **more)


def same(first, second):
    tensors, others = (torch.utils._pytree.tree_leaves(state(module)) for module in (first, second))
    return all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


@pytest.mark.parametrize("memory", [0, 5 * ROW], ids=["none in memory", "five rows in memory"])
@pytest.mark.parametrize("algorithm", [SCAFFOLD, Moon(lr=0.1)], ids=["Scaffold", "Moon"])
def test_rows_in_files_are_those_in_memory(algorithm, memory):
    restarts = {"controllers": [Restart(rounds=[3])]}
    plain, filed = go(algorithm, **restarts), go(algorithm, memory=memory, **restarts)
    assert filed.bank._files
    assert not plain.bank._files
    assert same(plain, filed)
    for module in (plain, filed):
        module.bank.forget(0)
    assert (filed.bank.slot[0] == -1).all()
    assert same(plain, filed)


def test_a_run_with_rows_in_files_goes_on_from_a_checkpoint(tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    how = {"memory": 5 * ROW, "callbacks": [saving], "fit": {"enable_checkpointing": True}}
    whole = go(SCAFFOLD, 4)
    go(SCAFFOLD, 2, **how)
    resumed = go(SCAFFOLD, 4, ckpt_path=str(tmp_path / "epoch=1.ckpt"), **how)
    assert resumed.bank._files
    assert same(whole, resumed)
    saved_rows = whole.bank.state_dict()["rows"]
    assert [len(rows) for rows in saved_rows] == [whole.bank.used] * len(saved_rows)


def test_a_full_disk_is_told(monkeypatch):
    def full(file, begin, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    bank = ClientBank(1, 4, memory=0)
    with pytest.raises(OSError, match="No space left") as raised:
        bank.gather(SCAFFOLD, torch.tensor([[0, 2]]), torch.zeros(1, 5))
    assert (message := shortage(raised.value)) is not None
    assert re.fullmatch("the disk of .* is full", message)
