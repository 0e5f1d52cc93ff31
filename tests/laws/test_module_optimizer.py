"""Law: a module's own optimizer is honoured on devices: rounds of one device are the epochs of a Trainer."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler

from flstudy import Coordinator, RunSettings
from flstudy.algorithms import Ditto, FedAdam, FedAvg, FedNova, FedProx, Mime, Scaffold
from flstudy.algorithms.parts.signatures import Layout
from flstudy.algorithms.parts.torch_twins import twin

from ..worlds import CLASSES, FEATURES, difference, drifting, measured, run, state, trainer, world

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
        if self.kind == "momentum":
            groups = [{"params": self.net[2].parameters()}, {"params": self.net[0].parameters(), "momentum": 0.0}]
            return torch.optim.SGD(groups, lr=0.2, momentum=0.9, dampening=0.1, weight_decay=0.01)
        if self.kind == "two schedulers":
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
            by_step = schedules.ExponentialLR(optimizer, 0.97)
            warmup = schedules.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 4))
            return [optimizer], [{"scheduler": by_step, "interval": "step", "frequency": 3}, warmup]
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


@pytest.mark.parametrize("kind", ["adam", "momentum", "momentum by epoch", "two groups by step", "two schedulers"])
def test_ten_rounds_of_one_device_are_ten_epochs_of_the_bare_module(kind):
    population = single()
    executor = "vectorized" if kind in ("adam", "momentum") else "sequential"
    module = run(FedAvg(), ROUNDS, population=population, task=Scheduled(kind), executor=executor,
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


class Logging(Scheduled):
    """As Lightning's users write it: nothing but steps, which log."""

    example_losses = property()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", (logits.argmax(1) == y).double().mean())


class EachEpoch(L.Callback):
    """What the loggers of a bare module are told."""

    def __init__(self):
        self.told = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.told.append({name: float(value) for name, value in trainer.callback_metrics.items()})


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "executor"), [("adam", "vectorized"), ("two schedulers", "sequential")])
def test_their_metrics_are_those_of_the_bare_module_in_every_epoch(kind, executor):
    population, names = single(), ("train_loss", "val_loss", "val_acc")
    module = run(FedAvg(), ROUNDS, population=population, task=Logging(kind), executor=executor, evaluate=True,
                 local_optimizer="module")  # fmt: skip
    pairs = list(zip(*population.store[:2], strict=True))
    loader = DataLoader(pairs, batch_sampler=Planned(population))
    held = DataLoader([pairs[row] for row in population.members[0][0]["valid"].tolist()], batch_size=7)
    epochs = EachEpoch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(ROUNDS, use_distributed_sampler=False, callbacks=[epochs]).fit(Logging(kind), loader, held)
    exact = torch.tensor([[metrics[name] for name in names] for metrics in epochs.told], dtype=torch.float64)
    assert exact.shape == (ROUNDS, len(names))
    assert difference(measured(module, *names)[..., 0], exact) <= 1e-6
    assert exact[-1, 0] < exact[0, 0] - 0.05


@pytest.mark.slow
def test_executors_agree_and_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")

    def go(executor="sequential", rounds=3, **more):
        algorithm = FedProx(mu=0.1, clip_norm=1.0)
        return run(algorithm, rounds, population=drifting(participants=3), task=Scheduled(), seeds=(0, 44),
                   executor=executor, local_optimizer="module", **more)  # fmt: skip

    sequential = go(callbacks=[saving], fit={"enable_checkpointing": True})
    for other in ("trainer", "vectorized"):
        assert difference(state(sequential), state(go(other))) <= 1e-12
    assert difference(state(sequential), state(go(ckpt_path=str(tmp_path / "epoch=1.ckpt")))) == 0
    assert difference(sequential.server.x[1:], run(
        FedProx(mu=0.1, clip_norm=1.0), 3, population=drifting(participants=3), task=Scheduled(), seeds=(44,),
        local_optimizer="module").server.x) <= 1e-14  # fmt: skip


class Frozen(Scheduled):
    """With a layer that is not trained, whose optimizer is given all parameters, as Lightning's users write it."""

    def __init__(self, kind: str = "momentum by epoch") -> None:
        super().__init__(kind)
        self.net[0].requires_grad_(False)


def test_a_frozen_layer_has_no_state_of_the_optimizer():
    population, how = single(), {"executor": "sequential", "local_optimizer": "module"}
    frozen = run(FedAvg(), 3, population=population, task=Frozen(), **how)
    assert torch.equal(frozen.task.net[0].weight, Scheduled().net[0].weight)
    bare = Frozen()
    loader = DataLoader(list(zip(*population.store[:2], strict=True)), batch_sampler=Planned(population))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(3, use_distributed_sampler=False, reload_dataloaders_every_n_epochs=0).fit(bare, loader)
    exact = {name: p.detach().double() for name, p in bare.named_parameters() if p.requires_grad}
    assert difference(frozen.server.x[0], frozen.task_function.layout.flat(exact)) <= 1e-6


def test_a_modules_optimizer_may_begin_anew_in_every_round():
    continued, anew = (
        run(FedAdam(), 2, population=single(), task=Scheduled(), executor="sequential", local_optimizer=mode)
        for mode in ("module", "module_reset")
    )
    assert torch.equal(continued.servers[0].x, anew.servers[0].x)
    assert difference(continued.server.x, anew.server.x) > 1e-6


@pytest.mark.parametrize(
    ("algorithm", "kind", "sentence"),
    [
        (Scaffold(), "adam", "makes no sense for Scaffold: its control variates divide"),
        (FedNova(), "adam", "makes no sense for FedNova: its normalisation counts"),
        (Mime(), "adam", "makes no sense for Mime: its devices have a step of their own"),
        (Ditto(), "adam", "makes no sense for Ditto: its devices have a step of their own"),
        (FedAvg(), "closure", "LBFGS needs a closure"),
        (FedAvg(), "metric", "schedules by a metric"),
        (FedAvg(), "several", "configures 4: several need automatic_optimization = False, as in Lightning, which runs"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_the_first_round(algorithm, kind, sentence):
    with pytest.raises(ValueError, match=sentence):
        Coordinator(Scheduled(kind), algorithm, RunSettings(local_optimizer="module"))


def test_a_hook_between_gradient_and_step_is_refused_and_not_dropped():
    class Warm(Scheduled):
        def optimizer_step(self, *arguments):
            super().optimizer_step(*arguments)

    with pytest.raises(ValueError, match=r"local_optimizer: module does not call Warm\.optimizer_step: leave it out"):
        Coordinator(Warm(), FedAvg(), RunSettings(local_optimizer="module"))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.99), weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.3, "betas": (0.5, 0.9)}, {"params": p[1:2]}]),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_twins_take_the_steps_of_torch_s_optimizers(kind, dtype):
    drawn = torch.Generator().manual_seed(3)
    first = [torch.randn(size, generator=drawn).to(dtype) for size in ((4, 3), (4,), (2,))]
    parameters = [nn.Parameter(p.clone()) for p in first]
    names = {id(p): f"p{k}" for k, p in enumerate(parameters)}
    layout = Layout.of((f"p{k}", p) for k, p in enumerate(first))
    optimizer = OPTIMIZERS[kind](parameters)
    rule = twin(optimizer, names, layout)
    x = torch.stack([torch.cat([p.flatten() for p in first])] * 2)  # two devices
    state = torch.vmap(lambda x: rule.init(x, layout))(x)
    for _ in range(20):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=drawn).to(dtype)
        u = torch.cat([p.grad.flatten() for p in parameters]).expand(2, -1)
        optimizer.step()
        step, state = torch.vmap(lambda u, state, x: rule.update(u, state, x, layout))(u, state, x)
        x = x - step
    exact = torch.cat([p.detach().flatten() for p in parameters])
    assert difference(x, exact.expand(2, -1)) <= (1e-13 if dtype == torch.float64 else 2e-6)
    assert x.dtype == dtype


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
        lambda p: torch.optim.RMSprop(p),
        lambda p: type("Own", (torch.optim.SGD,), {})(p, lr=0.1),
    ],
)
def test_others_have_no_twin(optimizer):
    p = nn.Parameter(torch.zeros(2))
    assert twin(optimizer([p]), {id(p): "p"}, Layout.of([("p", p)])) is None


def test_a_schedule_goes_to_the_executor_that_can_with_one_line():
    module = Coordinator(Scheduled("momentum by epoch"), FedAvg(), RunSettings(local_optimizer="module"))
    with pytest.warns(UserWarning, match="executor: sequential in place of vectorized, since of modules' optimizers"):
        trainer(1, limit_val_batches=0).fit(module, datamodule=single())


def test_an_optimizer_that_is_not_used_is_told_once():
    with pytest.warns(UserWarning, match="configure_optimizers of Scheduled is not used") as caught_warnings:
        Coordinator(Scheduled(), FedAvg())
    assert len(caught_warnings) == 1
