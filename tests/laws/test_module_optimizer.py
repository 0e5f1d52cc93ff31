"""Law: a module's own optimizer is honoured on devices: rounds of one device are the epochs of a Trainer."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler

from flstudy import Coordinator
from flstudy.algorithms import Ditto, FedAdam, FedAvg, FedNova, FedProx, Mime, Scaffold

from ..worlds import CLASSES, FEATURES, difference, drifting, run, state, trainer, world

ROUNDS = 10


class Scheduled(L.LightningModule):
    """A classifier with an optimizer and a schedule; always the same at first."""

    def __init__(self, kind: str = "adam") -> None:
        super().__init__()
        self.kind = kind
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, CLASSES))

    def example_losses(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y, reduction="none")

    def training_step(self, batch, batch_idx):
        return self.example_losses(batch).mean()

    def configure_optimizers(self):
        schedules = torch.optim.lr_scheduler
        if self.kind == "adam":
            return torch.optim.Adam(self.parameters(), lr=0.02)
        if self.kind == "momentum by epoch":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9, dampening=0.1)
            return [optimizer], [schedules.StepLR(optimizer, 3, gamma=0.5)]
        if self.kind == "two groups by step":
            groups = [{"params": self.net[0].parameters(), "lr": 0.01}, {"params": self.net[2].parameters()}]
            optimizer = torch.optim.AdamW(groups, lr=0.03)
            scheduler = schedules.CosineAnnealingLR(optimizer, 20)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 2},
            }
        if self.kind == "closure":
            return torch.optim.LBFGS(self.parameters())
        if self.kind == "metric":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return {"optimizer": optimizer, "lr_scheduler": schedules.ReduceLROnPlateau(optimizer), "monitor": "loss"}
        return [torch.optim.SGD([p], lr=0.1) for p in self.parameters()]


class Planned(Sampler[list[int]]):
    """The minibatches of a world's rounds, an epoch each."""

    def __init__(self, population) -> None:
        self.population, self.epoch = population, 0

    def _rows(self):
        plan = self.population.cohort(self.epoch + 1).batches
        return [[row for row in line if row >= 0] for line in plan.rows[0, 0, : int(plan.steps[0, 0])].tolist()]

    def __iter__(self):
        rows = self._rows()
        self.epoch += 1  # Lightning tells a sampler the epoch, but no sampler of batches
        return iter(rows)

    def __len__(self):
        return len(self._rows())


def single():
    """A world of one device, one local epoch a round."""
    return world(clients=1, participants=1, partition=None, epochs=1, batch_size=20)


@pytest.mark.parametrize("kind", ["adam", "momentum by epoch", "two groups by step"])
def test_ten_rounds_of_one_device_are_ten_epochs_of_the_bare_module(kind):
    population = single()
    module = run(FedAvg(), ROUNDS, population=population, task=Scheduled(kind), executor="sequential",
                 local_optimizer="module")  # fmt: skip
    bare = Scheduled(kind)
    x, y = population.store[:2]
    loader = DataLoader(list(zip(x, y, strict=True)), batch_sampler=Planned(population))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(ROUNDS, use_distributed_sampler=False, reload_dataloaders_every_n_epochs=0).fit(bare, loader)
    layout = module.task_function.layout
    exact = layout.flat({name: p.detach().double() for name, p in bare.named_parameters()})
    assert difference(module.server.x[0], exact) <= 1e-6
    assert difference(module.server.x[0], layout.flat(dict(Scheduled(kind).double().named_parameters()))) > 0.05


def test_executors_agree_and_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")

    def go(executor="sequential", rounds=3, **more):
        algorithm = FedProx(mu=0.1, clip_norm=1.0)
        return run(algorithm, rounds, population=drifting(participants=3), task=Scheduled(), seeds=(0, 44),
                   executor=executor, local_optimizer="module", **more)  # fmt: skip

    one = go(callbacks=[saving], fit={"enable_checkpointing": True})
    assert difference(state(one), state(go("trainer"))) <= 1e-12
    assert difference(state(one), state(go(ckpt_path=str(tmp_path / "epoch=1.ckpt")))) == 0
    assert difference(one.server.x[1:], run(
        FedProx(mu=0.1, clip_norm=1.0), 3, population=drifting(participants=3), task=Scheduled(), seeds=(44,),
        local_optimizer="module").server.x) <= 1e-14  # fmt: skip


def test_it_may_begin_anew_in_every_round():
    kept, anew = (
        run(FedAdam(), 2, population=single(), task=Scheduled(), executor="sequential", local_optimizer=mode)
        for mode in ("module", "module_reset")
    )
    assert torch.equal(kept.servers[0].x, anew.servers[0].x)
    assert difference(kept.server.x, anew.server.x) > 1e-6


@pytest.mark.parametrize(
    ("algorithm", "kind", "sentence"),
    [
        (Scaffold(), "adam", "makes no sense for Scaffold: its control variates divide"),
        (FedNova(), "adam", "makes no sense for FedNova: its normalisation counts"),
        (Mime(), "adam", "makes no sense for Mime: its devices have a step of their own"),
        (Ditto(), "adam", "makes no sense for Ditto: its devices have a step of their own"),
        (FedAvg(), "closure", "LBFGS needs a closure"),
        (FedAvg(), "metric", "schedules by a metric"),
        (FedAvg(), "several", "Scheduled configures 4 and 0"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_the_first_round(algorithm, kind, sentence):
    with pytest.raises(ValueError, match=sentence):
        Coordinator(Scheduled(kind), algorithm, local_optimizer="module")


def test_an_optimizer_that_is_not_used_is_told_once():
    with pytest.warns(UserWarning, match="configure_optimizers of Scheduled is not used") as told:
        Coordinator(Scheduled(), FedAvg())
    assert len(told) == 1
