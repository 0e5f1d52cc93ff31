"""Law: rows that lie beside checkpoints are the bank's, bit for bit, though each writes only what changed."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy import Coordinator
from flstudy.algorithms import Moon, Scaffold
from flstudy.controllers import Restart
from flstudy.execution import ClientBank
from flstudy.execution.row_segments import FOLDER
from flstudy.federation.checkpoint import read_file
from flstudy.federation.checkpoint_rows import remove_with_rows, segments_named

from ..worlds import run, state, wide

SEEDS = (0, 44)
FILES = {"seeds": SEEDS, "initial": "seeded", "bank_memory": 0, "compile": False}


def same(first, second):
    tensors, others = (torch.utils._pytree.tree_leaves(state(module)) for module in (first, second))
    return all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def saving(folder, **how):
    settings = {"filename": "{epoch}", "every_n_epochs": 1, "save_top_k": -1, **how}
    return {"callbacks": [ModelCheckpoint(folder, **settings)], "fit": {"enable_checkpointing": True}, **FILES}


def segments(folder):
    return sorted(path for path in (folder / FOLDER).iterdir() if not path.name.startswith("."))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), Moon(lr=0.1)], ids=["Scaffold", "Moon"])
def test_a_run_goes_on_from_any_checkpoint(algorithm, tmp_path):
    how = {"population": wide(participants=3), "controllers": [Restart(rounds=[3])], **saving(tmp_path)}
    whole = run(algorithm, 6, **how)
    assert len(segments(tmp_path)) >= 4
    for epoch in (1, 4):
        again = {**how, "population": wide(participants=3), **FILES}
        resumed = run(algorithm, 6, ckpt_path=str(tmp_path / f"epoch={epoch}.ckpt"), **again)
        assert same(whole, resumed)
    in_memory = {"population": wide(participants=3), "controllers": [Restart(rounds=[3])], "seeds": SEEDS}
    resumed = run(algorithm, 6, ckpt_path=str(tmp_path / "epoch=2.ckpt"), initial="seeded", **in_memory)
    assert not resumed.bank._files
    assert same(whole, resumed)
    back = Coordinator.load_from_checkpoint(tmp_path / "epoch=5.ckpt", task=whole.task)
    assert all(map(torch.equal, back.bank.rows, whole.bank.state_dict()["rows"]))


@pytest.mark.slow
def test_a_checkpoint_writes_what_changed_and_old_segments_go(tmp_path):
    run(Scaffold(lr=0.1), 9, population=wide(participants=2), **saving(tmp_path, save_top_k=1, save_last=True))
    content = [read_file(path)["flstudy"]["bank"] for path in tmp_path.glob("*.ckpt")]
    assert all(len(rows) == 0 for bank in content for rows in bank["rows"])
    named = {name for bank in content for name, *_ in bank["segments"]}
    assert {path.name for path in segments(tmp_path)} == named
    last = max(content, key=lambda bank: bank["used"])
    assert last["used"] < sum(rows for _, rows, _ in last["segments"]) <= 2 * last["used"]
    assert last["segments"][-1][1] <= 2 * len(SEEDS)  # those who took part since the one before
    remove_with_rows(next(tmp_path.glob("epoch*.ckpt")))
    assert segments(tmp_path) == []


def bank_of(rows):
    bank = ClientBank(1, len(rows), memory=0)
    bank.gather(Scaffold(lr=0.1), torch.arange(len(rows))[None], torch.zeros(1, rows.shape[1]))
    bank.scatter(torch.arange(len(rows))[None], (rows[None],))
    return bank


def test_damage_is_named_and_a_folder_left_behind_too(tmp_path):
    bank = bank_of(torch.randn(7, 5))
    saved = bank.saved_beside(tmp_path)
    again = ClientBank(1, 7, memory=0)
    again.load_state_dict(saved, tmp_path)
    assert torch.equal(again.state_dict()["rows"][0], bank.state_dict()["rows"][0])
    path = segments(tmp_path)[0] / "0.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: its checksum"):
        again.load_state_dict(saved, tmp_path)
    with pytest.raises(ValueError, match="keep the folder rows beside its checkpoints"):
        again.load_state_dict(saved, tmp_path / "elsewhere")


def test_a_folder_whose_segments_somebody_deleted_gets_all_rows_anew(tmp_path):
    bank = bank_of(torch.randn(7, 5))
    bank.saved_beside(tmp_path)
    shutil.rmtree(tmp_path / FOLDER)
    assert [rows for _, rows, _ in bank.saved_beside(tmp_path)["segments"]] == [7]
    bank.scatter(torch.tensor([[3, 1]]), (torch.ones(1, 2, 5),))
    assert [rows for _, rows, _ in bank.saved_beside(tmp_path)["segments"]] == [7, 2]
    assert [rows for _, rows, _ in bank.saved_beside(tmp_path / "other")["segments"]] == [7]


def test_nobody_deletes_what_others_are_writing(tmp_path):
    bank, other = bank_of(torch.randn(7, 5)), bank_of(torch.randn(7, 5))
    saved = other.saved_beside(tmp_path)
    bank.saved_beside(tmp_path)
    bank.collect(tmp_path, [])
    other.load_state_dict(saved, tmp_path)
    assert segments_named(tmp_path) == set()


KILLED = """
    import os, sys, threading, time
    from pathlib import Path
    from lightning.pytorch.callbacks import ModelCheckpoint
    from flstudy.algorithms import Scaffold
    from tests.worlds import run, wide
    folder, wait = Path(sys.argv[1]), float(sys.argv[2])
    def end():
        while not list(folder.glob("*.ckpt")):
            time.sleep(0.001)
        time.sleep(wait)
        os.kill(os.getpid(), 9)
    threading.Thread(target=end, daemon=True).start()
    saving = ModelCheckpoint(folder, filename="{epoch}", every_n_epochs=1, save_top_k=1, save_last=True)
    run(Scaffold(lr=0.1), 400, population=wide(participants=4), seeds=(0, 44), initial="seeded",
        bank_memory=0, compile=False, callbacks=[saving], fit={"enable_checkpointing": True})
"""


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), "0.1"]
    assert subprocess.run(command, env=environment, cwd=root).returncode == -signal.SIGKILL
    path = max(tmp_path.glob("epoch*.ckpt"), key=lambda file: file.stat().st_mtime)
    rounds = read_file(path)["epoch"] + 3
    plain = run(Scaffold(lr=0.1), rounds, population=wide(participants=4), **{**FILES, "bank_memory": 10**9})
    how = {"population": wide(participants=4), **saving(tmp_path, save_top_k=1, save_last=True)}
    resumed = run(Scaffold(lr=0.1), rounds, ckpt_path=str(path), **how)
    assert same(plain, resumed)
