"""Dynamic regret, Δ and L, detections and restarts: by hand, and in worlds whose optima are known."""

import re

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedOmd
from flstudy.metrics.optimum import RoundLoss, shifts
from flstudy.metrics.regret import count_changes, count_restarts, detections, dynamic_regret, variation
from flstudy.population import IncrementalDrift, SuddenDrift
from flstudy.tasks import Logistic

from ..references import problem
from ..worlds import CLASSES, FEATURES, SEEDS, difference, drifting, logistic, mlp, run, world

L2 = 0.01


def test_regret_by_hand():
    assert dynamic_regret([[1.0, 0.5], [0.2, 0.3]], [0.1, 0.2]).tolist() == [
        pytest.approx([0.9, 1.2]), pytest.approx([0.1, 0.2])
    ]  # fmt: skip
    with pytest.raises(ValueError, match=re.escape("same rounds, [..., T], got (3,) and (2,)")):
        dynamic_regret([1, 2, 3], [1, 2])


def test_variation_and_changes_by_hand():
    losses = [[[1.0, 1.0, 3.0], [2.0, 2.0, 0.5]], [[0.0, 1e-9, 0.0], [0.0, 0.0, 0.0]]]
    assert variation(losses).tolist() == [[0.0, 2.0], [1e-9, 1e-9]]
    assert count_changes(variation(losses)).tolist() == [1, 2]
    assert count_changes(variation(losses), tolerance=1e-6).tolist() == [1, 0]
    with pytest.raises(ValueError, match="models, T ≥ 2"):
        variation([1.0, 2.0])
    with pytest.raises(ValueError, match="tolerance must be ≥ 0"):
        count_changes([1.0], -1.0)


def test_detections_by_hand():
    fired = np.zeros((2, 20))
    fired[0, [2, 9, 12, 18]] = [1, 2, 3, 2]  # rounds 3, 10, 13 and 19
    fired[1, [4, 14]] = 2  # rounds 5 and 15
    detected = detections(fired, [5, 10, 15, 30])  # the last never came
    np.testing.assert_equal(detected.delay, [[np.nan, 0.0, 4.0], [0.0, np.nan, 0.0]])
    assert detected.false_alarms.tolist() == [2, 0]  # before the first drift; a second time after the second
    soon = detections(fired, [5, 10, 15], within=3)
    np.testing.assert_equal(soon.delay[0], [np.nan, 0.0, np.nan])
    assert soon.false_alarms.tolist() == [3, 0]
    assert detections(fired, []).false_alarms.tolist() == [4, 2]
    with pytest.raises(ValueError, match="within must be ≥ 0, got -1"):
        detections(fired, [5], within=-1)


def test_restarts_by_cause():
    restarts = count_restarts([[0, 1, 2, 2], [0, 0, 1, 1]])
    assert (restarts["block"].tolist(), restarts["detection"].tolist()) == ([1, 2], [2, 0])


def test_the_optimum_is_one_by_the_plain_gradient():
    population = drifting().settle(SEEDS)
    round_loss = RoundLoss(population, logistic(), l2=L2)
    for index in (0, 3):
        best = round_loss.optimum(index + 1, tolerance=1e-8)
        cohort = population.cohort(index + 1)
        for s in range(3):
            parts = []
            for client, concept in zip(cohort.jobs.client[s].tolist(), cohort.batches.concept[s], strict=True):
                rows = population.members[s][client]["train"]
                parts.append(
                    (population.store.x[rows].numpy(), population.store.table[concept][population.store.y[rows]])
                )
            x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
            at = best.x[s].numpy()
            gradient, loss = problem.mean_gradient(at, x, y, CLASSES)
            assert np.linalg.norm(gradient + L2 * at) <= 1e-8
            assert loss + L2 / 2 * at @ at == pytest.approx(float(best.loss[s]), abs=1e-12)
    near = best.x[:, None] + 0.1 * torch.randn(3, 5, best.x.shape[1], dtype=torch.float64)
    assert (round_loss.loss(4, near) > best.loss[:, None]).all()
    assert difference(round_loss.loss(4, best.x), best.loss) <= 1e-12


@pytest.mark.parametrize("penalty", [{"l1": 0.02}, {"l1": 0.01, "l2": 0.05}, {"l2": 0.05}], ids=str)
def test_the_optimum_under_the_task_s_own_penalty(penalty):
    """0 is in the subdifferential: ∇ + λ₂ x + λ₁ sign(x) = 0 where x is not 0, |∇| ≤ λ₁ where it is."""
    population = drifting().settle((0, 44))
    round_loss, bare = (
        RoundLoss(population, Logistic((FEATURES,), CLASSES, **penalties)) for penalties in (penalty, {})
    )
    best = round_loss.optimum(4, tolerance=1e-6)
    l1, l2 = penalty.get("l1", 0.0), penalty.get("l2", 0.0)
    for s in range(2):
        batch, at = round_loss.batch(4, s), best.x[s]
        x, y = batch.x.numpy(), batch.y.numpy()
        gradient = torch.from_numpy(problem.mean_gradient(at.numpy(), x, y, CLASSES)[0]) + l2 * at
        loss = problem.mean_gradient(at.numpy(), x, y, CLASSES)[1]
        assert loss + l1 * at.abs().sum() + l2 / 2 * at @ at == pytest.approx(float(best.loss[s]), abs=1e-12)
        assert (gradient + l1 * at.sign())[at != 0].norm() <= 1e-6
        assert (gradient[at == 0].abs() <= l1 + 1e-6).all()
        assert ((at == 0).sum() > 5) == (l1 > 0)  # what an L1 penalty is for
    near = best.x[:, None] + 0.1 * torch.randn(2, 5, best.x.shape[1], dtype=torch.float64)
    assert (round_loss.loss(4, near) > best.loss[:, None]).all()
    assert (bare.loss(4, best.x) < best.loss).all()
    with pytest.raises(ValueError, match="above the tolerance 1e-12: raise tolerance, steps or l2"):
        round_loss.optimum(4, tolerance=1e-12, steps=2)


def test_worlds_that_stand_still_are_solved_once():
    population = world(drift=SuddenDrift(round=4)).settle((0, 44))
    round_loss = RoundLoss(population, logistic(), l2=L2)
    optima = [round_loss.optimum(index + 1).loss for index in range(6)]
    assert len(round_loss._solved) == 4  # two replicas under two concepts
    assert all(torch.equal(optima[index], optima[0]) for index in (1, 2))
    models = torch.stack([round_loss.optimum(index + 1).x for index in (0, 4)], 1)
    losses = torch.stack([round_loss.loss(index + 1, models) for index in range(6)], -1)
    moved = variation(losses)
    assert count_changes(moved).tolist() == [len(line) for line in shifts(population, 6)] == [1, 1]
    assert (moved[:, 2] > 0.5).all()  # from round 3 to 4
    assert shifts(population, 6) == [[4], [4]]
    several = world(drift=IncrementalDrift(round=2, every=2, step=0.5)).settle((0,))
    assert shifts(several, 6) == [[2, 4]]


@pytest.mark.slow
def test_regret_grows_slower_than_rounds_where_the_world_stands_still():
    """Theorem 2 with η_t = 1/√t."""
    population, rounds = world(batch_size=33, epochs=1), 40
    module = run(FedOmd(lr=1.0, mirror="euclidean", decay="sqrt"), rounds, population=population, task=logistic())
    round_loss = RoundLoss(population, logistic())
    losses = np.stack([round_loss.loss(i + 1, server.x).numpy() for i, server in enumerate(module.servers)], -1)
    optima = np.stack([round_loss.optimum(i + 1, tolerance=1e-4).loss.numpy() for i in range(rounds)], -1)
    regret = dynamic_regret(losses, optima)[0]
    assert (np.diff(regret) > 0).all()
    means = regret / np.arange(1, rounds + 1)
    assert (np.diff(means) < 0).all()
    assert (np.diff(losses[0]) < 0).all()


def test_what_cannot_be_asked_is_named():
    with pytest.raises(ValueError, match="settle it first"):
        RoundLoss(world(), logistic())
    population = world().settle((0,))
    with pytest.raises(ValueError, match="l2 must be ≥ 0, got -1"):
        RoundLoss(population, logistic(), l2=-1)
    with pytest.raises(ValueError, match="tolerance must be > 0"):
        RoundLoss(population, logistic()).optimum(1, tolerance=0)
    with pytest.raises(ValueError, match="above the tolerance 1e-09: raise tolerance, steps or l2"):
        RoundLoss(population, mlp()).optimum(1, tolerance=1e-9, steps=2)
