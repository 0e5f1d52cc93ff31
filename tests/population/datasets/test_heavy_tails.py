"""Heavy-tailed devices, and the quadratic whose gradients they disturb."""

import re

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedAvg
from flstudy.population import HeavyTails, Population
from flstudy.tasks import Quadratic

from ...worlds import run


def test_devices_draw_from_their_distributions():
    data = HeavyTails(examples=20_000)
    examples = data.load(0, 4)
    tails = [examples.x[examples.owner == k, 0].abs() for k in range(4)]
    shares = [float((values > 10).double().mean()) for values in tails]
    exact = [2 * float(torch.distributions.StudentT(k + 2.0).sample((10**6,)).gt(10).double().mean()) for k in range(4)]
    np.testing.assert_allclose(shares, exact, atol=2e-3)  # P(|t| > 10): 9.9e-3 with 2 degrees of freedom
    assert shares[0] > 5e-3 > shares[1]
    cauchy = HeavyTails(tails="cauchy", examples=20_000).load(0, 3)
    quartile = [float(cauchy.x[cauchy.owner == k, 0].quantile(0.75)) for k in range(3)]
    np.testing.assert_allclose(quartile, [1.0, 0.6745, 0.6745], atol=0.03)
    assert float(cauchy.x[cauchy.owner == 0].abs().max()) > 1000
    assert float(cauchy.x[cauchy.owner > 0].abs().max()) < 6


def test_a_round_of_fedavg_by_hand():
    """w ← w - η mean_i (w + ξ_i), and the evaluated loss is the expected one."""
    population = Population(HeavyTails(examples=50, dimension=3), clients=4, participants=4, batch_size=1, steps=1)
    module = run(FedAvg(lr=0.1, weighting="uniform"), 1, population=population, task=Quadratic((3,)), evaluate=True)
    work = population.cohort(1)
    noise = population.store.x[work.batches.rows[0, :, 0, 0]].double()
    expected = 1 - 0.1 * (1 + noise.mean(0))
    assert torch.allclose(module.server.x[0], expected, atol=1e-7)
    loss = module.record.metrics["valid/loss"][0]
    assert loss == pytest.approx(float((module.server.x[0] ** 2).sum() / 2), rel=1e-6)
    assert module.record.metrics["valid/accuracy"] == [float(module.server.x[0].norm() <= 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeavyTails(tails="pareto"), "HeavyTails: tails must be one of student, cauchy, got 'pareto'"),
        (lambda: HeavyTails(examples=2), "HeavyTails: examples must lie in [3, 1e8], got 2"),
        (lambda: Quadratic((1,), near=0), "Quadratic: near must lie in (0, 1e12], got 0"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
