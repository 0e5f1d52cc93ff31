"""ε against the papers' printed figure and formulas."""

import math

import numpy as np
import pytest

from flstudy.privacy import Accountant, Privacy, Sample

DELTA = 0.0025


def accountant(sampling="poisson", **changes):
    return Accountant(Privacy(**{"clip": 1.0, "noise": 1.0, "sampling": sampling, "delta": DELTA, **changes}))


def converted(divergence, order):
    """ε of a Rényi divergence (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return divergence + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)


def test_the_budget_that_fedada2_prints():
    """FedAda², app. H.1: 400 clients, q = 0.1, 500 rounds, σ = 1: (13.1, 0.0025) with optimal order 2.0."""
    rounds = {Sample(400, 40): 500}
    epsilon = accountant(orders=[2.0]).epsilon(1.0, rounds)
    assert round(epsilon, 1) == 13.1
    # E of the squared ratio of (1 - q) N(0, σ²) + q N(1, σ²) to N(0, σ²) is 1 + q² (exp(1/σ²) - 1)
    assert epsilon == pytest.approx(converted(500 * math.log1p(0.1**2 * (math.e - 1)), 2), rel=1e-12)
    assert accountant().epsilon(1.0, rounds) == pytest.approx(epsilon, rel=1e-12)  # 2.0 is the best of the usual ones
    assert 11.4 < accountant(accountant="pld").epsilon(1.0, rounds) < 11.6 < epsilon


def test_drawing_a_fixed_number_costs_what_wang_et_al_prove():
    """Theorem 27 at order 2: log(1 + q² min(4 (e^ε(2) - 1), 2 e^ε(2))), ε(2) = 1 / s², s = σ c / (2 c)."""
    s = 2.5 / 2
    inner = 1 / s**2
    divergence = math.log1p(0.1**2 * min(4 * (math.exp(inner) - 1), 2 * math.exp(inner)))
    epsilon = accountant("fixed", orders=[2.0]).epsilon(2.5, {Sample(400, 40): 30})
    assert epsilon == pytest.approx(converted(30 * divergence, 2), rel=1e-12)
    everybody = accountant("fixed", orders=[3.0]).epsilon(2.5, {Sample(400, 400): 7})
    assert everybody == pytest.approx(converted(7 * 3 / (2 * s**2), 3), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rdp", "pld"])
def test_rounds_add_up_and_noise_helps(kind):
    account = accountant(accountant=kind)
    few, many = Sample(400, 10), Sample(400, 80)
    both = account.epsilon(1.5, {few: 20, many: 10})
    assert account.epsilon(1.5, {few: 20}) < account.epsilon(1.5, {many: 10}) < both
    assert both < account.epsilon(1.5, {many: 30})
    assert account.epsilon(2.0, {few: 20, many: 10}) < both
    assert account.epsilon(1.5, {few: 0}) == 0
    assert both == accountant(accountant=kind).epsilon(1.5, {many: 10, few: 20})


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"accountant": "pld"}, marks=pytest.mark.slow),
        {"sampling": "fixed", "orders": [2.0, 4.0]},
        {"orders": [2.0, 8.0]},
    ],
)
def test_the_least_noise_that_keeps_a_target(settings):
    account, rounds = accountant(**settings), {Sample(400, 40): 50}
    noise = account.solve(5.0, rounds)
    assert account.epsilon(noise, rounds) <= 5.0 < account.epsilon(noise * (1 - 2e-3), rounds)


def test_a_target_that_no_noise_reaches():
    """Without any divergence, order 2 still says log(1/2) - log(2 δ)."""
    with pytest.raises(ValueError, match=r"target_epsilon = 0\.001 is out of reach in 3 rounds at δ = 1e-12"):
        accountant(orders=[2.0], delta=1e-12).solve(1e-3, {Sample(4, 4): 3})


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(ValueError, match="pip install dp-accounting"):
        accountant()


def test_a_thousand_coins_are_no_cheaper_than_their_formula():
    """Order α of the sampled Gaussian at integers (Mironov et al. 2019, eq. 6), summed in numpy."""
    q, sigma, order = 0.05, 1.7, 6
    k = np.arange(order + 1)
    terms = [math.comb(order, int(i)) * (1 - q) ** (order - i) * q**i for i in k]
    divergence = math.log(np.dot(terms, np.exp((k**2 - k) / (2 * sigma**2)))) / (order - 1)
    epsilon = accountant(orders=[6.0]).epsilon(sigma, {Sample(1000, 50): 100})
    assert epsilon == pytest.approx(converted(100 * divergence, order), rel=1e-10)
