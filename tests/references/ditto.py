"""Ditto: Li et al. 2021, Alg. 1 and 2.

global: FedAvg's.   personal, on the same minibatches:  v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))
"""

import numpy as np

from . import local, problem

OWN = {"server_lr": 1.0, "lam": 0.1, "personal_lr": None, "weighting": "uniform"}


def init(x, hyper=None):
    """State before round 1; v_k is the first model that device k receives."""
    return {"x": np.array(x, dtype=np.float64), "rows": {}, "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    w, rows = state["x"], dict(state["rows"])
    fits = [local.train(w, device, h) for device in cohort]

    def gradient(v, inputs, labels):
        return problem.mean_gradient(v, inputs, labels, h["classes"])

    for device, fit in zip(cohort, fits, strict=True):
        (v,) = rows.get(device["client"], (w,))
        batches = [pair for epoch in device["batches"] for pair in epoch][: fit.steps]
        lr = h["lr"] if h["personal_lr"] is None else h["personal_lr"]
        mine = local.sgd_fit(v, [batches], gradient, lr, h["momentum"], h["weight_decay"], h["clip_norm"],
                             correct=lambda g, v: g + h["lam"] * (v - w))  # fmt: skip
        rows[device["client"]] = (mine.y,)
    mean = np.einsum("i,in->n", local.weights(cohort, h["weighting"]), [fit.y - w for fit in fits])
    return {"x": w + h["server_lr"] * mean, "rows": rows, "t": state["t"] + 1, "stats": fits}
