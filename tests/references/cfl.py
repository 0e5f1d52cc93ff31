"""CFL: Sattler et al. 2021, clustered federated learning with the optimal bipartition, for devices that come and go.

A cluster c is split where |mean of its updates| < eps_1 and max |update| > eps_2: into c_1 and c_2 for which the
largest cosine across is least, if gamma_max < sqrt((1 - largest) / 2). The bipartition is found by trying all. A device
that comes after a split trains the cluster as it was then, and goes to the side whose mean its update resembles more.

State beside x, the models of all clusters from the root:
    child      the first of a cluster's two children, 0 while it is whole
    direction  the mean update of a cluster's members at its birth
    split      the round in which a cluster was split
    rows       by device: the cluster that it trained last, the round, the tree's number, its update
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
    clusters = 2 * local.settings(hyper, **OWN)["models"] - 1
    none = np.zeros(clusters, dtype=int)
    x = np.tile(np.array(x, dtype=np.float64), (clusters, 1))
    state = {"x": x, "direction": np.zeros_like(x), "child": none, "split": none.copy(), "rows": {}}
    return {**state, "t": 0, "stats": [], "came late": False}


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


def stands(state, client):
    """The cluster that a device trains in the next round."""
    if client not in state["rows"]:
        return 0
    cluster, last, _, delta = state["rows"][client]
    child = state["child"][cluster]
    if child == 0 or last < state["split"][cluster]:
        return cluster
    left, right = (cosine(delta, state["direction"][node]) for node in (child, child + 1))
    return child + 1 if right > left else child


def round(state, cohort, hyper):
    """One round: clusters are split in the order of their numbers, as long as there is place."""
    h = local.settings(hyper, **OWN)
    t = state["t"] + 1
    trains = [stands(state, device["client"]) for device in cohort]
    fits = [local.train(state["x"][node], device, h) for node, device in zip(trains, cohort, strict=True)]
    updates = [fit.y - state["x"][node] for node, fit in zip(trains, fits, strict=True)]
    rows = {d["client"]: (c, t, 0, u) for d, c, u in zip(cohort, trains, updates, strict=True)}
    late = any(state["child"][node] for node in trains)
    x, direction, child, split = (state[name].copy() for name in ("x", "direction", "child", "split"))

    def mean(jobs):
        sizes = [cohort[j]["size"] if h["weighting"] == "examples" else 1 for j in jobs]
        return np.average([updates[j] for j in jobs], axis=0, weights=sizes)

    for node in range(len(x)):
        jobs = [j for j, cluster in enumerate(trains) if cluster == node]
        if not jobs or state["child"][node]:
            continue
        place = 2 * int((child > 0).sum()) + 1
        if splits(h, t, [updates[j] for j in jobs], mean(jobs)) and place < len(x):
            side = [jobs[i] for i in bipartition([updates[j] for j in jobs])[0]]
            child[node], split[node] = place, t
            for born, members in ((place, side), (place + 1, [j for j in jobs if j not in side])):
                direction[born] = mean(members)
                x[born] = state["x"][node] + h["server_lr"] * direction[born]
        else:
            x[node] = state["x"][node] + h["server_lr"] * mean(jobs)
    return {
        "x": x,
        "direction": direction,
        "child": child,
        "split": split,
        "rows": {**state["rows"], **rows},
        "t": t,
        "stats": fits,
        "came late": late,
    }


def splits(h, t, updates, mean):
    """Whether a cluster with these updates is split in round t."""
    if t < h["first_round"] or len(updates) < h["participants"]:
        return False
    if np.linalg.norm(mean) >= h["eps1"] or max(map(np.linalg.norm, updates)) <= h["eps2"]:
        return False
    return h["gamma_max"] is None or h["gamma_max"] < np.sqrt((1 - bipartition(updates)[1]) / 2)
