"""FedNova: Wang et al. 2020, eq. (9) x <- x - tau_eff sum_i p_i eta d_i, d_i = G_i a_i / ||a_i||_1.

For SGD with momentum rho the accumulated gradient weighs step k of tau_i by a_k = (1 - rho^(tau_i - k)) / (1 - rho),
k = 0 .. tau_i - 1. The authors' code finds ||a_i||_1 by the recursion u <- rho u + 1, A <- A + u, used here.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "weighting": "examples"}


def init(x, hyper=None):
    """State before round 1."""
    return {"x": np.array(x, dtype=np.float64), "t": 0, "stats": []}


def norm(steps, rho):
    """||a||_1 by the recursion of the authors' code."""
    u, total = 0.0, 0.0
    for _ in range(steps):
        u = rho * u + 1.0
        total += u
    return total


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    x = state["x"]
    fits = [local.train(x, device, h) for device in cohort]
    sizes = np.array([device["size"] for device in cohort], dtype=np.float64)
    p = sizes / sizes.sum() if h["weighting"] == "examples" else np.full(len(cohort), 1 / len(cohort))
    a = np.array([norm(fit.steps, h["momentum"]) for fit in fits])
    d = [(fit.y - x) / a_i for fit, a_i in zip(fits, a, strict=True)]  # - eta G_i a_i / ||a_i||_1
    tau_eff = float(np.sum(p * a))
    return {"x": x + h["server_lr"] * tau_eff * np.einsum("i,in->n", p, d), "t": state["t"] + 1, "stats": fits}
