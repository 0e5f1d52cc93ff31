"""FedNova: Wang et al. 2020, eq. (9) x <- x - tau_eff sum_i p_i eta d_i, d_i = G_i a_i / ||a_i||_1.

For SGD with momentum rho the accumulated gradient weighs step k of tau_i by a_k = (1 - rho^(tau_i - k)) / (1 - rho),
k = 0 .. tau_i - 1. With the proximal solver y <- y - eta (grad + mu (y - x)) it weighs (1 - eta mu)^(tau_i - 1 - k),
and the code's tau_eff is sum_i p_i tau_i. With both, gradient k moves y in every later step l by the momentum's share
rho^(l - k), of which the pulls leave (1 - eta mu)^(tau_i - 1 - l).
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "weighting": "examples", "proximal": 0.0, "beta": 0.0}


def init(x, hyper=None):
    """State before round 1."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "v": np.zeros_like(x), "t": 0, "stats": []}


def norm(steps, rho, pull=0.0):
    """||a||_1: the sum over gradients k and later steps l; pull is eta mu."""
    return sum((1 - pull) ** (steps - 1 - step) * rho ** (step - k) for k in range(steps) for step in range(k, steps))


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    x = state["x"]
    fits = [local.train(x, device, h, pull=lambda y: h["proximal"] * (y - x)) for device in cohort]
    sizes = np.array([device["size"] for device in cohort], dtype=np.float64)
    p = sizes / sizes.sum() if h["weighting"] == "examples" else np.full(len(cohort), 1 / len(cohort))
    a = np.array([norm(fit.steps, h["momentum"], h["lr"] * h["proximal"]) for fit in fits])
    d = [(fit.y - x) / a_i for fit, a_i in zip(fits, a, strict=True)]  # - eta G_i a_i / ||a_i||_1
    tau_eff = float(np.sum(p * (a if h["proximal"] == 0 else np.array([fit.steps for fit in fits]))))
    v = h["beta"] * state["v"] + tau_eff * np.einsum("i,in->n", p, d)  # the code's gmf; eq. (9) with 0
    return {"x": x + h["server_lr"] * v, "v": v, "t": state["t"] + 1, "stats": fits}
