"""FedOpt: Reddi et al. 2021, Alg. 1: x <- ServerOpt(x, -Delta), with a learning rate that may fall over rounds.

ServerOpt is SGD, or NAdam (Dozat 2016, Alg. 2) with the momentum's schedule of its sec. 3, which torch documents:
    mu_t = b1 (1 - .96^(t psi) / 2) ;  m <- b1 m + (1 - b1) g ;  v <- b2 v + (1 - b2) g^2
    m^ = mu_{t+1} m / (1 - prod_{i <= t+1} mu_i) + (1 - mu_t) g / (1 - prod_{i <= t} mu_i)
    x <- x - eta m^ / (sqrt(v / (1 - b2^t)) + eps)
"""

import numpy as np

from . import local

OWN = {"weighting": "examples", "server_opt": "SGD", "eta": 1.0, "decay": 1.0, "betas": (0.9, 0.999)}
PSI, EPS = 0.004, 1e-8


def init(x, hyper=None):
    """x_0, and a NAdam that has taken no step."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "t": 0, "moment": np.zeros_like(x), "square": np.zeros_like(x), "product": 1.0, "stats": []}


def step(state, delta, hyper):
    """ServerOpt's step t = 1, 2, ... along g = -Delta; eta is multiplied by `decay` after each."""
    h = local.settings(hyper, **OWN)
    t, g, eta = state["t"] + 1, -delta, h["eta"] * h["decay"] ** state["t"]
    if h["server_opt"] == "SGD":
        return {**state, "t": t, "x": state["x"] - eta * g}
    b1, b2 = h["betas"]
    mu, after = (b1 * (1 - 0.96 ** (k * PSI) / 2) for k in (t, t + 1))
    moment, square = b1 * state["moment"] + (1 - b1) * g, b2 * state["square"] + (1 - b2) * g**2
    product = state["product"] * mu
    ahead = after * moment / (1 - product * after) + (1 - mu) * g / (1 - product)
    x = state["x"] - eta * ahead / (np.sqrt(square / (1 - b2**t)) + EPS)
    return {**state, "x": x, "t": t, "moment": moment, "square": square, "product": product}


def round(state, cohort, hyper):
    """One round: the devices' SGD from x, the mean of their updates, ServerOpt's step."""
    h = local.settings(hyper, **OWN)
    fits = [local.train(state["x"], device, h) for device in cohort]
    return {**step(state, local.mean_update(state["x"], cohort, fits, h["weighting"]), hyper), "stats": fits}
