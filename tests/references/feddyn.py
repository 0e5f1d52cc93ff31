"""FedDyn: Acar et al. 2021, Alg. 1, in the paper's own variables.

    device: theta_k <- argmin L_k(theta) - <grad_k, theta> + (alpha/2) ||theta - x||^2
            grad_k <- grad_k - alpha (theta_k - x)
    server: h <- h - alpha (1/m) sum_{k in P} (theta_k - x);   x <- (1/|P|) sum_{k in P} theta_k - h / alpha
m is the number of devices ever known (`population`). The engine's h_i is -grad_i / alpha, its h is -h / alpha.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "alpha": 0.01, "weighting": "uniform", "population": None}


def init(x, hyper=None):
    """State before round 1; grad_k = 0 for a device not seen yet."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "h": np.zeros_like(x), "rows": {}, "own": np.zeros_like(x), "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round over the sampled devices P."""
    h = local.settings(hyper, **OWN)
    x, alpha = state["x"], h["alpha"]
    grads = {client: -alpha * row[0] for client, row in state["rows"].items()}
    fits = []
    for device in cohort:
        mine = grads.get(device["client"], np.zeros_like(x))

        def correct(g, theta, mine=mine):
            return g - mine + alpha * (theta - x)

        fit = local.train(x, device, h, correct)
        grads[device["client"]] = mine - alpha * (fit.y - x)
        fits.append(fit)
    p = local.weights(cohort, h["weighting"])
    paper_h = state["own"] - alpha * np.sum([fit.y - x for fit in fits], axis=0) / h["population"]  # the paper's h
    theta = np.einsum("i,in->n", p, [fit.y for fit in fits])
    moved = theta - paper_h / alpha
    rows = {client: (-grad / alpha,) for client, grad in grads.items()}
    return {"x": x + h["server_lr"] * (moved - x), "h": -paper_h / alpha, "own": paper_h, "rows": rows,
            "t": state["t"] + 1, "stats": fits}  # fmt: skip
