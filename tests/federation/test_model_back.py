"""The trained model is had back from a checkpoint: by the coordinator, as a task, by the task's own class, and by a
Trainer that only evaluates."""

import inspect
import pickle
import warnings
from argparse import Namespace
from dataclasses import fields

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, FederatedRun, RunSettings, load_task
from flstudy.algorithms import Apfl, Ditto, FedAvg, FedBlended, Flash, HypCluster, LocalOnly
from flstudy.controllers import Polynomial, Restart
from flstudy.federation.checkpoint import of_first_replica, run_arguments
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import WorstDevices
from flstudy.metrics.panel import Panel
from flstudy.metrics.wireless import Wireless
from flstudy.privacy import AdaptiveClip, Privacy
from flstudy.tasks import Mlp

from ..worlds import CLASSES, DEVICES, FEATURES, arguments, difference, drifting, mlp, run, state, trainer, world

SEEDS = (0, 44)


class Net(L.LightningModule):
    """A user's, with hyper-parameters, a frozen layer, a buffer and tied weights."""

    def __init__(self, hidden=7, seeds="its own"):
        super().__init__()
        self.save_hyperparameters()
        self.frozen = nn.Linear(FEATURES, hidden).requires_grad_(False)
        self.head, self.again = nn.Linear(hidden, CLASSES), nn.Linear(hidden, CLASSES)
        self.again.weight, self.again.bias = self.head.weight, self.head.bias
        self.register_buffer("scale", torch.rand(hidden))

    def forward(self, x):
        return self.again(self.frozen(x) * self.scale)

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


class Optimized(Net):
    """One with an optimizer of its own, whose learning rate may fall."""

    def __init__(self, falls=False):
        super().__init__()
        self.save_hyperparameters("falls")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7)] if self.hparams.falls else []
        return [optimizer], schedulers


class Bare(Net):
    """One that saves no hyper-parameters, and needs one."""

    def __init__(self, width):
        L.LightningModule.__init__(self)
        self.frozen = nn.Linear(FEATURES, width).requires_grad_(False)
        self.head, self.again = nn.Linear(width, CLASSES), nn.Linear(width, CLASSES)
        self.again.weight, self.again.bias = self.head.weight, self.head.bias
        self.register_buffer("scale", torch.rand(width))


def fitted(folder, algorithm, task, population=None, **more):
    """A coordinator, its trainer, its world and its best checkpoint after two rounds."""
    saving = ModelCheckpoint(folder, monitor="valid/loss", filename="best")
    outer = trainer(2, callbacks=[saving], enable_checkpointing=True)
    initial = "given" if isinstance(task, Net) else "seeded"  # whose frozen layer would differ by seed
    coordinator = Coordinator(
        task, algorithm, **arguments(**{"seeds": SEEDS, "initial": initial, "compile": False, **more})
    )
    population = population or drifting()
    outer.fit(coordinator, datamodule=population)
    saving.final = str(folder / "last.ckpt")
    outer.save_checkpoint(saving.final)
    return coordinator, outer, population, saving


def same(module, other):
    """Whether two modules hold the same."""
    pairs = zip(module.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A user's net under two seeds."""
    return fitted(tmp_path_factory.mktemp("net"), Flash(lr=0.1, tau=1e-2, gamma=0.05), Net(hidden=9))


def test_the_task_s_own_class_loads_a_checkpoint(trained):
    coordinator, _, _, saving = trained
    net = Net.load_from_checkpoint(saving.final, weights_only=True)
    assert net.hparams == {"hidden": 9, "seeds": "its own"}
    assert same(net, coordinator.task)
    assert torch.equal(net.again.weight, net.head.weight)


def test_the_coordinator_and_its_task_come_back(trained):
    coordinator, _, population, saving = trained
    back = Coordinator.load_from_checkpoint(saving.final)
    assert isinstance(back.task, Net)
    assert same(back.task, coordinator.task)
    assert (back.algorithm, back.seeds, back.run.settings.initial) == (coordinator.algorithm, SEEDS, "given")
    assert back.record.round == 2
    assert torch.equal(back.server.x, coordinator.server.x)
    other = load_task(saving.final, replica=1)
    assert torch.equal(other.head.bias.flatten().double(), coordinator.server.x[1, -CLASSES:].float().double())
    assert not other.training
    assert same(other.frozen, coordinator.task.frozen)
    outer = trainer(2)
    outer.fit(back, datamodule=population, ckpt_path=saving.best_model_path, weights_only=True)
    assert torch.equal(back.server.x, coordinator.server.x)  # it goes on as any other


def test_a_trainer_evaluates_a_checkpoint_without_a_fit(trained):
    coordinator, outer, population, saving = trained
    (measured,) = outer.validate(coordinator, datamodule=population, ckpt_path="best", verbose=False)
    assert measured["valid/loss"] == pytest.approx(float(saving.best_model_score), rel=1e-6)
    (last,) = outer.test(coordinator, datamodule=population, ckpt_path=saving.final, verbose=False)
    names = {"loss", "accuracy", "accuracy_spread"}
    assert set(last) == {f"test/{of}{name}" for of in ("", "global_") for name in names}
    assert coordinator.record.round == 2
    back = Coordinator.load_from_checkpoint(saving.final)
    assert trainer(1).test(back, datamodule=drifting(), verbose=False) == [last]
    predictions = outer.predict(coordinator, datamodule=population)
    assert [prediction.device for prediction in predictions] == list(range(DEVICES))
    right = [(prediction.outputs.argmax(-1) == prediction.labels).double().mean() for prediction in predictions]
    world = coordinator.evaluation.of_devices(coordinator.server, coordinator.bank, population.cohort(2).round, 2)
    assert float(torch.stack(right).mean()) == pytest.approx(world["test/accuracy"][0])


def test_a_saved_coordinator_that_was_loaded_is_the_same(trained, tmp_path):
    coordinator, _, population, saving = trained
    back = Coordinator.load_from_checkpoint(saving.final)
    outer = trainer(1)
    outer.validate(back, datamodule=population, verbose=False)
    outer.save_checkpoint(tmp_path / "again.ckpt")
    assert same(load_task(tmp_path / "again.ckpt"), coordinator.task)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [Ditto(lr=0.1), Apfl(lr=0.1), LocalOnly(lr=0.1)], ids=lambda algorithm: type(algorithm).__name__
)
def test_a_device_has_its_own_model(algorithm, tmp_path):
    coordinator, outer, population, saving = fitted(tmp_path, algorithm, mlp())
    back = Coordinator.load_from_checkpoint(saving.final)
    trained = coordinator.last.cohort.jobs.client
    for replica in range(len(SEEDS)):
        device = int(trained[replica, 0])
        personal = torch.cat([p.detach().flatten() for p in back.personal(device, replica).parameters()])
        assert torch.equal(personal, coordinator.last.fit.personal[replica, 0].float())
    assert not torch.equal(personal, coordinator.server.x[1].float())
    assert len(outer.predict(back, datamodule=population)) == DEVICES
    with pytest.raises(ValueError, match="client must be a device from 0 to 5, got 6"):
        back.personal(6)
    content = torch.load(saving.final, weights_only=True)
    torch.save({**content, "flstudy": of_first_replica(content["flstudy"])}, tmp_path / "kept.pt")
    first_replica = Coordinator.load_from_checkpoint(tmp_path / "kept.pt")
    assert torch.equal(first_replica.server.x[0], coordinator.server.x[0])
    with pytest.raises(ValueError, match=f"devices of {type(algorithm).__name__} are in checkpoints, not in a model"):
        first_replica.personal(0)


def test_of_several_models_a_device_has_the_one_that_it_chooses(tmp_path):
    _, outer, population, saving = fitted(tmp_path, HypCluster(lr=0.1), mlp())
    back = Coordinator.load_from_checkpoint(saving.final)
    with pytest.raises(ValueError, match=r"choose a model by their data: call trainer\.validate"):
        back.personal(0)
    outer.validate(back, datamodule=population, verbose=False)
    everybody = back.evaluation.everybody(2)
    chosen = back.evaluation.choice(back.server, population.cohort(2).round, 2, everybody)[1, 3]
    personal = torch.cat([p.detach().flatten() for p in back.personal(3, 1).parameters()])
    assert torch.equal(personal, back.server.x[1, chosen].float())


@pytest.mark.slow
def test_all_parts_are_made_again(tmp_path):
    privacy = Privacy(clip=1.0, noise=0.1, adaptive_clip=AdaptiveClip(quantile=0.5))
    _, _, _, saving = fitted(tmp_path, FedAvg(weighting="uniform"), mlp(), privacy=privacy, schedule=Polynomial())
    back = Coordinator.load_from_checkpoint(saving.final)
    assert isinstance(back.task, Mlp)
    assert (back.run.aggregator.privacy, back.schedule, back.run.settings.compile) == (privacy, Polynomial(), False)
    second = fitted(tmp_path / "2", FedBlended(), mlp(), controllers=[Restart(rounds=[2])])[3]
    back = Coordinator.load_from_checkpoint(second.final)
    assert (back.algorithm, back.controllers) == (FedBlended(), (Restart(rounds=[2]),))
    other = Coordinator.load_from_checkpoint(second.final, executor="sequential")
    assert other.run.settings.executor == "sequential"


@pytest.mark.slow
@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("mode", ["module", "module_reset"])
def test_a_run_by_the_module_s_optimizer_goes_on_bit_for_bit(falls, mode, tmp_path):
    """Mapped over devices, and, where the learning rate falls, stepped by torch."""
    path = tmp_path / "epoch=4.ckpt"
    saving = ModelCheckpoint(tmp_path, every_n_epochs=5, save_top_k=-1, filename="{epoch}")
    settings = {"seeds": SEEDS, "local_optimizer": mode, "executor": "sequential" if falls else "vectorized"}
    fit = {"enable_checkpointing": True}
    whole = run(FedAvg(), 10, population=drifting(), task=Optimized(falls), callbacks=[saving], fit=fit, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an optimizer that is not used
        back = Coordinator.load_from_checkpoint(path)
    assert (back.run.settings.local_optimizer, back.record.round) == (mode, 5)
    trainer(10, limit_val_batches=0).fit(back, datamodule=drifting(), ckpt_path=path, weights_only=True)
    assert back.record.round == 10
    assert difference(state(back), state(whole)) == 0
    assert len(back.bank.rows) > 0


class Normed(Net):
    """One whose running statistics the server averages."""

    def __init__(self, hidden=7):
        super().__init__()
        self.save_hyperparameters()
        self.frozen = nn.Sequential(nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden))
        self.scale.fill_(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_a_restart_after_going_on_begins_with_the_first_buffers(buffers, tmp_path):
    path, controllers = tmp_path / "epoch=1.ckpt", [Restart(rounds=[3])]
    saving = ModelCheckpoint(tmp_path, every_n_epochs=2, save_top_k=-1, filename="{epoch}")
    settings = {"seeds": SEEDS, "buffers": buffers, "controllers": controllers, "fit": {"enable_checkpointing": True}}
    whole = run(FedAvg(lr=0.1), 4, population=drifting(), task=Normed(), callbacks=[saving], **settings)
    back = Coordinator.load_from_checkpoint(path)
    if buffers == "average":
        average = back.server.buffers[0, :7].float()
        assert torch.equal(back.task.frozen[1].running_mean, average)
        assert average.abs().min() > 0
    trainer(4, limit_val_batches=0).fit(back, datamodule=drifting(), ckpt_path=path, weights_only=True)
    assert difference(state(back), state(whole)) == 0


@pytest.mark.parametrize(("name", "other"), [("local_optimizer", "rule"), ("buffers", "freeze")])
def test_a_run_is_not_gone_on_with_in_another_way(name, other, tmp_path):
    saving = fitted(tmp_path, FedAvg(), Optimized(), local_optimizer="module")[3]
    settings = {"seeds": SEEDS, "local_optimizer": "module", name: other}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed = Coordinator(Optimized(), FedAvg(), RunSettings(**settings))
    with pytest.raises(ValueError, match=f"was written with {name} '.*', but this run has '{other}'"):
        trainer(3).fit(changed, datamodule=drifting(), ckpt_path=saving.final, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["schedule", "local_optimizer"])
def test_every_argument_comes_back(tmp_path, left_out):
    """Also one that is added to the coordinator later; a module's own optimizer follows no schedule."""
    values = {
        "algorithm": FedAvg(lr=0.07, clip_norm=2.0, weighting="uniform"),
        "seeds": (9,),
        "initial": "seeded",
        "executor": "sequential",
        "compile": False,
        "local_optimizer": "module_reset",
        "buffers": "freeze",
        "max_lanes": 3,
        "bank_memory": 12345,
        "cohort_memory": 54321,
        "controllers": [Restart(rounds=[3], keep_model=True)],
        "schedule": Polynomial(rounds=5),
        "wireless": Wireless(),
        "regret": Regret(tolerance=1e3),
        "privacy": Privacy(clip=1.0, noise=0.1, adaptive_clip=AdaptiveClip(quantile=0.25)),
        "measure": WorstDevices(share=0.3),
        "panel": Panel(clients=5, examples=4),
    }
    settings = [field.name for field in fields(RunSettings)]
    parts = inspect.signature(FederatedRun).parameters
    assert set(values) == {*parts, *settings} - {"task", "settings"}
    defaults = {name: part.default for name, part in parts.items()} | vars(RunSettings())
    assert all(defaults[name] != value for name, value in values.items())
    expected = {name: value for name, value in values.items() if name != left_out}
    values[left_out] = defaults[left_out]
    saving = ModelCheckpoint(tmp_path, every_n_epochs=2, save_top_k=-1, filename="{epoch}")
    fit = {"enable_checkpointing": True}
    whole = run(task=Optimized, rounds=4, population=drifting(), evaluate=True, callbacks=[saving], fit=fit, **values)
    path = tmp_path / "epoch=1.ckpt"
    back = Coordinator.load_from_checkpoint(path)
    saved = torch.load(path, weights_only=True)["flstudy"]
    for content in (saved, {"seeds": back.seeds, "made": back.run.recipe}):
        rebuilt = run_arguments(path, {"flstudy": content}, {"task": Optimized()})
        del rebuilt["task"]
        rebuilt_settings = vars(rebuilt.pop("settings"))
        assert {**rebuilt, **rebuilt_settings, "seeds": tuple(rebuilt_settings["seeds"]), left_out: None} == {
            **expected,
            left_out: None,
        }
    trainer(4).fit(back, datamodule=drifting(), ckpt_path=path, weights_only=True)
    assert difference(state(back), state(whole)) == 0
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert back.record.round == 4
    assert [back.record.metrics[name] for name in names] == [whole.record.metrics[name] for name in names]


class Configured(L.LightningModule):
    """A user's, of any arguments."""

    def __init__(self, hidden=7, activation=nn.ReLU, options=None, last=None, **more):
        super().__init__()
        self.save_hyperparameters()
        sizes = getattr(options, "hidden", hidden)
        last = last or nn.Linear(sizes, CLASSES)
        self.net = nn.Sequential(nn.Linear(FEATURES, sizes), activation(), last)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


class OfOne(L.LightningModule):
    """A user's, whose arguments are one namespace."""

    forward, training_step = Configured.forward, Configured.training_step

    def __init__(self, options):
        super().__init__()
        self.save_hyperparameters(options)
        self.net = nn.Sequential(
            nn.Linear(FEATURES, options.hidden), options.activation(), nn.Linear(options.hidden, CLASSES)
        )


def saved_by(folder, task):
    saving = ModelCheckpoint(folder, filename="c")
    outer = trainer(1, callbacks=[saving], enable_checkpointing=True)
    coordinator = Coordinator(task, FedAvg(lr=0.1), RunSettings(compile=False, initial="given"))
    outer.fit(coordinator, datamodule=drifting())
    return folder / "c.ckpt", coordinator.task


@pytest.mark.parametrize(
    "task",
    [
        lambda: Configured(5, nn.Tanh),
        lambda: Configured(options=Namespace(hidden=3, rates=[0.1, 0.2], nested={"a": None})),
        lambda: Configured(more={"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}}),
        lambda: Configured(more=Flash(lr=0.3)),
        lambda: OfOne(Namespace(hidden=5, activation=nn.Tanh)),
        lambda: torch.compile(Configured(5, nn.Tanh)),
    ],
    ids=["class", "namespace", "mapping", "setting", "one namespace", "compiled"],
)
def test_arguments_that_are_no_plain_values_come_back(task, tmp_path):
    path, trained = saved_by(tmp_path, task())
    x = torch.randn(4, FEATURES)
    assert set(torch.load(path, weights_only=True)["state_dict"]) == set(trained.state_dict())
    for back in (load_task(path), Coordinator.load_from_checkpoint(path).task):
        assert type(back) is type(trained)
        assert dict(back.hparams) == dict(trained.hparams)
        assert torch.equal(back(x), trained(x))


def test_an_argument_that_a_checkpoint_cannot_hold_is_named(tmp_path):
    path, trained = saved_by(tmp_path, Configured(7, last=nn.Linear(7, CLASSES, bias=False)))  # and of its usual class
    for load in (load_task, Coordinator.load_from_checkpoint):
        with pytest.raises(
            ValueError, match=r"does not hold the argument last of Configured, since a Linear is no pla"
        ):
            load(path)
    x = torch.randn(4, FEATURES)
    assert torch.equal(load_task(path, Configured(7, last=nn.Linear(7, CLASSES, bias=False)))(x), trained(x))
    with pytest.raises(TypeError):  # Lightning's own way takes no default in its place
        Configured.load_from_checkpoint(path)
    assert torch.equal(Configured.load_from_checkpoint(path, last=nn.Linear(7, CLASSES, bias=False))(x), trained(x))


def test_lightnings_own_way_takes_no_default_for_a_class(tmp_path):
    path, trained = saved_by(tmp_path, Configured(5, nn.Tanh))
    with pytest.raises(TypeError):
        Configured.load_from_checkpoint(path)
    x = torch.randn(4, FEATURES)
    assert torch.equal(Configured.load_from_checkpoint(path, activation=nn.Tanh)(x), trained(x))


def test_a_task_that_cannot_be_made_is_asked_for(tmp_path):
    coordinator, _, _, saving = fitted(tmp_path, FedAvg(), Bare(8))
    path = saving.final
    with pytest.raises(ValueError, match=r"Bare cannot be made from .*: give task=, or let its __init__ call"):
        Coordinator.load_from_checkpoint(path)
    assert same(load_task(path, Bare(8)), coordinator.task)
    with pytest.raises(
        ValueError, match=r"of another task than this Bare: it holds head.weight as \[4, 8\] instead of"
    ):
        load_task(path, Bare(9))
    with pytest.raises(ValueError, match=r"of another task than this Mlp: it holds no network\.1\.weight; give that"):
        trainer(2).fit(Coordinator(mlp(), FedAvg(), RunSettings(seeds=SEEDS)), datamodule=drifting(), ckpt_path=path)
    content = torch.load(path, weights_only=True)
    content["flstudy"]["made"]["task"] = "never.imported.Net"
    torch.save(content, tmp_path / "strange.ckpt")
    with pytest.raises(
        ValueError, match=r"never\.imported\.Net is no class that is imported here: import it first, or give"
    ):
        load_task(tmp_path / "strange.ckpt")
    content["flstudy"]["made"]["parts"]["algorithm"] = {"class_path": "subprocess.Popen", "init_args": {"args": "x"}}
    torch.save(content, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match=r"subprocess\.Popen is nothing that a config can name"):
        load_task(tmp_path / "evil.ckpt", Bare(8))
    del content["flstudy"]["made"]  # as earlier versions wrote them
    torch.save({**content, "state_dict": {"clock": torch.zeros(())}}, tmp_path / "old.ckpt")
    with pytest.raises(ValueError, match="earlier flstudy, which kept no task: give task="):
        load_task(tmp_path / "old.ckpt")
    old = Coordinator.load_from_checkpoint(tmp_path / "old.ckpt", task=Bare(8), algorithm=FedAvg())
    assert torch.equal(old.task.head.weight, coordinator.task.head.weight)


def test_damaged_and_missing_files_are_told(tmp_path):
    _, _, _, saving = fitted(tmp_path, FedAvg(), mlp())
    whole = bytearray((tmp_path / "last.ckpt").read_bytes())
    whole[len(whole) // 2] ^= 255
    (tmp_path / "flipped.ckpt").write_bytes(whole)
    (tmp_path / "cut.ckpt").write_bytes(whole[:500])
    torch.save({"state_dict": {}}, tmp_path / "bare.ckpt")
    for name, message in {
        "flipped.ckpt": "flipped.ckpt is damaged",
        "cut.ckpt": "cut.ckpt is damaged",
        "bare.ckpt": "bare.ckpt was not written by a flstudy Coordinator",
        "none.ckpt": "there is no checkpoint '.*none.ckpt'",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_task(tmp_path / name)
    with pytest.raises(ValueError, match="replica must lie from 0 to 1, got 2"):
        load_task(saving.final, replica=2)
    with pytest.raises(ValueError, match="nothing to evaluate before the first round"):
        trainer(1).test(Coordinator(mlp(), FedAvg()), datamodule=drifting())


@pytest.mark.parametrize("executor", ["vectorized", "sequential", "trainer", "threads", "auto"])
def test_a_coordinator_can_be_pickled_after_a_fit(executor):
    fitted = run(Ditto(lr=0.1), 2, evaluate=True, executor=executor, trained=True)
    pickled = pickle.dumps(fitted)
    assert b"pytorch.trainer.trainer" not in pickled
    back = pickle.loads(pickled)
    assert difference(state(back), state(fitted)) == 0
    assert same(back.personal(3), fitted.personal(3))
    measured = [
        trainer(1, limit_val_batches=1.0).validate(module, datamodule=world(), verbose=False)
        for module in (back, fitted)
    ]
    assert measured[0] == measured[1]
