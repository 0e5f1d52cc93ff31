"""Continuous: FedAvg whose devices distil from the model with which the last session ended, on softmax regression.

Device sessions (Chang et al. 2025), the authors' code:  loss = CE + kl_coefficient KL(teacher || student), T = 1
    d KL(q || p) / dz = p - q
GLFC (Dong et al. 2022):  L = 1/2 L_GC + 1/2 L_RD; without an old model L = L_GC
    L_GC = 1/B sum_b w_b BCE(z_b, e_b),  w_b = g_b / mean of g over b's group (old or new classes),
    g_b = |sigmoid(z_b)_y - 1|
    L_RD = 1/B sum_b BCE(z_b, q_b),  q_b = e_b with the old classes' entries replaced by sigmoid(z'_b)
    BCE is the mean over classes:  d BCE(z, t) / dz = (sigmoid(z) - t) / C;  w_b is a constant of the gradient
Old classes are those that devices trained on in sessions before this one.
"""

import numpy as np

from . import local, problem

OWN = {"server_lr": 1.0, "weighting": "examples", "distillation": "kl_soft", "kappa": 1.0, "session_rounds": None}


def logits(w, x, classes):
    """z [B, classes]."""
    weight, bias = problem.unpack(w, x.shape[1], classes)
    return x @ weight.T + bias


def bce(z, t):
    """[B]: mean over classes of -t log sigmoid(z) - (1 - t) log(1 - sigmoid(z))."""
    return np.mean(t * np.logaddexp(0, -z) + (1 - t) * np.logaddexp(0, z), axis=1)


def back(dz, x):
    """Gradient [n] of the weight and the bias, from that of the logits."""
    return np.concatenate([(dz.T @ x).ravel(), dz.sum(axis=0)])


def soft(w, x, y, classes, teacher, kappa):
    """Gradient and mean of CE + kappa KL."""
    g, loss = problem.mean_gradient(w, x, y, classes)
    if teacher is None:
        return g, loss
    log_p, log_q = problem.log_softmax(w, x, classes), problem.log_softmax(teacher, x, classes)
    p, q = np.exp(log_p), np.exp(log_q)
    kl = np.sum(q * (log_q - log_p), axis=1)
    return g + kappa * back((p - q) / len(y), np.asarray(x, dtype=float)), loss + kappa * float(kl.mean())


def relation(w, x, y, classes, teacher, old):
    """Gradient and mean of L_GC, or of its mean with L_RD."""
    x, rows = np.asarray(x, dtype=float), np.arange(len(y))
    z, e = logits(w, x, classes), np.eye(classes)[y]
    s = 1 / (1 + np.exp(-z))
    g = np.abs(s[rows, y] - 1)
    weight = np.empty(len(y))
    for group in (True, False):
        inside = np.isin(y, sorted(old)) == group
        if inside.any():
            weight[inside] = g[inside] / g[inside].mean()
    loss = float(np.mean(weight * bce(z, e)))
    dz = weight[:, None] * (s - e) / classes / len(y)
    if teacher is None:
        return back(dz, x), loss
    q, old_classes = e.copy(), sorted(old)
    q[:, old_classes] = (1 / (1 + np.exp(-logits(teacher, x, classes))))[:, old_classes]
    dz = (dz + (s - q) / classes / len(y)) / 2
    return back(dz, x), (loss + float(np.mean(bce(z, q)))) / 2


def init(x, hyper=None):
    """State before round 1: nobody teaches."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "teacher": None, "old": set(), "seen": set(), "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round over the sampled devices; a session is ``session_rounds`` rounds."""
    h = local.settings(hyper, **OWN)
    w, teacher, old, seen, classes = state["x"], state["teacher"], state["old"], state["seen"], h["classes"]
    if state["t"] and h["session_rounds"] and state["t"] % h["session_rounds"] == 0:
        teacher, old = w, set(seen)
    fits = []
    for device in cohort:

        def gradient(v, x, y):
            if h["distillation"] == "kl_soft":
                return soft(v, x, y, classes, teacher, h["kappa"])
            return relation(v, x, y, classes, teacher, old)

        def losses(v, valid=device["valid"]):
            return problem.example_losses(v, *valid, classes)

        stop = None
        if h["gamma"] is not None:
            stop = local.EarlyStop(h["gamma"], losses, h["first_epoch"], h["valid_loss"])
        fit = local.sgd_fit(w, device["batches"], gradient, h["lr"], h["momentum"], h["weight_decay"], h["clip_norm"],
                            stop=stop)  # fmt: skip
        fits.append(fit)
        trained = device["batches"][: fit.epochs]
        seen = seen | {int(label) for epoch in trained for _, labels in epoch for label in labels}
    x = w + h["server_lr"] * local.mean_update(w, cohort, fits, h["weighting"])
    return {"x": x, "teacher": teacher, "old": old, "seen": seen, "t": state["t"] + 1, "stats": fits}
