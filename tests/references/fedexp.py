"""FedExP: Jhunjhunwala et al. 2023, Alg. 1: eta_g = max(1, (1/M) sum_i |Delta_i|^2 / (2 (|Delta|^2 + eps)))."""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "weighting": "uniform", "eps": 1e-3}


def init(x, hyper=None):
    """State before round 1."""
    return {"x": np.array(x, dtype=np.float64), "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    x, p = state["x"], local.weights(cohort, h["weighting"])
    fits = [local.train(x, device, h) for device in cohort]
    squares = sum(weight * np.sum((fit.y - x) ** 2) for weight, fit in zip(p, fits, strict=True))
    delta = local.mean_update(x, cohort, fits, h["weighting"])
    eta = max(1.0, squares / (2 * (np.sum(delta**2) + h["eps"])))
    return {"x": x + h["server_lr"] * eta * delta, "t": state["t"] + 1, "stats": fits}
