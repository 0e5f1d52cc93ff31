"""FedVARP: Jhunjhunwala et al. 2022, Alg. 1: v <- (1/|S|) sum_S (Delta_i - y_i) + (1/N) sum_j y_j ; y_i <- Delta_i."""

import numpy as np

from . import local, mifa

OWN, init = mifa.OWN, mifa.init


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    x, before = state["x"], state["rows"]
    fits, rows = mifa.updated(state, cohort, h)
    nothing = (np.zeros_like(x),)
    mean = sum((row[0] for row in before.values()), np.zeros_like(x)) / h["population"]
    news = [rows[device["client"]][0] - before.get(device["client"], nothing)[0] for device in cohort]
    g = sum(row[0] for row in rows.values()) / h["population"]
    x = x + h["server_lr"] * (np.mean(news, axis=0) + mean)
    return {"x": x, "g": g, "rows": rows, "t": state["t"] + 1, "stats": fits}
