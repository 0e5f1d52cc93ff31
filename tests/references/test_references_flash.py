"""Self-checks of FLASH: hand-computed rounds, FedYogi as the case of its moment without d, the 0/0 guard."""

import numpy as np
import pytest

from . import fedyogi, flash, local
from .cases import play, steps


@pytest.mark.parametrize("v_init", ["zero", "tau_sq"])
def test_flash_with_yogi_s_moment_and_without_d_is_fedyogi(monkeypatch, x0, cohort, v_init):
    hyper = {"server_lr": 0.1, "tau": 0.01, "v_init": v_init}
    with_d = play(flash, x0, cohort, {**hyper, "moment": "yogi", "clamp": 0.0})["x"]
    monkeypatch.setattr(flash, "disparity", lambda d, v, innovation, h: np.zeros_like(d))
    yogi = play(fedyogi, x0, cohort, hyper)["x"]
    np.testing.assert_array_equal(play(flash, x0, cohort, {**hyper, "moment": "yogi"})["x"], yogi)
    assert not np.allclose(with_d, yogi)
    assert not np.allclose(play(flash, x0, cohort, hyper)["x"], yogi)


@pytest.mark.parametrize("delta", [0.05, -0.05, 0.2, -2.25])
def test_flash_round_one_scalar(delta):
    b1, b2, tau, eta = 0.9, 0.99, 1e-3, 0.5
    hyper = {"beta1": b1, "beta2": b2, "tau": tau, "server_lr": eta, "v_init": "zero"}
    state = steps(flash, np.zeros(1), [np.array([delta])], hyper)
    assert state["d"][0] == pytest.approx(b2 * delta**2, rel=1e-12)  # b3 = 0
    below = np.sqrt(1 - b2) * abs(delta) - b2 * delta**2 + tau
    assert state["x"][0] == pytest.approx(eta * (1 - b1) * delta / below, rel=1e-9)
    ascends = abs(delta) > 0.15  # beyond sqrt(1-b2)/b2 = .101 the printed rule steps against Delta
    assert (np.sign(state["x"][0]) == -np.sign(delta)) == ascends
    for clamp in (0.0, 0.25):
        x = steps(flash, np.zeros(1), [np.array([delta])], {**hyper, "clamp": clamp})["x"][0]
        root = np.sqrt(1 - b2) * abs(delta)
        expected = max(root - b2 * delta**2, clamp * root) + tau
        assert x == pytest.approx(eta * (1 - b1) * delta / expected, rel=1e-9)


def test_flash_round_two_scalar():
    hyper = {"beta1": 0.5, "beta2": 0.5, "tau": 0.5, "v_init": "zero"}
    after_one, after_two = (steps(flash, np.zeros(1), [np.array([0.5])] * n, hyper) for n in (1, 2))
    assert (after_one["v"], after_one["d"]) == (0.125, 0.125)
    # v = .0625 + .125 = .1875; innovation .25 - .1875 = .0625; b3 = .125 / (.0625 + .125) = 2/3 (the OLD v)
    assert after_two["v"] == 0.1875
    assert after_two["d"][0] == pytest.approx(2 / 3 * 0.125 + 1 / 3 * 0.0625)
    assert (after_two["x"] - after_one["x"])[0] == pytest.approx(0.375 / (np.sqrt(0.1875) - after_two["d"][0] + 0.5))


def test_flash_d_turns_negative_when_updates_shrink():
    hyper = {"v_init": "zero", "beta2": 0.9}
    state = steps(flash, np.zeros(1), [np.array([1.0])] + [np.zeros(1)] * 40, hyper)
    assert state["d"][0] < 0 < state["v"][0]


def test_flash_tensor_granularity(rng):
    hyper = {"v_init": "zero", "beta2": 0.9, "clamp": 0.0}
    deltas = 0.1 * rng.normal(size=(5, 6))
    coordinate = steps(flash, np.zeros(6), deltas, hyper)
    tensor = {**hyper, "beta3_granularity": "tensor"}
    same = steps(flash, np.zeros(6), deltas, {**tensor, "layout": [(i, i + 1) for i in range(6)]})
    np.testing.assert_allclose(same["x"], coordinate["x"], rtol=1e-12)
    h = local.settings({**tensor, "layout": [(0, 2), (2, 6)]}, **flash.OWN)
    b3 = flash.beta3(np.array([3.0, 4.0, 0, 0, 0, 2]), np.array([6.0, 8.0, 0, 6, 0, 0]), h)
    np.testing.assert_allclose(b3, [5 / 15, 5 / 15, 0.25, 0.25, 0.25, 0.25])
    assert not np.allclose(steps(flash, np.zeros(6), deltas, {**tensor, "layout": [(0, 6)]})["x"], coordinate["x"])


@pytest.mark.parametrize("granularity", ["coordinate", "tensor"])
def test_flash_zero_over_zero(granularity):
    hyper = {"v_init": "zero", "beta3_granularity": granularity, "layout": [(0, 1), (1, 2)]}
    with np.errstate(all="raise"):
        state = steps(flash, np.zeros(2), [np.array([0.0, 0.05])] * 3, hyper)
    assert state["d"][0] == state["x"][0] == 0.0
    assert state["x"][1] > 0
