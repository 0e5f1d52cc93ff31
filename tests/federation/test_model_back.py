"""The trained model is had back from a checkpoint: by the coordinator, as a task, by the task's own class, and by a
Trainer that only evaluates."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, load_task
from flstudy.algorithms import Apfl, Ditto, FedAvg, FedBlended, Flash, HypCluster, LocalOnly
from flstudy.controllers import Polynomial, Restart
from flstudy.federation.checkpoint import of_first_replica
from flstudy.privacy import AdaptiveClip, Privacy
from flstudy.tasks import Mlp

from ..worlds import CLASSES, DEVICES, FEATURES, drifting, mlp, trainer

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
    coordinator = Coordinator(task, algorithm, **{"seeds": SEEDS, "initial": "seeded", "compile": False, **more})
    population = population or drifting()
    outer.fit(coordinator, datamodule=population)
    saving.final = str(folder / "last.ckpt")
    outer.save_checkpoint(saving.final)
    return coordinator, outer, population, saving


def same(one, other):
    """Whether two modules hold the same."""
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
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
    assert (back.algorithm, back.seeds, back.initial) == (coordinator.algorithm, SEEDS, "seeded")
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
    assert set(last) == {"test/loss", "test/accuracy", "test/accuracy_spread"}
    assert coordinator.record.round == 2
    back = Coordinator.load_from_checkpoint(saving.final)
    assert trainer(1).test(back, datamodule=drifting(), verbose=False) == [last]
    told = outer.predict(coordinator, datamodule=population)
    assert [one.device for one in told] == list(range(DEVICES))
    right = [(one.outputs.argmax(-1) == one.labels).double().mean() for one in told]
    world = coordinator.evaluation.of_devices(coordinator.server, coordinator.bank, population.cohort(2).round, 2)
    assert float(torch.stack(right).mean()) == pytest.approx(world["test/accuracy"][0])


def test_a_saved_coordinator_that_was_loaded_is_the_same(trained, tmp_path):
    coordinator, _, population, saving = trained
    back = Coordinator.load_from_checkpoint(saving.final)
    outer = trainer(1)
    outer.validate(back, datamodule=population, verbose=False)
    outer.save_checkpoint(tmp_path / "again.ckpt")
    assert same(load_task(tmp_path / "again.ckpt"), coordinator.task)


@pytest.mark.parametrize(
    "algorithm", [Ditto(lr=0.1), Apfl(lr=0.1), LocalOnly(lr=0.1)], ids=lambda one: type(one).__name__
)
def test_a_device_has_its_own_model(algorithm, tmp_path):
    coordinator, outer, population, saving = fitted(tmp_path, algorithm, mlp())
    back = Coordinator.load_from_checkpoint(saving.final)
    trained = coordinator.last.cohort.jobs.client
    for replica in range(len(SEEDS)):
        device = int(trained[replica, 0])
        own = torch.cat([p.detach().flatten() for p in back.personal(device, replica).parameters()])
        assert torch.equal(own, coordinator.last.fit.personal[replica, 0].float())
    assert not torch.equal(own, coordinator.server.x[1].float())
    assert len(outer.predict(back, datamodule=population)) == DEVICES
    with pytest.raises(ValueError, match="client must be a device from 0 to 5, got 6"):
        back.personal(6)
    content = torch.load(saving.final, weights_only=True)
    torch.save({**content, "flstudy": of_first_replica(content["flstudy"])}, tmp_path / "kept.pt")
    kept = Coordinator.load_from_checkpoint(tmp_path / "kept.pt")
    assert torch.equal(kept.server.x[0], coordinator.server.x[0])
    with pytest.raises(ValueError, match=f"devices of {type(algorithm).__name__} are in checkpoints, not in a model"):
        kept.personal(0)


def test_of_several_models_a_device_has_the_one_that_it_chooses(tmp_path):
    _, outer, population, saving = fitted(tmp_path, HypCluster(lr=0.1), mlp())
    back = Coordinator.load_from_checkpoint(saving.final)
    with pytest.raises(ValueError, match=r"choose a model by their data: call trainer\.validate"):
        back.personal(0)
    outer.validate(back, datamodule=population, verbose=False)
    everybody = back.evaluation.everybody(2)
    chosen = back.evaluation.choice(back.server, population.cohort(2).round, 2, everybody)[1, 3]
    own = torch.cat([p.detach().flatten() for p in back.personal(3, 1).parameters()])
    assert torch.equal(own, back.server.x[1, chosen].float())


def test_all_parts_are_made_again(tmp_path):
    privacy = Privacy(clip=1.0, noise=0.1, adaptive_clip=AdaptiveClip(quantile=0.5))
    _, _, _, saving = fitted(tmp_path, FedAvg(weighting="uniform"), mlp(), privacy=privacy, schedule=Polynomial())
    back = Coordinator.load_from_checkpoint(saving.final)
    assert isinstance(back.task, Mlp)
    assert (back.aggregator.privacy, back.schedule, back.compile_step) == (privacy, Polynomial(), False)
    second = fitted(tmp_path / "2", FedBlended(), mlp(), controllers=[Restart(rounds=[2])])[3]
    back = Coordinator.load_from_checkpoint(second.final)
    assert (back.algorithm, back.controllers) == (FedBlended(), (Restart(rounds=[2]),))
    other = Coordinator.load_from_checkpoint(second.final, executor="sequential")
    assert other.executor_name == "sequential"


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
        trainer(2).fit(Coordinator(mlp(), FedAvg(), seeds=SEEDS), datamodule=drifting(), ckpt_path=path)
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
    for name, told in {
        "flipped.ckpt": "flipped.ckpt is damaged",
        "cut.ckpt": "cut.ckpt is damaged",
        "bare.ckpt": "bare.ckpt was not written by a flstudy Coordinator",
        "none.ckpt": "there is no checkpoint '.*none.ckpt'",
    }.items():
        with pytest.raises(ValueError, match=told):
            load_task(tmp_path / name)
    with pytest.raises(ValueError, match="replica must lie from 0 to 1, got 2"):
        load_task(saving.final, replica=2)
    with pytest.raises(ValueError, match="nothing to evaluate before the first round"):
        trainer(1).test(Coordinator(mlp(), FedAvg()), datamodule=drifting())
