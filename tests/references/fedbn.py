"""FedBN (Li et al. 2021, Alg. 1), and FedAvg with averaged statistics, on a network with one BatchNorm layer.

    device c, every minibatch: h = W1 x + b1;   mean μ, variance s over the minibatch;   n = (h - μ) / sqrt(s + ε)
        z = W2 relu(γ n + β) + b2;   SGD on the mean cross-entropy
        running mean ← .9 running mean + .1 μ;   running variance ← .9 running variance + .1 s B / (B - 1);   count + 1
    FedBN:   γ, β and the statistics stay on the device, Σ_c p_c averages all others
    average: Σ_c p_c averages everything

A minibatch of one example has no variance: it is normalised by the running statistics, which stay.
The model is a dict of arrays, in the order in which torch lists them.
"""

import numpy as np

EPSILON, MOMENTUM = 1e-5, 0.1
OWN = ("scale", "shift", "mean", "var", "count")  # FedBN's
SHARED = ("w1", "b1", "w2", "b2")


def step(model, x, y, lr):
    """The model after one minibatch step."""
    m, rows, batch = model, np.arange(len(y)), len(y)
    h = x @ m["w1"].T + m["b1"]
    alone = batch == 1
    mean, var = (m["mean"], m["var"]) if alone else (h.mean(0), h.var(0))
    root = np.sqrt(var + EPSILON)
    n = (h - mean) / root
    a = m["scale"] * n + m["shift"]
    r = np.maximum(a, 0.0)
    z = r @ m["w2"].T + m["b2"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    dz = p.copy()
    dz[rows, y] -= 1.0
    dz /= batch
    da = (dz @ m["w2"]) * (a > 0)
    dn = da * m["scale"]
    # d/dh of (h - mean(h)) / sqrt(var(h) + ε): the mean and the part along n leave
    dh = dn / root if alone else (dn - dn.mean(0) - n * (dn * n).mean(0)) / root
    gradient = {"w1": dh.T @ x, "b1": dh.sum(0), "scale": (da * n).sum(0), "shift": da.sum(0),
                "w2": dz.T @ r, "b2": dz.sum(0)}  # fmt: skip
    after = {name: m[name] - lr * g for name, g in gradient.items()}
    if alone:
        return {**m, **after}
    after["mean"] = (1 - MOMENTUM) * m["mean"] + MOMENTUM * mean
    after["var"] = (1 - MOMENTUM) * m["var"] + MOMENTUM * var * batch / (batch - 1)
    after["count"] = m["count"] + 1
    return after


def round(shared, local_parts, cohort, lr, mode):
    """The server's model and the devices' parts after a round.

    Args:
        shared: the server's model.
        local_parts: what devices keep, by number.
        cohort: dicts with client, size and batches (epochs of minibatches).
        lr: of the devices.
        mode: ``local`` or ``average``.
    """
    total, fits, local_parts = sum(device["size"] for device in cohort), [], dict(local_parts)
    for device in cohort:
        model = {**shared, **local_parts.get(device["client"], {})}
        model["count"] = np.round(model["count"])  # a module counts in whole numbers
        for x, y in (pair for epoch in device["batches"] for pair in epoch):
            model = step(model, x, y, lr)
        fits.append((device["size"] / total, model))
        if mode == "local":
            local_parts[device["client"]] = {name: model[name] for name in OWN}
    averaged = SHARED if mode == "local" else (*SHARED, *OWN)
    after = {name: sum(p * model[name] for p, model in fits) for name in averaged}
    return {**shared, **after}, local_parts


def logits(model, x):
    """[B, classes] in evaluation mode."""
    n = (x @ model["w1"].T + model["b1"] - model["mean"]) / np.sqrt(model["var"] + EPSILON)
    return np.maximum(model["scale"] * n + model["shift"], 0.0) @ model["w2"].T + model["b2"]
