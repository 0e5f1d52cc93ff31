"""MIFA: Gu et al. 2021, Alg. 1: w <- w - eta (1/N) sum_i G^i, G^i the last update of device i, 0 before its first.

N is the number of devices ever known (`population`).
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "population": None}


def init(x, hyper=None):
    """State before round 1: the model and no update of anybody."""
    return {"x": np.array(x, dtype=np.float64), "rows": {}, "t": 0, "stats": []}


def updated(state, cohort, h):
    """The devices' fits and the memory after the round."""
    fits = [local.train(state["x"], device, h) for device in cohort]
    rows = {**state["rows"], **{d["client"]: (fit.y - state["x"],) for d, fit in zip(cohort, fits, strict=True)}}
    return fits, rows


def round(state, cohort, hyper):
    """One round: the mean is over all N devices, whoever took part."""
    h = local.settings(hyper, **OWN)
    fits, rows = updated(state, cohort, h)
    g = sum(row[0] for row in rows.values()) / h["population"]
    return {"x": state["x"] + h["server_lr"] * g, "g": g, "rows": rows, "t": state["t"] + 1, "stats": fits}
