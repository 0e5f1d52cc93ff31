"""Self-checks of MOON's and FedACG's transcriptions: slopes for gradients, steps by hand, what reduces to FedAvg."""

import numpy as np
import pytest

from . import fedacg, local, moon
from .cases import CLASSES, FEATURES, data, play

WIDTH = 5
SIZE = WIDTH * FEATURES + WIDTH + CLASSES * WIDTH + CLASSES


@pytest.mark.parametrize("last", [0, 1, 2])
def test_moon_s_gradient_is_the_slope_of_its_loss(rng, last):
    w, *models = rng.normal(size=(last + 2, SIZE))
    x, y = data(rng, 7)

    def loss(w):
        return moon.mean_gradient(w, x, y, CLASSES, models, 3.0, 0.4)[1]

    step = 1e-6
    slope = [(loss(w + step * e) - loss(w - step * e)) / (2 * step) for e in np.eye(SIZE)]
    np.testing.assert_allclose(moon.mean_gradient(w, x, y, CLASSES, models, 3.0, 0.4)[0], slope, atol=2e-8)


def test_contrast_by_hand():
    """In the plane: z along the first axis, one model's representation too, the other's across."""
    z, same, across = np.array([[2.0, 0.0]]), np.array([[3.0, 0.0]]), np.array([[0.0, 1.0]])
    loss, slope = moon.contrast(z, [same, across], 0.5)
    away = np.exp(0.0) / (np.exp(2.0) + np.exp(0.0))  # share of the model that z is not like
    assert loss == pytest.approx(-np.log(1 - away))
    np.testing.assert_allclose(slope, [[0.0, away / (2.0 * 0.5)]])  # a step down turns z away from across
    loss, slope = moon.contrast(z, [same], 0.5)
    assert (loss.tolist(), slope.tolist()) == ([0.0], [[0.0, 0.0]])


def test_moon_without_mu_or_last_models_knows_no_contrast(rng, cohort):
    x0 = rng.normal(size=SIZE)
    plain, strong = (play(moon, x0, cohort, {"mu": mu}, rounds=1) for mu in (0.0, 5.0))
    np.testing.assert_array_equal(plain["x"], strong["x"])
    plain, strong = (play(moon, x0, cohort, {"mu": mu, "buffer": 2}) for mu in (0.0, 5.0))
    assert np.abs(plain["x"] - strong["x"]).max() > 1e-3
    assert all(len(last_models) == 2 for last_models in strong["last"].values())
    v, last_count = strong["rows"][cohort[0]["client"]]
    np.testing.assert_array_equal(v[0], strong["stats"][0].y)
    assert (v.shape, last_count) == ((2, SIZE), 2.0)


def test_fedacg_by_hand(x0, cohort):
    hyper = {"lam": 0.5, "beta": 0.0}
    first = play(fedacg, x0, cohort, hyper, rounds=1)
    np.testing.assert_array_equal(first["m"], first["x"] - x0)
    h = local.settings({"classes": CLASSES, "lr": 0.3})
    ahead = first["x"] + 0.5 * first["m"]
    mean = np.mean([local.train(ahead, device, h).y for device in cohort], axis=0)
    second = play(fedacg, x0, cohort, hyper, rounds=2)
    np.testing.assert_allclose(second["x"], mean, rtol=1e-13)
    np.testing.assert_allclose(second["x"] - first["x"], second["m"], rtol=1e-10, atol=1e-14)
