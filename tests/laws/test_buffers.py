"""Law: BatchNorm's statistics, and other buffers, are state like any other, in every executor."""

from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, RunSettings, load_task
from flstudy.algorithms import Cfl, FedAdam, FedAvg, FedDrift, FedProx, HypCluster, Mime, Moon, Scaffold
from flstudy.execution.context import TrainingContext
from flstudy.execution.programs import Programs
from flstudy.privacy import Privacy
from flstudy.registry import named
from flstudy.tasks import TaskFunction

from ..references import fedbn
from ..worlds import CLASSES, FEATURES, difference, drifting, measured, run, state, trainer, world
from .test_references import cohort

HIDDEN = 5


class Normed(L.LightningModule):
    """A network with BatchNorm, as Lightning's users write it; always the same at first."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.save_hyperparameters()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.net = nn.Sequential(
                nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
            )

    def forward(self, x):
        return self.net(x)

    def features(self, x):
        return self.net[:3](x)

    def example_losses(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def training_step(self, batch, batch_idx):
        return self.example_losses(batch).mean()


class Drawn(Normed):
    """The same network, drawn under a run's seed."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__(hidden)
        for layer in (self.net[0], self.net[3]):
            layer.reset_parameters()


class Counting(Normed):
    """A buffer of its own that steps change, beside a constant and a logical one."""

    def __init__(self) -> None:
        super().__init__()
        self.net[1] = nn.Identity()
        self.register_buffer("seen", torch.zeros(FEATURES))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fixed", torch.linspace(0.5, 1, FEATURES))
        self.register_buffer("on", torch.ones(FEATURES, dtype=torch.bool))

    def forward(self, x):
        if self.training:
            self.seen += 0.1 * x.detach().mean(0)
            self.steps += 1
        return self.net((x - self.seen) * self.fixed * self.on)


def play(algorithm, executor="vectorized", mode="average", rounds=2, task=Normed, **more):
    """A run in double precision with two replicas, ragged devices and a drift."""
    usual = {"population": drifting(participants=4), "seeds": (0, 44)}
    return run(algorithm, rounds, task=task(), executor=executor, buffers=mode, compile=False, **{**usual, **more})


CASES = {
    "average": FedAvg(lr=0.2, momentum=0.5),
    "average adam": FedAdam(lr=0.2, gamma=0.05, first_epoch="eval_received"),
    "average several": HypCluster(lr=0.2),
    "local": FedProx(lr=0.2, mu=0.5, gamma=0.05),
    "local scaffold": Scaffold(lr=0.2),
    "local moon": Moon(lr=0.2),
    "freeze": FedAvg(lr=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_executors_agree_on_batchnorm(name):
    mode, algorithm = name.split()[0], CASES[name]
    others = ("vectorized", "trainer") if name in ("average", "local", "local moon", "freeze") else ("vectorized",)
    more = {"task": Drawn, "initial": "seeded"} if name == "average several" else {}
    sequential, *runs = [play(algorithm, executor, mode, evaluate=True, **more) for executor in ("sequential", *others)]
    for other in runs:
        assert difference(state(sequential), state(other)) <= 1e-12
        names = ["train/loss", "traffic/up_bytes", "valid/loss", "test/accuracy"]
        assert difference(measured(sequential, *names), measured(other, *names)) <= 1e-11
    b = sequential.algorithm.global_models(sequential.server)[..., sequential.task_function.layout.n :]
    first = sequential.task_function.buffers.first()
    if mode == "average":
        assert not torch.equal(b, first.expand_as(b))
    if mode == "local":
        assert torch.equal(b, first.expand_as(b))  # for devices that never trained
        assert sequential.bank.used > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["average", "freeze"])
def test_executors_agree_on_a_modules_own_buffers(mode):
    runs = [play(FedAvg(lr=0.2), executor, mode, task=Counting) for executor in ("sequential", "vectorized", "trainer")]
    assert all(difference(state(runs[0]), state(other)) <= 1e-12 for other in runs[1:])
    task = runs[0].task
    moved = mode == "average"
    assert bool(task.seen.abs().sum() > 0) == moved
    assert bool(task.steps > 0) == moved
    assert torch.equal(task.fixed, Counting().fixed)
    carried = runs[0].task_function.buffers.layout.names
    assert carried == (("seen", "steps") if moved else ())


class OnlyStep(Normed):
    """Nothing but a training_step, in single precision."""

    example_losses = property()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("told", loss)
        return loss


@pytest.mark.slow
def test_a_training_step_with_batchnorm_is_mapped_in_either_precision():
    for precision in ("64-true", "32-true"):
        module = Coordinator(OnlyStep(), FedAvg(lr=0.2), RunSettings(compile=False))
        trainer(1, precision, limit_val_batches=0).fit(module, datamodule=drifting(participants=4))
        assert module.task_function.findings.runs == "mapped"
        assert module.task_function.findings.training_logs == ("told",)
    sequential, vectorized = (
        play(FedAvg(lr=0.2), executor, task=OnlyStep) for executor in ("sequential", "vectorized")
    )
    assert difference(state(sequential), state(vectorized)) <= 1e-12
    assert difference(measured(sequential, "told"), measured(vectorized, "told")) <= 1e-12


@pytest.mark.parametrize("mode", ["local", "average"])
def test_batchnorm_equals_its_transcription(mode):
    names = {"w1": "0.weight", "b1": "0.bias", "scale": "1.weight", "shift": "1.bias", "w2": "3.weight"}
    names |= {"b2": "3.bias", "mean": "1.running_mean", "var": "1.running_var", "count": "1.num_batches_tracked"}

    def read(task):
        tensors = dict(task.state_dict())
        return {name: tensors[f"net.{place}"].double().numpy() for name, place in names.items()}

    lr, rounds, population = 0.3, 3, drifting(participants=3, epochs=2)
    shared, local_parts = read(Normed()), {}
    module = play(FedAvg(lr=lr), mode=mode, rounds=rounds, seeds=(0,), population=population)
    for index in range(rounds):
        shared, local_parts = fedbn.round(shared, local_parts, cohort(population, index), lr, mode)
    here = read(module.task.double())
    for name in fedbn.SHARED if mode == "local" else names:
        if name != "count":  # of which a module has whole ones
            np.testing.assert_allclose(here[name], shared[name], rtol=0, atol=1e-6)  # the task is in single precision
    layout = module.task_function.layout
    exact = torch.cat([torch.from_numpy(shared[name]).flatten() for name in ("w1", "b1", "scale", "shift", "w2", "b2")])
    assert difference(module.server.x[0], exact) <= 1e-12
    if mode == "average":
        b = torch.cat([torch.from_numpy(np.atleast_1d(shared[name])) for name in ("mean", "var", "count")])
        assert difference(module.server.buffers[0], b) <= 1e-12
    for client, parts in local_parts.items():
        row = module.algorithm.client_init(module.server.x[0])
        values = [leaf[module.bank.slot[0, client]] for leaf in module.bank.rows]
        assert len(values) == len(row)
        b = torch.cat([torch.from_numpy(np.atleast_1d(parts[name])) for name in ("mean", "var", "count")])
        w = torch.cat([torch.from_numpy(parts[name]) for name in ("scale", "shift")])
        assert difference(values, [b, w]) <= 1e-12
        model = {**shared, **parts}
        x = population.store.x[:7].double()
        personal = module.personal(client).double()
        np.testing.assert_allclose(personal(x).detach(), fedbn.logits(model, x.numpy()), rtol=0, atol=1e-5)
    assert layout.n == module.server.x.shape[-1]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["average", "local"])
def test_a_checkpoint_goes_on_bit_for_bit_and_gives_the_model_back(mode, tmp_path):
    algorithm = FedAvg(lr=0.2, momentum=0.5)
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    whole = play(algorithm, mode=mode, rounds=4, callbacks=[saving], fit={"enable_checkpointing": True})
    on = play(algorithm, mode=mode, rounds=4, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert difference(state(whole), state(on)) == 0
    path = tmp_path / "epoch=3.ckpt"
    loaded, net = load_task(path), Normed.load_from_checkpoint(path)
    for name, value in whole.task.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
        assert torch.equal(net.state_dict()[name], value), name
    again = Coordinator.load_from_checkpoint(path)
    assert again.run.settings.buffers == mode
    for parameter, other in zip(whole.personal(0).parameters(), again.personal(0).parameters(), strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["average", "local"])
def test_replicas_are_separate_runs_and_one_device_makes_the_modes_the_same(mode):
    together = play(FedAvg(lr=0.2), mode=mode)
    alone = play(FedAvg(lr=0.2), mode=mode, seeds=(44,))
    assert difference(together.server.x[1], alone.server.x[0]) <= 1e-14
    one_device = {"population": world(clients=1, participants=1, partition=None), "seeds": (0,)}
    single = play(FedAvg(lr=0.2), mode=mode, rounds=3, **one_device)
    model = single.algorithm.deployed(*single_state(single))
    average = play(FedAvg(lr=0.2), mode="average", rounds=3, **one_device)
    assert difference(model, average.algorithm.global_models(average.server)[0]) <= 1e-12


def single_state(module):
    """The server and the row of the only device."""
    rows = module.bank.read(module.algorithm, torch.zeros(1, 1, dtype=torch.int64), module.server.x)
    take = torch.utils._pytree.tree_map
    return take(lambda leaf: leaf[0], module.server), take(lambda leaf: leaf[0, 0], rows)


def test_the_devices_order_does_not_matter():
    module = play(FedAvg(lr=0.2), rounds=1)
    work = module.last.cohort
    mixed = torch.arange(work.sizes.shape[1]).flip(0)
    server = module.server
    plain = module.executor.fit(module.algorithm, server, (), work.jobs, work.batches)
    jobs, batches = torch.utils._pytree.tree_map(lambda leaf: leaf[:, mixed], (work.jobs, work.batches))
    other = module.executor.fit(module.algorithm, server, (), jobs, batches)
    assert difference(plain.uploads, torch.utils._pytree.tree_map(lambda leaf: leaf[:, mixed], other.uploads)) <= 1e-14


def test_the_derived_class_is_known_to_nobody_and_a_task_without_buffers_has_none():
    module = Coordinator(Normed(), FedAvg(lr=0.2))
    assert type(module.algorithm) is not FedAvg
    assert isinstance(module.algorithm, FedAvg)
    assert named(FedAvg)["FedProx"] is FedProx
    assert "FedAvg" not in named(FedAvg)
    plain = FedAvg(lr=0.2)
    assert Coordinator(Normed(), plain, RunSettings(buffers="freeze")).algorithm is plain


def test_frozen_statistics_are_those_of_the_task_in_training_too():
    task = TaskFunction(Normed(), "freeze")
    assert not task.couples
    assert task.module.training
    assert not task.module.net[1].training
    with task.evaluating():
        pass
    assert task.module.net[0].training
    assert not task.module.net[1].training


@pytest.mark.parametrize("algorithm", [HypCluster(lr=0.1), FedDrift(lr=0.1), Mime(lr=0.1)])
def test_local_is_refused_where_a_device_has_no_model_of_its_own(algorithm):
    with pytest.raises(ValueError, match=rf"buffers: local makes no sense for {type(algorithm).__name__}.*use average"):
        Coordinator(Normed(), algorithm, RunSettings(buffers="local"))


@pytest.mark.parametrize("algorithm", [FedDrift(lr=0.1), Cfl(lr=0.1)])
def test_running_statistics_are_refused_where_the_server_copies_models(algorithm):
    """A copy with the statistics of a fresh model would be judged as no model that anybody trained."""
    with pytest.raises(ValueError, match=rf"buffers: {type(algorithm).__name__} copies the server's models, not the"):
        play(algorithm, mode="average", rounds=1)
    play(algorithm, mode="freeze", rounds=1)


def test_noise_and_averaged_statistics_are_refused():
    with pytest.raises(ValueError, match="buffers: average uploads running statistics"):
        Coordinator(Normed(), FedAvg(lr=0.1, weighting="uniform"), privacy=Privacy(clip=1.0, noise=1.0))


@pytest.mark.parametrize(
    ("mode", "personal", "averages"),
    [("local", (), False), ("average", ("net.1.*",), False), ("average", ("net.3.*",), True)],
)
def test_noise_is_admitted_where_statistics_stay_on_devices(mode, personal, averages):
    method, noise = FedAvg(lr=0.1, weighting="uniform", personal=personal), Privacy(clip=1.0, noise=1.0)
    if averages:
        with pytest.raises(ValueError, match="buffers: average uploads running statistics"):
            play(method, mode=mode, rounds=1, privacy=noise)
        return
    module = play(method, mode=mode, rounds=1, privacy=noise)
    layout = module.task_function.layout
    assert module.record.metrics["traffic/up_bytes"] == [4 * 8 * (layout.n - 2 * HIDDEN)] * 2
    with pytest.raises(ValueError, match=r"privacy: with algorithm.newcomers: mean devices send parts as they are"):
        play(replace(method, newcomers="mean"), mode=mode, rounds=1, privacy=Privacy(clip=1.0))


def test_compiled_steps_are_refused_with_one_warning():
    context = TrainingContext(TaskFunction(Normed()), world().settle((0,)).store)
    with pytest.warns(UserWarning, match="Normed has BatchNorm") as caught_warnings:
        programs = Programs(context, True)
    assert len(caught_warnings) == 1
    assert not programs.compiled
    assert not Programs(context, "auto").undecided
