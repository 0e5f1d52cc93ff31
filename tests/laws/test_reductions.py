"""Laws that tie the methods to each other: what reduces to what, and what a switch turns off."""

from dataclasses import dataclass, replace
from itertools import pairwise, product

import lightning as L
import pytest
import torch

from flstudy.algorithms import (
    AdaptiveFedAvg,
    Apfl,
    Continuous,
    Ditto,
    FedAcg,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDC,
    FedDyn,
    FedExp,
    FedNova,
    FedOmd,
    FedProx,
    FedSam,
    FedVarp,
    FedYogi,
    Flash,
    Mifa,
    Mime,
    MimeLite,
    Moon,
    Scaffold,
)
from flstudy.population import Synthetic

from ..tiers import in_tiers
from ..worlds import DEVICES, SEEDS, difference, drifting, measured, run, shipped, state, world
from .cases import plain, takes_momentum
from .sides import covering

LOCAL = {"lr": 0.1, "weight_decay": 0.02}


@pytest.mark.parametrize(
    ("method", "reduced", "rounds"),
    [
        (FedProx(**LOCAL, mu=0.0), FedAvg(**LOCAL), 4),
        (FedAvgM(**LOCAL, beta=0.0), FedAvg(**LOCAL), 4),
        (FedAvgM(**LOCAL, beta=0.0, nesterov=True), FedAvg(**LOCAL), 4),
        (FedAcg(**LOCAL, lam=0.0, beta=0.0), FedAvg(**LOCAL, weighting="uniform"), 4),
        (FedAcg(**LOCAL, lam=0.0, beta=0.3), FedProx(**LOCAL, mu=0.3, weighting="uniform"), 4),
        (FedAcg(**LOCAL, beta=0.0), FedAvg(**LOCAL, weighting="uniform"), 1),  # m is 0 as yet
        (Moon(**LOCAL, mu=0.0), FedAvg(**LOCAL), 4),
        (Moon(**LOCAL, mu=5.0, buffer=2), FedAvg(**LOCAL), 1),  # nobody has a last model as yet
        (Continuous(**LOCAL, kappa=0.0), FedAvg(**LOCAL), 4),
        (Continuous(**LOCAL), FedAvg(**LOCAL), 4),  # a world without sessions
        (Scaffold(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 1),
        (Scaffold(**LOCAL, weighting="examples"), FedAvg(**LOCAL), 1),
        (FedYogi(**LOCAL, v_init="zero"), FedAdam(**LOCAL, v_init="zero"), 1),  # both have v = (1 - β₂) Δ² then
        (MimeLite(**LOCAL, beta1=0.0), FedAvg(**LOCAL, weighting="uniform"), 4),
        (Ditto(**LOCAL, weighting="examples"), FedAvg(**LOCAL), 4),
        (Apfl(**LOCAL, adaptive=True, weighting="examples"), FedAvg(**LOCAL), 4),
        (AdaptiveFedAvg(**LOCAL), FedAvg(**LOCAL), 1),
        (AdaptiveFedAvg(**LOCAL, floor=1.0), FedAvg(**LOCAL), 4),
        (FedOmd(**LOCAL, mirror="euclidean"), FedAvg(**LOCAL), 4),
        (FedOmd(**LOCAL, mirror="euclidean", decay="sqrt"), FedAvg(**LOCAL), 1),
        (FedOmd(**LOCAL, mirror="pnorm", p=2.0), FedOmd(**LOCAL, mirror="euclidean"), 4),
        (FedExp(**LOCAL, eps=1e9), FedAvg(**LOCAL, weighting="uniform"), 4),
        (FedSam(**LOCAL, rho=0.0), FedAvg(**LOCAL), 4),
        (FedVarp(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 1),
    ],
    ids=["FedProx, μ = 0", "FedAvgM, β = 0", "Nesterov, β = 0", "FedACG, λ = β = 0",
         "FedACG, λ = 0", "FedACG, round 1", "MOON, μ = 0", "MOON, round 1", "Continuous, κ = 0", "no sessions",
         "Scaffold, round 1", "by examples", "Yogi from v = 0", "MimeLite, β₁ = 0",
         "Ditto's global model", "APFL's global model", "Adaptive-FedAvg, round 1", "Adaptive-FedAvg, floor 1",
         "FedOMD, Euclidean", "its first round", "p = 2", "FedExP, ε → ∞", "FedSAM, ρ = 0", "FedVARP, round 1"],
)  # fmt: skip
def test_method_reduces_to_another(method, reduced, rounds):
    module, other = (run(algorithm, rounds, population=drifting()) for algorithm in (method, reduced))
    assert difference(module.server.x, other.server.x) <= 1e-14
    assert difference(measured(module, "train/loss"), measured(other, "train/loss")) <= 1e-14


@pytest.mark.parametrize(
    ("method", "reduced", "rounds"),
    [
        (FedProx(**LOCAL, mu=1.0), FedAvg(**LOCAL), 1),
        (FedAvgM(**LOCAL, beta=0.9), FedAvg(**LOCAL), 2),
        (FedAcg(**LOCAL, beta=0.0), FedAvg(**LOCAL, weighting="uniform"), 2),
        (FedAcg(**LOCAL, beta=0.0), FedAvgM(**LOCAL, beta=0.85, weighting="uniform"), 2),  # whose devices start at x
        (Moon(**LOCAL, mu=1.0), FedAvg(**LOCAL), 2),
        (Moon(**LOCAL, mu=1.0, buffer=2), Moon(**LOCAL, mu=1.0), 3),
        (Scaffold(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 2),
        (FedYogi(**LOCAL, v_init="zero"), FedAdam(**LOCAL, v_init="zero"), 2),
        (MimeLite(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 1),
        (Mime(**LOCAL), MimeLite(**LOCAL), 1),
        (Flash(**LOCAL, gamma=None), FedAdam(**LOCAL), 1),
        (FedNova(**LOCAL), FedAvg(**LOCAL), 1),  # these devices take different numbers of steps
        (AdaptiveFedAvg(**LOCAL), FedAvg(**LOCAL), 4),
        (FedOmd(**LOCAL, mirror="euclidean", decay="sqrt"), FedAvg(**LOCAL), 2),
        (FedOmd(**LOCAL, b=0.5), FedAvg(**LOCAL), 1),
        (FedDyn(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 1),
        (FedExp(**LOCAL, eps=0.0), FedAvg(**LOCAL, weighting="uniform"), 2),
        (FedSam(**LOCAL), FedAvg(**LOCAL), 1),
        (Mifa(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 1),
        (FedVarp(**LOCAL), FedAvg(**LOCAL, weighting="uniform"), 2),
        (FedVarp(**LOCAL), Mifa(**LOCAL), 1),
    ],
)
def test_method_is_more_than_what_it_reduces_to(method, reduced, rounds):
    module, other = (run(algorithm, rounds, population=drifting()) for algorithm in (method, reduced))
    assert difference(module.server.x, other.server.x) > 1e-4


@pytest.mark.parametrize("cls", [Mifa, FedVarp])
def test_where_nobody_is_absent_last_updates_are_the_present_ones(cls):
    everybody = {"population": drifting(participants=DEVICES)}
    module, other = (run(method, 4, **everybody) for method in (cls(**LOCAL), FedAvg(**LOCAL, weighting="uniform")))
    assert difference(module.server.x, other.server.x) <= 1e-14


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(momentum):
    equal = {"lr": 0.1, "momentum": momentum}
    module, other = (run(cls(**equal), 4, population=drifting(steps=5)) for cls in (FedNova, FedAvg))
    assert difference(module.server.x, other.server.x) <= 1e-13


def test_fednova_counts_gradients_as_its_authors_do():
    """3 steps: 5.61 with ρ = .9, and 2.71 with η μ = .1."""
    population = drifting(steps=3, participants=DEVICES)
    for settings, expected in (({"momentum": 0.9}, 5.61), ({"proximal": 1.0}, 2.71), ({}, 3.0)):
        method = FedNova(lr=0.1, **settings)
        module = run(method, 1, population=population)
        plain = run(type("Distances", (FedNova,), {"citations": (), "local_end": distance})(lr=0.1, **settings), 1,
                    population=population)  # fmt: skip
        direction, other = module.last.fit.uploads.direction, plain.last.fit.uploads.direction
        assert difference(direction * expected, other) <= 1e-14


def distance(self, local, msg, client):
    """The model's way, not divided by anything."""
    upload, row = FedNova.local_end(self, local, msg, client)
    return upload._replace(direction=local.y - msg.x), row


@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_fedacg_moves_by_its_momentum_and_the_mean_of_local_models_is_where_it_arrives(server_lr):
    module = run(FedAcg(lr=0.1, lam=0.6, server_lr=server_lr), 4, population=drifting(participants=DEVICES))
    for before, after in pairwise(module.servers):
        assert difference(after.x - before.x, server_lr * after.m) <= 1e-14
    mean = module.last.fit.personal.mean(1)  # of the last round's local models
    ahead = module.servers[-2].x + server_lr * 0.6 * module.servers[-2].m
    assert difference(module.server.x, ahead + server_lr * (mean - ahead)) <= 1e-14
    assert float(module.server.m.norm()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_moon_s_devices_keep_their_last_models_and_forget_the_oldest(executor):
    local = Locals()
    population = drifting(participants=DEVICES)
    module = run(Moon(lr=0.1, buffer=2), 4, population=population, executor=executor, callbacks=[local])
    v, counts = module.bank.rows
    for rounds, count in ((module, 2.0), (run(Moon(lr=0.1, buffer=2), 1, population=population), 1.0)):
        assert rounds.bank.rows[1].tolist() == [count] * DEVICES
    assert counts.shape == (DEVICES,)
    for newest in range(2):
        for client, model in local.rounds[-1 - newest].items():
            assert torch.equal(v[module.bank.slot[0, client], newest], model)
    assert difference(v[:, 0], v[:, 1]) > 1e-3


class Locals(L.Callback):
    """Keeps the devices' local models of every round."""

    def __init__(self):
        self.rounds = []

    def on_train_epoch_end(self, trainer, pl_module):
        jobs, fit = pl_module.last.cohort.jobs, pl_module.last.fit
        self.rounds.append(dict(zip(jobs.client[0].tolist(), fit.personal[0], strict=True)))


def test_feddyn_s_first_round_is_fedprox_s_and_the_step_is_doubled_by_h():
    """All devices take part, so mean h = mean Δ."""
    dyn = run(FedDyn(lr=0.1, alpha=0.3), 1, population=drifting(participants=DEVICES))
    prox = run(FedProx(lr=0.1, mu=0.3, weighting="uniform"), 1, population=drifting(participants=DEVICES))
    first = run(
        FedProx(lr=1e-300, mu=0.0), 1, population=drifting(participants=DEVICES)
    ).server.x  # the model they start from
    assert difference(dyn.server.x - first, 2 * (prox.server.x - first)) <= 1e-13
    assert difference(dyn.server.h, prox.server.x - first) <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 4])
def test_ditto_without_lambda_and_apfl_with_alpha_one_train_alone(rounds):
    """Whatever the server does with the others' work, the rows of the devices are the same."""
    for algorithm in (Ditto(lr=0.1, lam=0.0), Apfl(lr=0.1, alpha=1.0)):
        module, other = (
            run(replace(algorithm, server_lr=rate), rounds, population=drifting(participants=DEVICES))
            for rate in (1.0, 0.3)
        )
        assert difference(module.server.x, other.server.x) > 1e-3
        assert difference(module.bank.rows[0], other.bank.rows[0]) <= 1e-14


@pytest.mark.parametrize("algorithm", [FedDyn(lr=0.1, alpha=0.2), FedDC(lr=0.1, alpha=0.2)])
def test_the_server_s_h_is_the_mean_of_the_devices(algorithm):
    for participants in (6, 3):
        module = run(algorithm, 5, population=drifting(participants=participants))
        slot = module.bank.slot[0]
        places = slot[slot >= 0]
        assert difference(module.server.h[0], module.bank.rows[0][places].sum(0) / DEVICES) <= 1e-13
        if isinstance(algorithm, FedDC):
            assert difference(module.server.c[0], module.bank.rows[1][places].sum(0) / DEVICES) <= 1e-13


@dataclass(frozen=True, kw_only=True)
class Still(Flash):
    """FLASH whose d is 0."""

    def divisor(self, server):
        return super().divisor(server._replace(d=torch.zeros_like(server.d)))


@pytest.mark.parametrize("clamp", [None, 0.1])
@pytest.mark.parametrize("v_init", ["tau_sq", "zero"])
def test_flash_without_d_is_fedadam(clamp, v_init):
    shared = {**LOCAL, "v_init": v_init, "gamma": 0.03}
    still = run(Still(**shared, clamp=clamp), 4, population=drifting())
    adam = run(FedAdam(**shared), 4, population=drifting())
    assert difference(still.server[:4], adam.server[:4]) <= 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_gamma_decides_how_many_epochs_are_done(executor):
    def epochs(**settings):
        module = run(Flash(lr=0.1, **settings), 2, population=world(epochs=5), executor=executor)
        return measured(module, "fit/epochs").flatten().tolist()

    assert epochs(gamma=None) == [5, 5]
    assert epochs(gamma=1e9) == [2, 2]  # before epoch 1 the loss counts as infinite, so its test passes
    assert epochs(gamma=1e9, first_epoch="eval_received") == [1, 1]
    assert epochs(gamma=1e9, first_epoch="eval_received", valid_loss="sum") == [1, 1]


@pytest.mark.parametrize("name", in_tiers(shipped(), covering(plain())[::2]))
def test_replicas_equal_separate_runs(name):
    algorithm = replace(plain()[name], gamma=0.05, momentum=0.5 if takes_momentum(shipped()[name]) else 0.0)

    def seeded(*seeds):
        return run(algorithm, seeds=seeds, initial="seeded", population=drifting(), evaluate=True)

    check_replicas(seeded(*SEEDS[:2]), [seeded(seed) for seed in SEEDS[:2]])


def test_replicas_equal_separate_runs_where_each_has_its_own_data():
    def seeded(*seeds):
        data = Synthetic(features=12, labels=4, log_mean=1.0, log_std=0.5, extra=5)
        population = drifting(dataset=data, partition=None)
        return run(Scaffold(lr=0.02), seeds=seeds, population=population, evaluate=True)

    check_replicas(seeded(*SEEDS), [seeded(seed) for seed in SEEDS])


def check_replicas(together, apart):
    """Each replica of one run is the run of its seed alone: server, rows of the devices, every measurement."""
    names = [
        name for name in together.record.metrics if not name.startswith("time/") and name != "fit/lane_utilization"
    ]
    assert {"valid/accuracy", "test/accuracy_spread", "test/personal_accuracy", "server/update_norm"} <= set(names)
    slot, everything = together.bank.slot, measured(together, *names)
    for s, alone in enumerate(apart):
        for ours, theirs in zip(state(together)[0], alone.server, strict=True):
            if isinstance(ours, torch.Tensor):
                assert difference(ours[s], theirs[0]) <= 1e-12
        assert torch.equal(slot[s] >= 0, alone.bank.slot[0] >= 0)
        for ours, theirs in zip(together.bank.rows, alone.bank.rows, strict=True):
            assert difference(ours[slot[s][slot[s] >= 0]], theirs[alone.bank.slot[0][slot[s] >= 0]]) <= 1e-12
        assert difference(everything[..., s], measured(alone, *names)[..., 0]) <= 1e-11
    assert difference(together.server.x[0], together.server.x[1]) > 1e-3  # seeds do differ


TRAFFIC = {  # vectors of n numbers per job, down and up; and single numbers
    "AdaptiveFedAvg": (1, 1, 1, 0),
    "Apfl": (1, 1),
    "Cfl": (1, 1),
    "Continuous": (2, 1, 1, 0),  # the teacher, and whether it is one
    "DirectJointAdaptivity": (2, 1),  # x and v
    "Ditto": (1, 1),
    "FedAcg": (1, 1),  # the look-ahead and one update
    "FedAda2": (1, 1),
    "FedAdaGrad": (1, 1),
    "FedAdam": (1, 1),
    "FedAvg": (1, 1),
    "FedAvgM": (1, 1),
    "FedBabu": (1, 1, 1, 0),  # whether heads are trained
    "FedBlended": (1, 1, 1, 0),  # the strategy's number
    "FedDC": (2, 2),
    "FedDrift": (1, 1, 0, 1),  # one model in use in the first round, and what the devices measure of it
    "FedDriftEager": (1, 1, 0, 1),
    "FedDyn": (1, 1),
    "FedExp": (1, 1, 0, 1),  # the length of the update
    "FedNova": (1, 1, 0, 1),
    "FedOmd": (1, 1, 1, 0),  # the rate
    "FedOpt": (1, 1),
    "FedProx": (1, 1),
    "FedRep": (1, 1, 1, 0),  # how many steps an epoch has
    "FedSam": (1, 1),
    "FedVarp": (1, 1),
    "FedYogi": (1, 1),
    "Flash": (1, 1),
    "HypCluster": (2, 1, 0, 2),  # two models down, two losses and one update up
    "JointAdaptivity": (1, 1),
    "LgFedAvg": (1, 1),
    "LocalOnly": (0, 0),
    "Mifa": (1, 1),
    "Mime": (3, 2),  # x, s and c; the gradient at x and one update
    "MimeLite": (2, 2),
    "Moon": (1, 1),
    "Oracle": (2, 2),
    "Scaffold": (2, 2),
}


@pytest.mark.parametrize(
    ("name", "executor"),
    in_tiers(product(shipped(), ("vectorized", "sequential")), [(name, "vectorized") for name in shipped()]),
)
def test_traffic(name, executor):
    for precision, size in (("64-true", 8), ("32-true", 4)):
        module = run(plain()[name], 1, executor=executor, precision=precision, seeds=(0, 44), population=drifting())
        layout = module.task_function.layout
        biases = sum(count for part, count in zip(layout.names, layout.sizes, strict=True) if part.endswith("bias"))
        sent = {"FedBabu": layout.n - biases, "FedRep": layout.n - biases, "LgFedAvg": biases}.get(name, layout.n)
        vector, number = 4 * size * sent, 4 * size  # four jobs
        vectors, numbers = TRAFFIC[name][:2], TRAFFIC[name][2:] or (0, 0)
        metrics = module.record.metrics
        down, up = (metrics[f"traffic/{way}_bytes"] for way in ("down", "up"))
        assert (down, up) == tuple([v * vector + k * number] * 2 for v, k in zip(vectors, numbers, strict=True))


def test_the_federation_of_the_laws_is_ragged():
    population = world().settle((0,))
    assert population.cohort(1).batches.steps[0].tolist() == [4, 4, 6, 8, 10, 10]
    assert population.cohort(1).jobs.client.shape == (1, DEVICES)
