"""Adaptive servers: Reddi et al. 2021, Alg. 2: what the branches share, each of which brings its settings and step.

    m <- b1 m + (1 - b1) Delta ;  v <- the branch's ;  x <- x + eta m / (sqrt(v) + tau)
Alg. 2 has no bias correction. `bias_correction` multiplies eta by sqrt(1 - b2^t) / (1 - b1^t), t from 1, and leaves
tau as it is (the authors' released code: Adam of Kingma & Ba 2015, the form without a corrected epsilon).
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "v_init": "tau_sq", "bias_correction": False,
       "weighting": "uniform"}  # fmt: skip


def branch(defaults, second_moment):
    """`init`, `step` and `round` of the branch with these settings, whose v_t is second_moment(v_{t-1}, Delta_t, h)."""

    def init(x, hyper=None):
        """Initialisation: x_0, m = 0, v_{-1} >= tau^2 ('tau_sq': equal to it; 'zero': as in the authors' runs)."""
        h = local.settings(hyper or {}, **defaults)
        x = np.array(x, dtype=np.float64)
        v = np.full_like(x, {"tau_sq": h["tau"] ** 2, "zero": 0.0}[h["v_init"]])
        return {"x": x, "m": np.zeros_like(x), "v": v, "t": 0, "stats": []}

    def step(state, delta, hyper):
        """The server's step for a given mean update Delta."""
        h = local.settings(hyper, **defaults)
        t = state["t"] + 1
        m = h["beta1"] * state["m"] + (1 - h["beta1"]) * delta  # m_t = b1 m_{t-1} + (1 - b1) Delta_t
        v = second_moment(state["v"], delta, h)
        eta = h["server_lr"]
        if h.get("bias_correction"):
            eta = eta * np.sqrt(1 - h["beta2"] ** t) / (1 - h["beta1"] ** t)
        x = state["x"] + eta * m / (np.sqrt(v) + h["tau"])  # x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)
        return {**state, "x": x, "m": m, "v": v, "t": t}

    def round(state, cohort, hyper):
        """One round: Delta_i = x_{i,K} - x_t on every device, their mean, the server's step."""
        h = local.settings(hyper, **defaults)
        fits = [local.train(state["x"], device, h) for device in cohort]  # x_{i,k+1} = x_{i,k} - eta_l g_{i,k}
        delta = local.mean_update(state["x"], cohort, fits, h["weighting"])  # Delta_t = (1/|S|) sum_i Delta_i
        return {**step(state, delta, hyper), "stats": fits}

    return init, step, round
