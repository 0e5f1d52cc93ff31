"""FLASH: Panchal et al. 2023, Alg. 1. Early stopping (lines 6-13) is `local.EarlyStop`; lines 16-21 are here.

Line 21 as scanned reads 'sqrt(v) . d + tau'; the appendix uses sqrt(v) - d + tau throughout, which is what is meant.
The paper takes sqrt(v) > d for granted. It is false in general (round 1 with v_0 = 0 has sqrt(v) - d < 0 as soon as
|Delta| > sqrt(1 - b2) / b2), hence 'clamp', which is not the paper's: the smallest share of sqrt(v) that is left.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "v_init": "tau_sq", "weighting": "uniform",
       "clamp": None, "beta3_granularity": "coordinate", "layout": None,
       "moment": "adam"}  # fmt: skip


def init(x, hyper=None):
    """m = d = 0 (appendix B: 'initially d^(0) is set to 0'); v is not given by the paper: tau^2 or 0."""
    h = local.settings(hyper or {}, **OWN)
    x = np.array(x, dtype=np.float64)
    v = np.full_like(x, {"tau_sq": h["tau"] ** 2, "zero": 0.0}[h["v_init"]])
    return {"x": x, "m": np.zeros_like(x), "v": v, "d": np.zeros_like(x), "t": 0, "stats": []}


def norms(a, h):
    """||a_j||_2 for each j of line 19, spread over the coordinates of j: j is a coordinate, or a named tensor."""
    if h["beta3_granularity"] == "coordinate":
        return np.abs(a)
    if h["beta3_granularity"] != "tensor":
        raise ValueError(h["beta3_granularity"])
    out = np.full_like(a, np.nan)
    for start, stop in h["layout"]:
        out[start:stop] = np.sqrt(np.sum(a[start:stop] ** 2))
    return out


def beta3(v_previous, innovation, h):
    """Line 19: b3_j = ||v_j^(r-1)|| / (||(Delta_j^(r))^2 - v_j^(r)|| + ||v_j^(r-1)||), and b3_j = 0 where it is 0/0."""
    top, other = norms(v_previous, h), norms(innovation, h)
    return np.divide(top, other + top, out=np.zeros_like(top), where=(other + top) != 0)


def disparity(d, v_previous, innovation, h):
    """Line 20: d_j^(r) = b3_j d_j^(r-1) + (1 - b3_j) ((Delta_j^(r))^2 - v_j^(r))."""
    b3 = beta3(v_previous, innovation, h)
    return b3 * d + (1 - b3) * innovation


def denominator(v, d, h):
    """Line 21's denominator: as printed, or clamped."""
    root = np.sqrt(v)
    if h["clamp"] is None:
        return root - d + h["tau"]
    return np.maximum(root - d, h["clamp"] * root) + h["tau"]


def step(state, delta, hyper):
    """Lines 17-21 for a given mean update Delta."""
    h = local.settings(hyper, **OWN)
    m = h["beta1"] * state["m"] + (1 - h["beta1"]) * delta  # line 17: m = b1 m + (1 - b1) Delta
    if h["moment"] == "adam":
        v = h["beta2"] * state["v"] + (1 - h["beta2"]) * delta**2  # line 18: v = b2 v + (1 - b2) Delta^2
    elif h["moment"] == "yogi":  # 'FLASH reduces to FedYogi': Reddi et al. 2021, Alg. 2, in line 18's place
        v = state["v"] - (1 - h["beta2"]) * delta**2 * np.sign(state["v"] - delta**2)
    else:
        raise ValueError(h["moment"])
    d = disparity(state["d"], state["v"], delta**2 - v, h)  # lines 19-20, the OLD v on top, the NEW v inside
    x = state["x"] + h["server_lr"] * m / denominator(v, d, h)  # line 21: w = w + eta_g m / (sqrt(v) - d + tau)
    return {**state, "x": x, "m": m, "v": v, "d": d, "t": state["t"] + 1}


def round(state, cohort, hyper):
    """One round: lines 5-14 on every device, line 16, then the server's lines 17-21."""
    h = local.settings(hyper, **OWN)
    fits = [local.train(state["x"], device, h) for device in cohort]  # lines 5-14
    delta = local.mean_update(state["x"], cohort, fits, h["weighting"])  # line 16: (1/|C|) sum_c (w_c - w_g)
    return {**step(state, delta, hyper), "stats": fits}
