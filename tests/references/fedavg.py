"""FedAvg: McMahan et al. 2017, 'FederatedAveraging', with the server step size of Reddi et al. 2021 (Alg. 1, SGD).

w <- w + eta_g sum_c p_c (w_c - w),   p_c = n_c / sum_S n ;  at eta_g = 1 this is w <- sum_c p_c w_c.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "weighting": "examples"}


def init(x, hyper=None):
    """State of the server before round 1: only the model w_0."""
    return {"x": np.array(x, dtype=np.float64), "t": 0, "stats": []}


def step(state, delta, hyper):
    """The server's step for a given mean update Delta."""
    h = local.settings(hyper, **OWN)
    x = state["x"] + h["server_lr"] * delta  # w_{t+1} <- w_t + eta_g sum_k (n_k / n) (w_{t+1}^k - w_t)
    return {**state, "x": x, "t": state["t"] + 1}


def round(state, cohort, hyper):
    """One round: ClientUpdate(k, w_t) for each k in S_t, then the server's step."""
    h = local.settings(hyper, **OWN)
    fits = [local.train(state["x"], device, h) for device in cohort]  # w_{t+1}^k <- ClientUpdate(k, w_t)
    delta = local.mean_update(state["x"], cohort, fits, h["weighting"])
    return {**step(state, delta, hyper), "stats": fits}
