"""``L.Trainer(devices=N, strategy="lanes")``: the lanes of a round over several devices, which change nothing but
rounding."""

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch

from flstudy import Coordinator
from flstudy.algorithms import FedAvg, Scaffold
from flstudy.config import ConfigError, load
from flstudy.execution.context import TrainingContext
from flstudy.execution.parts import PartWork, RoundPart, balanced_parts
from flstudy.execution.places import DeviceThread, Modes
from flstudy.execution.sharded import make_named
from flstudy.federation.blocks import BankRows
from flstudy.tasks import Mlp

from ..config.test_doors import QUICK
from ..processes import lane_actors
from ..tiers import in_tiers
from ..waiting import LIMIT_S, wait_until
from ..worlds import CLASSES, FEATURES, arguments, difference, drifting, mlp, trainer


def over(devices, algorithm, executor="vectorized", *, rounds=3, population=None, task=None, ckpt=None, **more):
    """A coordinator after some rounds on so many devices, and its Trainer."""
    outer = trainer(rounds, devices=devices, strategy="auto" if devices == 1 else "lanes")
    coordinator = Coordinator(task or mlp(), algorithm, **arguments(**{"executor": executor, "compile": False, **more}))
    outer.fit(coordinator, datamodule=population or drifting(), ckpt_path=ckpt)
    return coordinator, outer


def test_jobs_are_shared_by_their_steps_and_replicas_where_there_are_few():
    assert balanced_parts(torch.tensor([[5], [1], [3]]), 2) == [RoundPart(0, [0]), RoundPart(0, [1, 2])]
    assert balanced_parts(torch.tensor([[5, 1, 3], [5, 1, 3]]), 2) == [RoundPart(1, [0]), RoundPart(1, [1, 2])]
    assert balanced_parts(torch.tensor([[5]]), 3) == [RoundPart(1, [0])]
    assert balanced_parts(torch.tensor([[4, 1, 3, 3, 1, 1]]), 2, together=2) == [
        RoundPart(1, [2, 3]),
        RoundPart(1, [0, 1, 4, 5]),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
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


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            lambda: os._exit(3),
            r"^devices: place [12] of 2 died 3 times on one part of a round, perhaps for want",
        ),
        (raise_it, r"^no third step\n?"),
    ],
    ids=["exit", "raised"],
)
def test_a_place_that_fails_again_and_again_says_so(end, message):
    with pytest.raises((RuntimeError, ValueError), match=message) as error:
        over(2, FedAvg(lr=0.1), "sequential", task=Mortal(end))
    assert len(str(error.value)) <= 200
    assert any("in round 1" in note for note in error.value.__notes__)
    wait_until(lambda: not lane_actors())


def test_a_thread_of_an_accelerator_trains_alike():
    coordinator, _ = over(1, Scaffold(lr=0.1), rounds=1, population=drifting(participants=3))
    population, server = coordinator.population, coordinator.server
    work = population.cohort(2)
    rows = BankRows(coordinator.bank, coordinator.algorithm, work.jobs.client, server.x)
    context = TrainingContext(coordinator.task_function, coordinator.evaluation.evaluator.store)
    place = DeviceThread(partial(make_named, "vectorized", False, None), context, torch.device("cpu"))
    part, weights = RoundPart(1, [0, 2]), torch.full(work.sizes.shape, 1 / 3, dtype=server.x.dtype)
    inputs = part.of((work.jobs, work.batches, weights))
    some = PartWork(coordinator.algorithm, server, *inputs, 1)
    with torch.autograd.set_grad_enabled(True):
        done = place.end(place.begin(Modes.here("cpu", 0, [0]), some, rows, part))
    fit = coordinator.executor.fit(coordinator.algorithm, server, rows.gather(part), *inputs[:2])
    for sums, leaf in zip(done.uploads.total, fit.uploads, strict=True):
        assert difference(sums, leaf.sum(1)) < 1e-12
    place.keep(rows, part, done)
    assert difference(rows.gather(part), fit.clients) < 1e-12
    assert place.ask("choices")["compile"] is False
    place.close(True)


SCRIPT = """
import os, signal, sys, lightning as L, torch
from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import Scaffold
from flstudy.tasks import Logistic
from tests.processes import family

class Own(Logistic):
    pass

class Ended(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 1:
            print(*family(os.getpid()) - {os.getpid()}, flush=True)
            os.kill(os.getpid(), int(sys.argv[1]))

signal.signal(signal.SIGINT, signal.default_int_handler)
x = torch.randn(60, 5)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=2, strategy="lanes", callbacks=[Ended()], **quiet)
population = Population((x, (x[:, 0] > 0).long()), clients=4, participants=4)
trainer.fit(Coordinator(Own((5,), 2), Scaffold(), RunSettings(compile=False)), datamodule=population)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", in_tiers(["SIGKILL", "SIGINT", "done"], ("SIGINT",)))
def test_a_script_without_a_guard_leaves_no_process_and_no_folder_behind(tmp_path, number):
    number = getattr(signal, number, 0)
    (tmp_path / "script.py").write_text(SCRIPT)
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as home:  # whose path must be short
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"RAY_TMPDIR": home, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "script.py", str(int(number))]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode == -9) if number == signal.SIGKILL else (done.returncode in (0, 1)), done.stderr
        pids = done.stdout.split()
        assert len(pids) >= 4  # Ray's own, and two actors
        # Ray's own agents see only after 40 to 80 s that their node was killed; actors are gone within five.
        wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
        if number != signal.SIGKILL:
            assert not [path for path in Path(home).glob("**/session_*") if path.is_dir() and not path.is_symlink()]


def test_a_config_says_how_many():
    config = load(QUICK, {"devices": 2})
    assert len(config.trainer().strategy.parallel_devices) == 2
    with pytest.raises(ConfigError, match=r"study\.resources\.cpu must be >= devices \(2\), got 1"):
        load(QUICK, {"devices": 2}, command="tune")
    load(QUICK, {"devices": 2, "study.resources.cpu": 2}, command="tune")
    assert load(QUICK, {"num_nodes": 2}).trainer().num_nodes == 2
    with pytest.raises(ConfigError, match="num_nodes must be 1 in a study"):
        load(QUICK, {"num_nodes": 2}, command="tune")


NODES = """
import json, sys, ray, torch
from ray.cluster_utils import Cluster
from flstudy.algorithms import Scaffold
from tests.worlds import difference, drifting, run, state

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes.add_node(num_cpus=1)
ray.init(address=nodes.address, log_to_driver=False)
here = run(Scaffold(lr=0.1), 2, population=drifting(), seeds=(0, 44))
there = run(Scaffold(lr=0.1), 2, population=drifting(), seeds=(0, 44), fit={"num_nodes": 2, "strategy": "lanes"})
print(difference(state(here), state(there)))
try:
    run(Scaffold(lr=0.1), 1, population=drifting(), fit={"num_nodes": 3, "strategy": "lanes"})
except ValueError as refusal:
    print(refusal)
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.slow
def test_two_nodes_of_a_cluster_train_what_one_process_does():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_worker_niceness": "0"}
    done = subprocess.run(
        [sys.executable, "-c", NODES], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    apart, refusal = done.stdout.strip().splitlines()[-2:]
    assert float(apart) < 1e-12
    assert refusal.startswith("num_nodes: Ray must have 3 machines with 1 free CPU each, got 2 machines within")


@pytest.mark.slow
def test_several_machines_need_a_ray_that_runs():
    code = NODES.split("nodes = Cluster")[0] + (
        'run(Scaffold(lr=0.1), 1, population=drifting(), fit={"num_nodes": 2, "strategy": "lanes"})'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert "num_nodes: 2 machines need a Ray: call ray.init(address=...) before trainer.fit" in done.stderr
