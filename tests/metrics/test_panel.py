"""A panel: the same devices in every round, of all sizes, and means that are off by their standard error."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flstudy.algorithms import Ditto, FedAvg, HypCluster
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import METRICS
from flstudy.population import AlternatingGroups, Partition

from ..config.refusal import assert_refused
from ..config.test_config import QUICK
from ..worlds import difference, measured, run, wide

SEEDS = (0, 44)
RANDOM = np.random.default_rng(0)
SIZES = (1000 * RANDOM.lognormal(3, 1, 1000)).astype(np.int64)
VALUES = np.log(SIZES + 1) + RANDOM.normal(size=1000)  # what a device tells goes with its size


def go(panel=None, algorithm=None, rounds=4, **world):
    settings = {"population": wide(**world), "seeds": SEEDS, "initial": "seeded", "evaluate": True, "panel": panel}
    return run(algorithm or FedAvg(lr=0.1), rounds, **settings)


def test_a_panel_has_devices_of_all_sizes():
    there = np.arange(1000) < 800
    drawn = Panel(clients=40).draw(7, SIZES, there, 40)
    assert len(set(drawn.tolist())) == 40
    assert (np.diff(drawn) > 0).all()
    assert there[drawn].all()
    rank = SIZES[there].argsort().argsort()
    assert (np.bincount(rank[drawn] // 80) == 4).all()


@pytest.mark.parametrize("count", [25, 200])
def test_means_over_panels_are_off_by_the_standard_error_and_no_more(count):
    panel, everybody = Panel(clients=count), np.ones(1000, dtype=bool)
    drawn = [VALUES[panel.draw(seed, SIZES, everybody, count)] for seed in range(400)]
    means, predicted = np.mean(drawn, 1), np.std(drawn, 1).mean() * panel.error(count, 1000)
    assert abs(means.mean() - VALUES.mean()) < 4 * means.std() / 20
    assert 0.5 * predicted < means.std() < 1.05 * predicted  # strata are worth something


@dataclass(frozen=True, kw_only=True)
class Some(Partition):
    """Devices by turns, and examples that nobody owns, in each replica another number."""

    def assign(self, labels, clients, rng):
        owner = rng.permutation(np.arange(len(labels)) % clients)
        owner[: rng.integers(5, 60)] = -1
        return owner


def test_examples_are_counted_where_replicas_hold_different_numbers_of_them():
    names = ["test/accuracy", "valid/loss", "test/accuracy_spread"]
    panel, world = Panel(clients=None, weighting="examples"), {"partition": Some()}
    together = go(panel, rounds=1, **world)
    sizes = [int(members.shared.sum()) for members in together.run.population.members]
    assert len(set(sizes)) == len(SEEDS)
    for replica, seed in enumerate(SEEDS):
        alone = run(
            FedAvg(lr=0.1), 1, population=wide(**world), seeds=(seed,), initial="seeded", evaluate=True, panel=panel
        )
        assert difference(measured(together, *names)[:, :, replica], measured(alone, *names)[:, :, 0]) <= 1e-12


def test_who_leaves_is_replaced_and_others_stay():
    panel, there = Panel(clients=100), np.ones(1000, dtype=bool)
    before = panel.draw(3, SIZES, there, 100)
    there[before[::10]] = False
    after = panel.draw(3, SIZES, there, 100)
    assert len(set(before.tolist()) & set(after.tolist())) > 80
    assert there[after].all()


@pytest.mark.slow
def test_a_panel_of_everybody_tells_what_everybody_tells():
    names = ["test/accuracy", "test/accuracy_spread", "valid/loss", "test/personal_accuracy"]
    for algorithm in (FedAvg(lr=0.1), Ditto(lr=0.1), HypCluster(lr=0.1, models=2)):
        plain, asked = go(algorithm=algorithm), go(Panel(clients=30), algorithm)
        assert torch.equal(measured(plain, *names), measured(asked, *names))
        assert not measured(asked, "test/accuracy_se", "valid/loss_se").any()
        assert "test/accuracy_se" not in plain.record.metrics


def test_everybody_is_asked_as_often_as_wanted_and_training_does_not_feel_it():
    plain, asked = go(), go(Panel(clients=12, examples=2, full_every=2))
    names = ["test/accuracy", "test/loss"]
    plain_values, asked_values = measured(plain, *names), measured(asked, *names)
    assert torch.equal(plain_values[1::2], asked_values[1::2])
    assert not torch.equal(plain_values[::2], asked_values[::2])
    error = measured(asked, "test/accuracy_se", "test/loss_se")
    assert (error[::2] > 0).all()
    assert not error[1::2].any()
    assert torch.equal(plain.server.x, asked.server.x)


@pytest.mark.parametrize("algorithm", [Ditto(lr=0.1), HypCluster(lr=0.1, models=2)], ids=["own models", "several"])
def test_a_device_is_asked_about_few_examples_and_the_model_that_it_uses(algorithm):
    module = go(Panel(clients=8, examples=3), algorithm, rounds=3, availability=AlternatingGroups(rounds=2))
    evaluation, data = module.evaluation, module.population.device_data
    for round in (1, 2, 3):
        asked = evaluation.asked(round)
        assert asked.clients.shape == (2, 8)
        assert module.population.available(round)[[[0], [1]], asked.clients.numpy()].all()
        index = data.evaluation_index("test", round, asked.clients, 3)
        assert torch.bincount(index.device[0][index.rows[0] >= 0]).max() <= 3
        for s in range(2):
            held_rows = np.concatenate([data.held(s, k, "test", round) for k in asked.clients[s].tolist()])
            assert set(index.rows[s][index.rows[s] >= 0].tolist()) <= set(held_rows.tolist())
    assert np.isfinite(measured(module, "test/accuracy").numpy()).all()
    assert module.personal(29) is not None  # whether it is asked or not


def test_standard_errors_are_named_before_the_run():
    module = go(Panel(clients=12), rounds=1)
    announced = module.measures(module.population, 1)
    assert {"test/accuracy_se", "test/loss_se", "valid/accuracy_se", "valid/loss_se"} <= set(announced)
    assert {name for name in module.record.metrics if name.endswith("_se")} <= set(announced) & set(METRICS)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(lr=0.1), Ditto(lr=0.1), HypCluster(lr=0.1, models=2)],
    ids=["one model", "own models", "several"],
)
def test_devices_that_count_by_their_examples_are_one_test_set(algorithm):
    """Means are those over all examples of who is there, each by the model that its device uses."""
    sessions = AlternatingGroups(rounds=2)
    plain = go(None, algorithm, rounds=3, availability=sessions)
    module = go(Panel(clients=None, weighting="examples"), algorithm, rounds=3, availability=sessions)
    assert torch.equal(plain.server.x, module.server.x)
    population, record = module.population, module.record.metrics
    there, held = population.available(3), population.device_data
    assert not any(name.endswith("_se") for name in record)
    for s in range(len(SEEDS)):
        counts = [len(held.held(s, int(device), "test", 3)) for device in np.flatnonzero(there[s])]
        correct = record["test/accuracy"][s] * sum(counts)
        assert correct == pytest.approx(round(correct), abs=1e-6)  # a whole number of examples
    assert measured(plain, "test/accuracy").tolist() != measured(module, "test/accuracy").tolist()
    assert set(record) == set(plain.record.metrics)


def test_panels_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"evaluation.clients must be ≤ population.clients \(30\), got 31: lower it"):
        go(Panel(clients=31))
    every = {"evaluation.clients": 5, "evaluation.full_every": 3, "evaluate_every": 2}
    assert_refused(QUICK, every, "evaluation.full_every must be a multiple of evaluate_every (2), got 3")
    assert_refused(QUICK, {"evaluation.clients": 1}, "evaluation.clients must lie in [2, 1e6], got 1")
    assert_refused(
        QUICK, {"evaluation.clients": 1000}, "evaluation.clients must be ≤ population.clients (20), got 1000"
    )
    with_everybody = {"evaluation.clients": None, "evaluation.full_every": 3}
    assert_refused(QUICK, with_everybody, "evaluation.full_every must be left out where evaluation.clients is null")
    weighted = {"evaluation.clients": 5, "evaluation.weighting": "examples"}
    assert_refused(QUICK, weighted, "evaluation.weighting examples needs evaluation.clients null, got 5")
