"""``L.Trainer(devices=N, strategy="lanes")``: the lanes of a round over several devices, which change nothing but
rounding."""

import multiprocessing
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from flstudy import Coordinator
from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.config import ConfigError, load
from flstudy.execution import sharded
from flstudy.execution.executor import TrainingContext
from flstudy.execution.sharded import CoreProcess, DeviceThread, Modes, Share, make_named, shares
from flstudy.tasks import Mlp

from ..config.test_doors import QUICK
from ..worlds import CLASSES, FEATURES, difference, drifting, mlp, trainer


def over(devices, algorithm, executor="vectorized", *, rounds=3, population=None, task=None, ckpt=None, **more):
    """A coordinator after some rounds on so many devices, and its Trainer."""
    outer = trainer(rounds, devices=devices, strategy="auto" if devices == 1 else "lanes")
    coordinator = Coordinator(task or mlp(), algorithm, executor=executor, **{"compile": False, **more})
    outer.fit(coordinator, datamodule=population or drifting(), ckpt_path=ckpt)
    return coordinator, outer


@pytest.mark.parametrize(
    ("algorithm", "executor"),
    [
        (Scaffold(lr=0.1), "vectorized"),
        (Flash(lr=0.1, gamma=0.01), "vectorized"),
        (Scaffold(lr=0.1), "sequential"),
    ],
)
def test_several_devices_train_what_one_does(algorithm, executor):
    runs = [over(devices, algorithm, executor, seeds=(0, 44))[0] for devices in (1, 2)]
    assert difference(runs[0].server, runs[1].server) < 1e-12
    assert difference(runs[0].bank.state_dict(), runs[1].bank.state_dict()) < 1e-12
    for name, values in runs[0].record.metrics.items():
        if not name.startswith("time/"):
            assert runs[1].record.metrics[name] == pytest.approx(values, abs=1e-12), name
    assert not multiprocessing.active_children()


def test_more_devices_than_jobs_share_the_replicas():
    few = {"participants": 1, "seeds": (0, 44, 56)}
    seeds = few.pop("seeds")
    runs = [over(n, FedAvg(lr=0.1), population=drifting(**few), seeds=seeds)[0].server for n in (1, 2)]
    assert difference(*runs) < 1e-12
    assert shares(torch.tensor([[5], [1], [3]]), 2) == [Share(0, [0]), Share(0, [1, 2])]
    assert shares(torch.tensor([[5, 1, 3], [5, 1, 3]]), 2) == [Share(1, [0]), Share(1, [1, 2])]
    assert shares(torch.tensor([[5]]), 3) == [Share(1, [0])]


def test_a_resume_has_the_same_bits_and_says_when_the_number_differs(tmp_path):
    path, whole = tmp_path / "half.ckpt", over(2, Scaffold(lr=0.1), rounds=4)[0]
    over(2, Scaffold(lr=0.1), rounds=2)[1].save_checkpoint(path)
    assert torch.equal(over(2, Scaffold(lr=0.1), rounds=4, ckpt=str(path))[0].server.x, whole.server.x)
    with pytest.warns(UserWarning, match="written with devices 2, and this run has 1"):
        alone = over(1, Scaffold(lr=0.1), rounds=4, ckpt=str(path))[0]
    assert difference(alone.server, whole.server) < 1e-12


class Mortal(Mlp):
    """Its process ends in its third local step of all, or it fails there."""

    def __init__(self, end):
        super().__init__((FEATURES,), CLASSES, hidden=4)
        self.end, self.steps = end, 0

    def example_losses(self, batch):
        self.steps += 1
        if self.steps == 3:
            self.end()
        return super().example_losses(batch)


def raise_it():
    raise ValueError("no third step")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os._exit(3), r"^devices: process [12] of 2 ended with status 3: go on from a checkpoint"),
        (lambda: os.kill(os.getpid(), 9), r"^devices: process [12] of 2 was killed by signal 9, perhaps for want of"),
        (raise_it, r"^no third step\n?"),
    ],
    ids=["exit", "killed", "raised"],
)
def test_a_process_that_fails_says_so(end, said):
    with pytest.raises((RuntimeError, ValueError), match=said) as error:
        over(2, FedAvg(lr=0.1), "sequential", task=Mortal(end))
    assert len(str(error.value)) <= 200
    assert any("in round 1" in note for note in error.value.__notes__)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", ["a thread of an accelerator", "a process that begins anew"])
def test_other_places_train_alike(kind, monkeypatch):
    monkeypatch.setattr(sharded, "start_method", lambda: "spawn")
    monkeypatch.setattr(sharded, "LARGE", 2**10)  # through shared memory
    coordinator, _ = over(1, FedAvg(lr=0.1), rounds=1)
    population, server = coordinator.population, coordinator.server
    work = population.cohort(2)
    clients = coordinator.bank.gather(coordinator.algorithm, work.jobs.client, server.x)
    context = TrainingContext(coordinator.task_function, coordinator.evaluation.survey.store)
    make = partial(make_named, "vectorized", False, None)
    thread = kind.startswith("a thread")
    place = DeviceThread(make, context, torch.device("cpu")) if thread else CoreProcess(make, context, (0, 1), [])
    given = coordinator.algorithm, server, clients, work.jobs, work.batches
    with torch.autograd.set_grad_enabled(True):
        modes = Modes.here("cpu", 0)._replace(dtype=server.x.dtype)
        found = place.ask("fit", modes, *given)
    assert difference(found.uploads, coordinator.executor.fit(*given).uploads) < 1e-12
    assert place.ask("choices")["compile"] is False
    place.close()


SCRIPT = """
import os, lightning as L, multiprocessing, torch
from flstudy import Coordinator, Population
from flstudy.algorithms import FedAvg
from flstudy.tasks import Logistic

class Own(Logistic):
    pass

class Killed(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        print(*[one.pid for one in multiprocessing.active_children()], flush=True)
        os.kill(os.getpid(), 9)

x = torch.randn(60, 5)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
trainer = L.Trainer(max_epochs=3, devices=2, strategy="lanes", callbacks=[Killed()], **quiet)
population = Population((x, (x[:, 0] > 0).long()), clients=4, participants=4)
trainer.fit(Coordinator(Own((5,), 2), FedAvg(), compile=False), datamodule=population)
"""


def test_a_script_without_a_guard_leaves_no_process_behind(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == -9, done.stderr
    pids = done.stdout.split()[-2:]
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)


def test_a_config_says_how_many():
    config = load(QUICK, {"devices": 2})
    assert len(config.trainer().strategy.parallel_devices) == 2
    with pytest.raises(ConfigError, match=r"study\.resources\.cpu must be >= devices \(2\), got 1"):
        load(QUICK, {"devices": 2}, command="tune")
    load(QUICK, {"devices": 2, "study.resources.cpu": 2}, command="tune")
