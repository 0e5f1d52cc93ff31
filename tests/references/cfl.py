"""CFL: Sattler et al. 2021, clustered federated learning with the optimal bipartition, for devices that come and go.

A cluster c is split where |mean of its updates| < eps_1 and max |update| > eps_2: into c_1 and c_2 for which the
largest cosine across is least, if gamma_max < sqrt((1 - largest) / 2). The bipartition is found by trying all. A device
that comes after a split trains the cluster as it was then, and goes to the side whose mean its update resembles more.

State beside x, the models of all clusters:
    splits     in their order: the cluster, its model, the mean updates of its two sides, the round; split s makes
               cluster s + 1 of the second side
    rows       by device: its cluster, the splits that it has passed, the round of its update, the number of
               the tree, its update
"""

from itertools import combinations

import numpy as np

from . import local

OWN = {
    "server_lr": 1.0,
    "weighting": "examples",
    "models": 8,
    "eps1": 0.4,
    "eps2": 1.6,
    "gamma_max": None,
    "first_round": 21,
    "participants": 3,
}


def init(x, hyper=None):
    """State before round 1: one cluster."""
    x = np.tile(np.array(x, dtype=np.float64), (local.settings(hyper, **OWN)["models"], 1))
    return {"x": x, "splits": [], "rows": {}, "t": 0, "stats": [], "came late": False}


def cosine(u, v):
    """cos(u, v), 0 if one of them is 0."""
    lengths = np.linalg.norm(u) * np.linalg.norm(v)
    return u @ v / lengths if lengths else 0.0


def bipartition(updates):
    """The side of the first device and the largest cosine across, of all bipartitions the one where it is least."""
    others, best = range(1, len(updates)), (np.inf, None)
    for size in range(len(updates) - 1):
        for more in combinations(others, size):
            side = [0, *more]
            rest = [j for j in others if j not in more]
            across = max(cosine(updates[i], updates[j]) for i in side for j in rest)
            best = min(best, (across, side), key=lambda pair: pair[0])
    return best[1], best[0]


def pending(state, cluster, passed):
    """The first split of a cluster that a device has not passed, or None."""
    return next((s for s, split in enumerate(state["splits"]) if s >= passed and split[0] == cluster), None)


def placed(state, client):
    """Cluster and passed splits of a device in the next round, and the split whose model it trains, or None."""
    cluster, passed, last, _, delta = state["rows"].get(client, (0, 0, 0, 0, None))
    split = pending(state, cluster, passed)
    if split is not None and last >= state["splits"][split][3]:
        left, right = (cosine(delta, side) for side in state["splits"][split][2])
        cluster, passed = split + 1 if right > left else cluster, split + 1
        split = pending(state, cluster, passed)
    return cluster, passed, split


def round(state, cohort, hyper):
    """One round: clusters are split in the order of their numbers, as long as there is place."""
    h = local.settings(hyper, **OWN)
    t, x = state["t"] + 1, state["x"]
    places = [placed(state, device["client"]) for device in cohort]
    models = [x[cluster] if split is None else state["splits"][split][1] for cluster, _, split in places]
    fits = [local.train(model, device, h) for model, device in zip(models, cohort, strict=True)]
    updates = [fit.y - model for model, fit in zip(models, fits, strict=True)]
    rows = {
        device["client"]: (cluster, passed, t, 0, update)
        for device, (cluster, passed, _), update in zip(cohort, places, updates, strict=True)
    }
    after, all_splits = x.copy(), list(state["splits"])

    def mean(jobs):
        sizes = [cohort[j]["size"] if h["weighting"] == "examples" else 1 for j in jobs]
        return np.average([updates[j] for j in jobs], axis=0, weights=sizes)

    for m in range(len(x)):
        jobs = [j for j, (cluster, _, split) in enumerate(places) if cluster == m and split is None]
        if not jobs:
            continue
        step = mean(jobs)
        if splits(h, t, [updates[j] for j in jobs], step) and len(all_splits) + 1 < len(x):
            side = [jobs[i] for i in bipartition([updates[j] for j in jobs])[0]]
            step, other = mean(side), mean([j for j in jobs if j not in side])
            all_splits.append((m, x[m], (step, other), t))
            after[len(all_splits)] = x[m] + h["server_lr"] * other
        after[m] = x[m] + h["server_lr"] * step
    late = any(split is not None for _, _, split in places)
    rows = {**state["rows"], **rows}
    return {"x": after, "splits": all_splits, "rows": rows, "t": t, "stats": fits, "came late": late}


def splits(h, t, updates, mean):
    """Whether a cluster with these updates is split in round t."""
    if t < h["first_round"] or len(updates) < h["participants"]:
        return False
    if np.linalg.norm(mean) >= h["eps1"] or max(map(np.linalg.norm, updates)) <= h["eps2"]:
        return False
    return h["gamma_max"] is None or h["gamma_max"] < np.sqrt((1 - bipartition(updates)[1]) / 2)
