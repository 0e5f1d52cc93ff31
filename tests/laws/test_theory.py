"""Laws from theory: SCAFFOLD's invariant, and who reaches the optimum of heterogeneous quadratics."""

from itertools import pairwise

import lightning as L
import pytest
import torch
from torch import nn

from flstudy import Population
from flstudy.algorithms import FedAvg, FedDC, FedDyn, FedProx, Scaffold
from flstudy.controllers import Average, DynamicInitialModel, MasterFL, Restart
from flstudy.population import AlternatingGroups, InMemory, Partition
from flstudy.testing.algorithms import means_are_means

from ..tiers import in_tiers
from ..worlds import difference, play, run, world
from .cases import settings

CURVATURE = torch.tensor([[1.0, 4.0], [3.0, 0.5], [0.2, 2.0]], dtype=torch.float64)  # h of each device
CENTER = torch.tensor([[1.0, -1.0], [-2.0, 0.5], [4.0, 3.0]], dtype=torch.float64)  # a
STEPS, LR = 10, 0.1


class Quadratic(L.LightningModule):
    """f_i(w) = ½ Σ_j h_ij (w_j - a_ij)²; an example is (h, a), the same one on all of a device's."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def example_losses(self, batch):
        h, a = batch[0].unflatten(1, (2, 2)).unbind(1)
        return 0.5 * (h * (self.w - a) ** 2).sum(1)


class ByLabel(Partition):
    """The label is the device."""

    def assign(self, labels, clients, rng):
        return labels


def quadratics(steps):
    """Three devices, K local steps with exact gradients."""
    device = torch.arange(3).repeat_interleave(6)
    data = InMemory((torch.cat([CURVATURE, CENTER], 1)[device], device))
    return Population(data, clients=3, participants=3, partition=ByLabel(), batch_size=4, steps=steps)


def final(algorithm, rounds=60, steps=STEPS):
    """The global model in the end."""
    return run(algorithm, rounds, population=quadratics(steps), task=Quadratic()).server.x[0]


@pytest.mark.slow
def test_scaffold_reaches_the_optimum_of_heterogeneous_quadratics_and_fedavg_does_not():
    optimum = (CURVATURE * CENTER).sum(0) / CURVATURE.sum(0)  # Σ h (w - a) = 0
    assert difference(final(Scaffold(lr=LR), 80), optimum) <= 1e-10
    pull = 1 - (1 - LR * CURVATURE) ** STEPS  # K steps bring w this share of the way to a: FedAvg's fixed point
    biased = (pull * CENTER).sum(0) / pull.sum(0)
    fedavg = final(FedAvg(lr=LR, weighting="uniform"))
    assert difference(fedavg, biased) <= 1e-10
    assert difference(fedavg, optimum) > 0.6
    assert difference(final(FedProx(lr=LR, mu=1.0, weighting="uniform")), optimum) > 0.5  # less, but a bias
    once = final(FedAvg(lr=3 * LR, weighting="uniform"), steps=1)  # K = 1 is gradient descent: no drift, no bias
    assert difference(once, optimum) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedDyn(lr=LR, alpha=0.5), FedDC(lr=LR, alpha=0.5)])
def test_feddyn_and_feddc_reach_the_optimum_too(algorithm):
    optimum = (CURVATURE * CENTER).sum(0) / CURVATURE.sum(0)
    assert difference(final(algorithm, 400), optimum) <= 1e-8


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.02, "server_lr": 0.5}, {"gamma": 0.05, "clip_norm": 0.5}])
def test_scaffold_keeps_c_the_mean_of_the_c_i_under_full_participation(settings):
    snapshots = []
    module = run(Scaffold(lr=0.1, **settings), 5, callbacks=[Watch(snapshots)], population=world(), seeds=(0, 44))
    assert len(snapshots) == 5
    for (rows, slot), server in zip(snapshots, module.servers, strict=True):
        assert server.c.abs().max() > 1e-2
        assert difference(server.c, rows[slot].mean(1)) <= 1e-14


class Watch(L.Callback):
    """Copies the bank after every round."""

    def __init__(self, snapshots):
        self.kept = snapshots

    def on_train_epoch_end(self, trainer, pl_module):
        self.kept.append((pl_module.bank.rows[0].clone(), pl_module.bank.slot.clone()))


def test_devices_without_a_job_keep_their_row_bit_for_bit():
    snapshots, population = [], world(participants=2)
    run(Scaffold(lr=0.1), 6, callbacks=[Watch(snapshots)], population=population, seeds=(0, 44))
    idle = 0
    for index, ((before, old), (after, new)) in enumerate(pairwise(snapshots), start=1):
        working = torch.zeros_like(old, dtype=torch.bool).scatter_(1, population.cohort(index + 1).jobs.client, True)
        resting = (old >= 0) & ~working
        idle += int(resting.sum())
        assert torch.equal(old[resting], new[resting])
        assert torch.equal(before[old[resting]], after[new[resting]])
        assert torch.equal(new >= 0, (old >= 0) | working)  # a row is made at the first visit, not before
        assert not torch.equal(before[old[working & (old >= 0)]], after[new[working & (old >= 0)]]) or resting.all()
    assert idle > 10


class KnownHalves(AlternatingGroups):
    """Halves that take turns after a session in which all devices are there, so that N is theirs from the start."""

    citations = ()

    def present(self, number, devices):
        return super().present(number, devices) | (self.session(number) == 0)


TIED = [name for name, algorithm in settings().items() if algorithm.means]
RENEWALS = {
    "restart": Restart(rounds=[3, 5]),
    "restart around the model": Restart(rounds=[4], keep_model=True),
    "restart, rows forgotten": Restart(rounds=[3], state="fresh"),
    "restart of the model alone": Restart(rounds=[3], state="keep"),
    "average of sessions": Average(),
    "dynamic initial model": DynamicInitialModel(),
    "instances": MasterFL(rounds=8, lr="algorithm", rho_hat_scale=1e-3, delta=0.5),
}


@pytest.mark.parametrize(
    ("name", "renewal"),
    in_tiers(
        # Every method after every renewal; its settings after the two that begin anew in other ways.
        [(n, r) for n in TIED for r in RENEWALS if n.endswith("plain") or r in ("restart", "dynamic initial model")],
        [(n, r) for n in TIED for r in RENEWALS if n.endswith("plain") and r in ("restart", "dynamic initial model")],
    ),
)
def test_what_is_a_mean_of_rows_stays_one_when_training_goes_on_from_another_model(name, renewal):
    halves = KnownHalves(rounds=2)
    played = play(
        settings()[name],
        8,
        population=world(participants=2, availability=halves),
        seeds=(0, 44),
        controllers=[RENEWALS[renewal]],
    )
    assert sum(len(record.events) for record in played.records) >= 2
    assert all(getattr(played.state.server, field).abs().max() > 1e-3 for field in played.algorithm.means)
    means_are_means(played.algorithm, played)


@pytest.mark.parametrize("name", TIED)
def test_the_server_s_state_alone_begun_anew_is_no_mean_of_the_rows(name):
    played = play(settings()[name], 4, population=world(), controllers=[Restart(rounds=[3], state="server")])
    with pytest.raises(AssertionError, match="means: the server's"):
        means_are_means(played.algorithm, played)


def test_forgotten_rows_are_those_of_one_replica():
    module = run(Scaffold(lr=0.1), 3, population=world(participants=3), seeds=(0, 44))
    before = module.bank.slot.clone()
    other = module.bank.rows[0][before[1][before[1] >= 0]]
    module.bank.forget(0)
    assert (module.bank.slot[0] == -1).all()
    assert torch.equal(module.bank.slot[1] >= 0, before[1] >= 0)
    assert torch.equal(module.bank.rows[0][module.bank.slot[1][before[1] >= 0]], other)
    assert module.bank.used == len(other) <= len(module.bank.rows[0])
