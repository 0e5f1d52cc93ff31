"""FedAvgM: server momentum, Hsu et al. 2019 (Measuring the Effects of Non-Identical Data Distribution).

    v <- beta v + dw,   w <- w - v,   dw = sum_k (n_k / n) dw_k,   dw_k = w - w_k = -Delta_k;   v_0 = 0, no dampening.
With a server step size w <- w - eta_g v, and `nesterov` steps along dw + beta v instead of v.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "beta": 0.9, "nesterov": False, "weighting": "examples"}


def init(x, hyper=None):
    """State before round 1: the model and the momentum v = 0. v has the sign of dw, that of a gradient."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "v": np.zeros_like(x), "t": 0, "stats": []}


def step(state, delta, hyper):
    """The server's step for a given mean update Delta = -dw."""
    h = local.settings(hyper, **OWN)
    dw = -delta  # dw = sum_k (n_k / n) (w - w_k)
    v = h["beta"] * state["v"] + dw  # v <- beta v + dw
    direction = dw + h["beta"] * v if h["nesterov"] else v
    x = state["x"] - h["server_lr"] * direction  # w <- w - eta_g v
    return {**state, "x": x, "v": v, "t": state["t"] + 1}


def round(state, cohort, hyper):
    """One round: local SGD on every device, then the momentum step on the server."""
    h = local.settings(hyper, **OWN)
    fits = [local.train(state["x"], device, h) for device in cohort]
    delta = local.mean_update(state["x"], cohort, fits, h["weighting"])
    return {**step(state, delta, hyper), "stats": fits}
