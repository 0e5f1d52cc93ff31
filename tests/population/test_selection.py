"""Cohorts drawn by weight: chances against those of the definition, and candidates against losses by hand."""

import math
import warnings
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch

from flstudy.algorithms import Ditto, FedAvg, HypCluster, LocalOnly, Scaffold
from flstudy.metrics.dynamic_regret import Regret
from flstudy.population import AlternatingGroups, BySize, ByWeight, PowerOfChoice, Selection
from flstudy.privacy import Privacy

from ..laws.test_buffers import Normed
from ..laws.test_several_models import scores
from ..worlds import DEVICES, SEEDS, difference, drifting, logistic, run, world

ROUNDS = 1500
SHARES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def clients(population, rounds=ROUNDS):
    """Devices of each round [R, S, J]."""
    return np.stack([population.cohort(number).jobs.client.numpy() for number in range(1, rounds + 1)])


def chances(weights, count):
    """Chance of each device to be among ``count`` that are drawn one after another in proportion to their weights."""
    chance = np.zeros(len(weights))
    for order in permutations(range(len(weights)), count):
        left, probability = sum(weights), 1.0
        for device in order:
            probability *= weights[device] / left
            left -= weights[device]
        chance[list(order)] += probability
    return chance


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("selection", [ByWeight(shares=SHARES), BySize()], ids=["weights", "sizes"])
def test_devices_come_as_often_as_their_weights_say(selection, count):
    population = world(participants=count, selection=selection).settle((7,))
    sizes = population.members[0].counts[:, 0]
    expected = chances(SHARES if isinstance(selection, ByWeight) else sizes.tolist(), count)
    came = np.stack([(clients(population)[:, 0] == device).any(1).mean() for device in range(DEVICES)])
    assert (np.abs(came - expected) < 4 * np.sqrt(expected * (1 - expected) / ROUNDS) + 1e-12).all()
    assert came.max() - came.min() > 0.1


def test_equal_weights_draw_what_no_selection_draws():
    usual, equal = (
        world(participants=3, selection=selection).settle(SEEDS)
        for selection in (None, ByWeight(shares=(0.2,) * DEVICES))
    )
    assert np.array_equal(clients(usual, 50), clients(equal, 50))


def test_who_is_away_is_not_drawn_and_seeds_do_not_depend_on_company():
    population = drifting(availability=AlternatingGroups(rounds=2), participants=2, selection=BySize()).settle((0, 7))
    alone = drifting(availability=AlternatingGroups(rounds=2), participants=2, selection=BySize()).settle((7,))
    for number in range(1, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            devices = population.cohort(number).jobs.client.numpy()
        assert population.present(number)[devices].all()
        assert np.array_equal(devices[1:], alone.cohort(number).jobs.client.numpy())


def test_those_candidates_train_whose_losses_are_largest():
    population = drifting(participants=2, selection=PowerOfChoice(d=4))
    module = run(FedAvg(lr=0.2, weighting="uniform"), 4, population=population, task=logistic())
    start = torch.cat([p.detach().reshape(-1) for p in logistic().parameters()]).double()
    models = [start, *(server.x[0] for server in module.servers)]
    usual = drifting(participants=4, selection=BySize()).settle(module.seeds)
    for number, record in enumerate(module.records, 1):
        candidates = usual.cohort(number).jobs.client[0].tolist()
        concepts = population.concepts(number)[0]
        losses = [scores(models[number - 1], population, "train", k, int(concepts[k]))[0] for k in candidates]
        expected = sorted(candidates[place] for place in np.argsort(losses)[::-1][:2])
        assert trained(module, number) == expected
        n = len(start)
        assert record.metrics["traffic/down_bytes"] == [4 * n * 8]  # all candidates get the model once
        assert record.metrics["traffic/up_bytes"] == [2 * n * 8 + 4 * 8]


def trained(module, number):
    """The devices that trained in a round, by replaying it."""
    again = run(FedAvg(lr=0.2, weighting="uniform"), number, population=module.run.population, task=logistic())
    return again.run.last.cohort.jobs.client[0].tolist()


def test_probe_rounds_ask_nobody():
    population = world(participants=2, selection=PowerOfChoice(d=5)).settle((0,))
    assert population.cohort(1).jobs.client.shape == (1, 5)
    assert population.cohort(1, probe=1).jobs.client.shape == (1, 2)
    assert population.cohort(1, probe=1, devices=4).jobs.client.shape == (1, 4)


def test_a_selection_by_losses_is_refused_where_devices_keep_their_normalisation():
    method, population = FedAvg(lr=0.1), drifting(participants=2, selection=PowerOfChoice(d=4))
    with pytest.raises(ValueError, match="but FedAvg leaves parts of it on the devices: use BySize"):
        run(method, 1, population=population, task=Normed().double(), buffers="local")


def test_candidates_that_all_train_are_those_by_size():
    for method in (FedAvg(lr=0.1), Scaffold(lr=0.1), Ditto(lr=0.1)):
        first, second = (
            run(method, 3, population=drifting(participants=3, selection=selection), seeds=SEEDS)
            for selection in (BySize(), PowerOfChoice(d=3))
        )
        assert difference(first.server.x, second.server.x) == 0


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_candidates_train_alike_in_blocks_and_executors(executor):
    usual = {"population": lambda: drifting(participants=3, selection=PowerOfChoice(d=5)), "seeds": SEEDS}
    whole = run(FedAvg(lr=0.1), 3, population=usual["population"](), seeds=SEEDS, executor="vectorized")
    parts = run(FedAvg(lr=0.1), 3, population=usual["population"](), seeds=SEEDS, executor=executor, cohort_memory=1)
    assert difference(whole.server.x, parts.server.x) <= 1e-13


@dataclass(frozen=True, kw_only=True)
class Never(Selection):
    """A selection that forgets devices."""

    def weights(self, sizes, number):
        return np.where(np.arange(len(sizes)) < 2, 0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": ByWeight(shares=(1.0, 2.0))}, "shares must hold a number for each of 6 devices, got 2"),
        ({"selection": PowerOfChoice(d=3), "participants": 4}, r"d must lie between participants \(4\) and clients"),
        ({"selection": PowerOfChoice(d=7)}, r"d must lie between participants \(6\) and clients \(6\), got 7"),
        ({"selection": BySize(), "sampling": "poisson"}, "sampling poisson tosses the same coin for every device"),
        ({"selection": Never()}, "a weight must be a finite number > 0, but Never gives 0 to device 0 with its"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        world(**changes).settle((0,)).cohort(1)


@pytest.mark.parametrize("shares", [(0.0, 1.0), (math.inf, 1.0), (-1.0, 1.0)])
def test_weights_lie_in_their_domain(shares):
    with pytest.raises(ValueError, match="ByWeight: shares must lie in"):
        ByWeight(shares=shares)


@pytest.mark.parametrize(
    ("method", "more", "message"),
    [
        (HypCluster(lr=0.1), {}, "asks devices for the loss of the server's model, but HypCluster trains several"),
        (FedAvg(lr=0.1, personal=("*bias",)), {}, "but FedAvg leaves parts of it on the devices: use BySize"),
        (LocalOnly(lr=0.1), {}, "but LocalOnly sends none: use BySize"),
        (FedAvg(lr=0.1), {"regret": Regret()}, "regret: a round's loss is that of the devices that train"),
        (
            FedAvg(lr=0.1, weighting="uniform"),
            {"privacy": Privacy(clip=1.0, noise=1.0)},
            "ε counts on devices that are drawn alike",
        ),
    ],
)
def test_what_makes_no_sense_beside_candidates_is_refused_before_the_first_round(method, more, message):
    with pytest.raises(ValueError, match=message):
        run(method, 1, population=drifting(participants=2, selection=PowerOfChoice(d=4)), task=logistic(), **more)
