"""SCAFFOLD: Karimireddy et al. 2020, Alg. 1, eqs. (3) local step, (4) client variate, (5) server.

    (3) y_i <- y_i - eta_l (g_i(y_i) + c - c_i)
    (4) c_i+ <- option I: g_i(x), the gradient at the server model;  option II: c_i - c + (x - y_i) / (K eta_l)
    (5) x <- x + (eta_g / |S|) sum_S (y_i - x) ;   c <- c + (1 / N) sum_S (c_i+ - c_i)
N is the number of devices ever known (`population`), K the number of steps this device really took.
"""

import numpy as np

from . import local, problem

OWN = {"server_lr": 1.0, "option": "II", "population": None}


def init(x, hyper=None):
    """State before round 1: x, c = 0, and c_i = 0 for a client not seen yet (absent from the dict)."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "c": np.zeros_like(x), "c_i": {}, "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round over the sampled devices S; the variates of all others stay as they are."""
    h = local.settings(hyper, **OWN)
    x, c = state["x"], state["c"]  # communicate (x, c) to all i in S
    c_i = dict(state["c_i"])
    fits, dy, dc = [], [], []
    for device in cohort:
        mine = c_i.get(device["client"], np.zeros_like(x))

        def correct(g, y, mine=mine):
            return g + c - mine  # eq. (3)

        fit = local.train(x, device, h, correct)
        if h["option"] == "I":
            full, _ = problem.mean_gradient(x, *device["train"], h["classes"])
            new = full + h["weight_decay"] * x  # eq. (4), option I, full batch
        elif h["option"] == "II":
            new = mine - c + (x - fit.y) / (fit.steps * h["lr"])  # eq. (4), option II
        else:
            raise ValueError(h["option"])
        fits.append(fit)
        dy.append(fit.y - x)  # communicate (dy_i, dc_i) <- (y_i - x, c_i+ - c_i)
        dc.append(new - mine)
        c_i[device["client"]] = new  # c_i <- c_i+
    x_new = x + h["server_lr"] * np.mean(dy, axis=0)  # eq. (5)
    c_new = c + np.sum(dc, axis=0) / h["population"]  # eq. (5): = c + (|S| / N) mean dc
    return {"x": x_new, "c": c_new, "c_i": c_i, "t": state["t"] + 1, "stats": fits}
