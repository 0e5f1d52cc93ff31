"""Sweeps: arms over the same draws, compared pair by pair; correlations of orders and published deviations."""

from pathlib import Path

import numpy as np
import pytest

from flstudy.reproduction.plan import PublishedValue, World
from flstudy.reproduction.sweeps import arms_of, matched_pairs, sweep_parts
from flstudy.reproduction.values import impossible_spreads, rank_correlation
from flstudy.study import load_study

from ..reporting.conftest import is_drawn, make_study, make_trial

DRAWS = 12
RATES = np.round(np.linspace(0.01, 0.5, DRAWS), 4)


@pytest.fixture
def results(tmp_path):
    """Three arms over the same learning rates: Flash as good as FedAvg at its best and a tenth worse in every other
    draw, FedProx everywhere 0.2 below FedAvg; and a draw that FedAvg has not."""
    good = 0.5 + 0.4 * np.sin(np.linspace(0.2, 3.0, DRAWS))
    best = good.argmax()
    values = {
        "FedAvg": good,
        "Flash": np.where(np.arange(DRAWS) == best, good, good - 0.1),
        "FedProx": good - 0.2,
    }
    drawn = [
        (name, {"algorithm.lr": float(rate)} | ({"algorithm.mu": 0.1} if name == "FedProx" else {}), float(value))
        for name, accuracies in values.items()
        for rate, value in zip(RATES, accuracies, strict=True)
    ]
    drawn.append(("Flash", {"algorithm.lr": 0.9}, 0.3))
    trials = [
        make_trial(str(n), name, value, overrides={"algorithm": name, **rates}, metrics={"test/accuracy": value})
        for n, (name, rates, value) in enumerate(drawn)
    ]
    curves = {str(n): [[value] * 10] * 2 for n, (*_, value) in enumerate(drawn)}
    return load_study(make_study(tmp_path / "s", trials, curves=curves))


@pytest.mark.slow
def test_arms_are_compared_over_the_draws_that_they_share(results):
    arms = arms_of(results, ["algorithm"], "test/accuracy")
    assert {arm: len(draws) for arm, draws in arms.items()} == {("FedAvg",): 12, ("Flash",): 13, ("FedProx",): 12}
    pairs = {(*pair.first, *pair.second): pair for pair in matched_pairs(arms, higher=True)}
    flash, prox = pairs["FedAvg", "Flash"], pairs["FedAvg", "FedProx"]
    assert flash.better.draws == prox.better.draws == DRAWS  # FedProx's mu is its own, and no reason not to match
    assert flash.better.mean == pytest.approx(0.1 * 11 / 12)
    assert 0.05 < flash.better.low < flash.better.mean < flash.better.high < 0.1001
    assert flash.better.p < 0.01
    assert flash.easier.mean == pytest.approx(0.1 * 11 / 12)  # the two are equal at their best
    assert prox.better.mean == pytest.approx(0.2)
    assert prox.easier.mean == pytest.approx(0.0, abs=1e-12)  # worse everywhere, and no harder to tune
    assert matched_pairs(arms, higher=True) == list(pairs.values())  # the bootstrap has a seed


@pytest.mark.slow
def test_a_sweep_s_page_says_who_is_most_sensitive_only_where_the_intervals_do(results, tmp_path):
    world = World(name="w", title="W", config=Path(__file__), kind="sweep", arms=("algorithm",))
    page = "\n".join(sweep_parts(world, results, tmp_path))
    assert "Flash depends on its tuning more than every other arm: all intervals of its excess lie above 0." in page
    assert "| FedAvg - Flash | 12 | +9.2 [" in page
    assert is_drawn(tmp_path / "w-curves.png")
    alone = World(name="w", title="W", config=Path(__file__), kind="sweep", arms=("algorithm", "algorithm.lr"))
    assert "No arm depends" in "\n".join(sweep_parts(alone, results, tmp_path))


def test_a_rank_correlation_has_an_interval_that_shrinks_with_the_rows():
    few = rank_correlation(
        dict(zip("abcdef", range(6), strict=True)), dict(zip("abcdef", [0, 2, 1, 3, 5, 4], strict=True))
    )
    assert few.rho == pytest.approx(0.886, abs=1e-3)
    assert few.low < 0.3 < few.rho < few.high < 1
    names = [str(n) for n in range(60)]
    many = rank_correlation(
        dict(zip(names, range(60), strict=True)), dict(zip(names, [n ^ 1 for n in range(60)], strict=True))
    )
    assert many.low > 0.99
    assert rank_correlation({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}) is None
    assert rank_correlation(dict.fromkeys("abcd", 1.0), dict(zip("abcd", range(4), strict=True))) is None


def test_deviations_that_no_accuracies_can_have_are_named():
    figures = {
        "A": PublishedValue(0.9, 0.31, None),
        "B": PublishedValue(0.9, 0.3, None),
        "C": PublishedValue(0.9, None, None),
    }
    assert impossible_spreads(figures).endswith("but A 0.310 > 0.300.")
    assert impossible_spreads({"B": figures["B"], "C": figures["C"]}) == ""
