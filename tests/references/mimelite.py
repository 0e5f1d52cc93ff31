"""MimeLite: Karimireddy et al. 2020, Alg. 1 (the MimeLite lines) with the base algorithms (U, V) of its table.

    communicate (x, s) ; y_i <- x ; y_i <- y_i - eta U(g_i, s), g_i = grad f_i(y_i; zeta), K times
    compute full local-batch gradient grad f_i(x) ; s <- V(mean grad f_i(x), s) ; x <- mean y_i
Weight decay is part of f: grad f(y) + wd y.
"""

import numpy as np

from . import local, problem

OWN = {"server_lr": 1.0, "base": "sgdm", "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "v_init": 0.1,
       "weighting": "uniform"}  # fmt: skip


def init(x, hyper=None):
    """x_0 and s_0: m = 0, v = v_init; both are kept, whether the base algorithm has them or not."""
    h = local.settings(hyper or {}, **OWN)
    x = np.array(x, dtype=np.float64)
    return {"x": x, "m": np.zeros_like(x), "v": np.full_like(x, h["v_init"]), "t": 0, "stats": []}


def direction(g, state, h):
    """U(g, s) with the fixed s."""
    b1 = h["beta1"]
    return {
        "sgdm": lambda: (1 - b1) * g + b1 * state["m"],
        "adagrad": lambda: g / (h["eps"] + np.sqrt(state["v"])),
        "adam": lambda: ((1 - b1) * g + b1 * state["m"]) / (h["eps"] + np.sqrt(state["v"])),
    }[h["base"]]()


def statistics(c, state, h):
    """V(c, s)."""
    m = (1 - h["beta1"]) * c + h["beta1"] * state["m"]
    v = state["v"] + c**2 if h["base"] == "adagrad" else (1 - h["beta2"]) * c**2 + h["beta2"] * state["v"]
    return {"m": m, "v": v}


def full(x, device, h):
    """grad f_i(x) over all of the device's training examples."""
    return problem.mean_gradient(x, *device["train"], h["classes"])[0] + h["weight_decay"] * x


def round(state, cohort, hyper, svrg=False):
    """One round; Mime's with ``svrg``."""
    h = local.settings(hyper, **OWN)
    x, fits = state["x"], []
    c = local.weights(cohort, h["weighting"]) @ np.stack([full(x, device, h) for device in cohort])
    for device in cohort:

        def clipped(w, inputs, labels):
            g, loss = problem.mean_gradient(w, inputs, labels, h["classes"])
            return local.clip(g, h["clip_norm"]) + h["weight_decay"] * w, loss

        def gradient(y, inputs, labels):
            g, loss = clipped(y, inputs, labels)
            if svrg:
                g = g - clipped(x, inputs, labels)[0] + c  # g_i <- grad f_i(y; zeta) - grad f_i(x; zeta) + c
            return direction(g, state, h), loss

        def losses(y, valid=device["valid"]):
            return problem.example_losses(y, *valid, h["classes"])

        stop = None
        if h["gamma"] is not None:
            stop = local.EarlyStop(h["gamma"], losses, h["first_epoch"], h["valid_loss"])
        fits.append(local.sgd_fit(x, device["batches"], gradient, h["lr"], stop=stop))
    delta = local.mean_update(x, cohort, fits, h["weighting"])
    return {"x": x + h["server_lr"] * delta, **statistics(c, state, h), "c": c, "t": state["t"] + 1, "stats": fits}
