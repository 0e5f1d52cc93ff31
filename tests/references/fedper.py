"""FedPer: Arivazhagan et al. 2019, Alg. 1 and 2: base layers W_B are averaged, personal layers W_P stay on the device.

    (W_B, W_P_k) <- SGD_k(W_B, W_P_k) ;  W_B <- sum_k (n_k / N) W_B_k
`kept` says which numbers are W_P. Its relatives say with `moves` which numbers an epoch's steps move.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "weighting": "examples", "kept": None}


def init(x, hyper=None):
    """W_B, and for devices that were never seen W_P, both random at first."""
    return {"x": np.array(x, dtype=np.float64), "rows": {}, "t": 0, "stats": []}


def round(state, cohort, hyper, settings=OWN, moves=None):
    """One round: every device goes on from its own W_P."""
    h = local.settings(hyper, **settings)
    x, mask, rows = state["x"], np.array(h["kept"]), dict(state["rows"])
    fits = []
    for device in cohort:
        (mine,) = rows.get(device["client"], (x[mask],))
        start = np.array(x)
        start[mask] = mine
        fits.append(local.train(start, device, h, moves=moves))
        rows[device["client"]] = (fits[-1].y[mask],)
    delta = np.where(mask, 0, local.mean_update(x, cohort, fits, h["weighting"]))
    return {"x": x + h["server_lr"] * delta, "rows": rows, "t": state["t"] + 1, "stats": fits}
