"""Laws of Mime and MimeLite: the gradient that devices are asked for, what they imitate, what travels."""

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from flstudy.algorithms import Mime, MimeLite
from flstudy.execution import model_evaluator

from ..references import problem
from ..worlds import CLASSES, DEVICES, FEATURES, difference, drifting, logistic, measured, run
from .test_references import cohort


def full_gradients(x, population, index):
    """[J, n]: over each participant's training examples, under its concept, by hand."""
    return np.stack([problem.mean_gradient(x, *device["train"], CLASSES)[0] for device in cohort(population, index)])


@pytest.mark.parametrize("chunk", [4096, 12])  # twelve examples at once: three of each of the four devices
def test_the_server_learns_the_gradients_over_all_examples(chunk, monkeypatch):
    monkeypatch.setattr(model_evaluator, "CHUNK", chunk)
    population = drifting()
    module = run(MimeLite(lr=0.1, weight_decay=0.02), 4, population=population, task=logistic())
    for index in range(1, 4):
        x = module.servers[index - 1].x[0]
        expected = full_gradients(x.numpy(), population, index).mean(0) + 0.02 * x.numpy()
        np.testing.assert_allclose(module.servers[index].c[0], expected, rtol=0, atol=1e-14)


def test_weighting_by_examples_weighs_gradients_as_it_does_updates():
    population = drifting()
    module = run(MimeLite(lr=0.1, weighting="examples"), 3, population=population, task=logistic())
    for index in (1, 2):
        sizes = np.array([device["size"] for device in cohort(population, index)])
        gradients = full_gradients(module.servers[index - 1].x[0].numpy(), population, index)
        expected = sizes / sizes.sum() @ gradients
        np.testing.assert_allclose(module.servers[index].c[0], expected, rtol=0, atol=1e-14)
        assert np.abs(expected - gradients.mean(0)).max() > 1e-3


@pytest.mark.parametrize("base", ["sgdm", "adagrad", "adam"])
def test_after_one_step_each_mime_has_done_the_centralised_step(base):
    """x⁺ = x - η_ℓ U(c, s), then s⁺ = V(c, s), with c the gradient of the mean of the devices' objectives."""
    module = run(Mime(lr=0.1, base=base, beta2=0.9), 4, population=drifting(steps=1, participants=DEVICES))
    for before, after in zip(module.servers[:-1], module.servers[1:], strict=True):
        c = after.c
        m = 0.9 * before.m + 0.1 * c if base != "adagrad" else c
        u = m if base == "sgdm" else m / (before.v.sqrt() + 1e-3)
        assert difference(after.x, before.x - 0.1 * u) <= 1e-13
        if base != "adagrad":
            assert difference(after.m, m) <= 1e-16
        if base != "sgdm":
            v = before.v + c**2 if base == "adagrad" else 0.9 * before.v + 0.1 * c**2
            assert difference(after.v, v) <= 1e-15
    lite = run(MimeLite(lr=0.1, base=base, beta2=0.9), 4, population=drifting(steps=1, participants=DEVICES))
    assert difference(lite.server.x, module.server.x) > 1e-4


@pytest.mark.parametrize(("cls", "base", "down"), [
    (MimeLite, "sgdm", 2), (MimeLite, "adagrad", 2), (MimeLite, "adam", 3),
    (Mime, "sgdm", 3), (Mime, "adagrad", 3), (Mime, "adam", 4),
])  # fmt: skip
def test_what_travels_depends_on_the_base(cls, base, down):
    module = run(cls(lr=0.1, base=base), 1, population=drifting())
    vector = 4 * 8 * module.task_function.layout.n  # four jobs
    travelled = measured(module, "traffic/down_bytes", "traffic/up_bytes").flatten()
    assert (travelled / vector).tolist() == [down, 2]  # up: the gradient of the survey, and Δ


class OnlySteps(L.LightningModule):
    """A task that tells its mean loss only, and that it is one."""

    mean_over_examples = True

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.linear(batch[0]), batch[1])


class Losses(OnlySteps):
    """The same, which also tells the losses of single examples."""

    def example_losses(self, batch):
        return nn.functional.cross_entropy(self.linear(batch[0]), batch[1], reduction="none")


class Coupled(OnlySteps):
    """Of a batch whose examples change each other's losses."""

    mean_over_examples = False

    def training_step(self, batch, batch_idx):
        return super().training_step((batch[0] - batch[0].mean(0), batch[1]), batch_idx)


def test_a_mean_loss_serves_as_well_as_those_of_single_examples():
    modules = []
    for kind in (OnlySteps, Losses):
        torch.manual_seed(0)
        modules.append(run(Mime(lr=0.1), 2, population=drifting(), task=kind(), executor="sequential"))
    assert difference(modules[0].server, modules[1].server) <= 1e-12


def test_a_task_without_losses_of_single_examples_is_told_what_to_add():
    with pytest.raises(ValueError, match=r"gradient over all of a device's examples.*add example_losses\(batch\)"):
        run(Mime(lr=0.1), 1, population=drifting(), task=Coupled(), executor="sequential")


def test_the_survey_leaves_dropout_out():
    class Dropping(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))

        def example_losses(self, batch):
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1], reduction="none")

    task, population = Dropping(), drifting()
    x = torch.cat([p.detach().reshape(-1) for p in task.parameters()]).double().numpy()
    module = run(MimeLite(lr=0.1), 1, population=population, task=task)
    np.testing.assert_allclose(module.server.c[0], full_gradients(x, population, 0).mean(0), rtol=0, atol=1e-14)


def test_momentum_of_the_devices_is_refused():
    with pytest.raises(ValueError, match=r"Mime: momentum must be 0, got 0\.5.*base: sgdm and beta1"):
        Mime(momentum=0.5)
