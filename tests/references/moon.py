"""MOON: Li et al. 2021, Alg. 1, on a network with one hidden layer, differentiated by hand.

    z = relu(W1 u + b1) is R_w(u), and W2 z + b2 are the logits F_w(u)
    l_sup = CrossEntropy(F_w(u), y);   s_0 = sim(z, z_glob) / tau,  s_k = sim(z, z_prev,k) / tau for k = 1 .. K
    l_con = -log(exp(s_0) / (exp(s_0) + sum_k exp(s_k)));   l = l_sup + mu l_con, mean over the minibatch
    w_i^t <- w_i;   w^{t+1} = sum_i |D_i| / |D| w_i^t

The paper has K = 1; the authors' model_buffer_size keeps the K last models of a device. Without any, l_con is left out.
The parameters are one flat vector, as torch lists W1 [hidden, features], b1, W2 [classes, hidden], b2.
"""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "mu": 1.0, "tau": 0.5, "buffer": 1, "weighting": "examples"}
SMALL = 1e-8  # of torch.nn.CosineSimilarity: the least that a norm counts for


def unpack(w, features, classes):
    """W1, b1, W2, b2 of the flat vector; the width follows from its length."""
    width = (len(w) - classes) // (features + 1 + classes)
    sizes = [width * features, width, classes * width, classes]
    w1, b1, w2, b2 = np.split(w, np.cumsum(sizes)[:-1])
    return w1.reshape(width, features), b1, w2.reshape(classes, width), b2


def representation(w, x, classes):
    """z [B, hidden]."""
    w1, b1, _, _ = unpack(w, x.shape[1], classes)
    return np.maximum(x @ w1.T + b1, 0.0)


def log_softmax(s):
    """Over the last axis."""
    top = s.max(axis=1, keepdims=True)
    return s - (top + np.log(np.exp(s - top).sum(axis=1, keepdims=True)))


def example_losses(w, x, y, classes):
    """l_sup of every example [B]."""
    _, _, w2, b2 = unpack(w, x.shape[1], classes)
    return -log_softmax(representation(w, x, classes) @ w2.T + b2)[np.arange(len(y)), y]


def contrast(z, others, tau):
    """l_con [B] of z [B, d] against others [1 + K, B, d], and dl_con / dz [B, d].

    dl/ds_k = p_k - 1{k = 0};   ds_k/dz = (o / (|z| |o|) - sim z / |z|^2) / tau
    """
    norm = np.maximum(np.linalg.norm(z, axis=1), SMALL)
    sims, slopes = [], []
    for o in others:
        unit = o / np.maximum(np.linalg.norm(o, axis=1), SMALL)[:, None]
        sim = np.sum(z * unit, axis=1) / norm
        sims.append(sim)
        slopes.append((unit / norm[:, None] - (sim / norm**2)[:, None] * z) / tau)
    log_p = log_softmax(np.stack(sims, axis=1) / tau)
    ds = np.exp(log_p)
    ds[:, 0] -= 1.0
    return -log_p[:, 0], np.einsum("bk,kbd->bd", ds, np.stack(slopes))


def mean_gradient(w, x, y, classes, models, mu, tau):
    """Gradient [n] of the mean of l at w, and that mean; models: the received one and the K last ones."""
    w1, b1, w2, b2 = unpack(w, x.shape[1], classes)
    z, rows = representation(w, x, classes), np.arange(len(y))
    log_p = log_softmax(z @ w2.T + b2)
    loss = -log_p[rows, y]
    dlogits = np.exp(log_p)
    dlogits[rows, y] -= 1.0
    dz = dlogits @ w2
    if len(models) > 1:
        l_con, slope = contrast(z, [representation(model, x, classes) for model in models], tau)
        loss, dz = loss + mu * l_con, dz + mu * slope
    dhidden = dz * (x @ w1.T + b1 > 0) / len(y)
    dlogits = dlogits / len(y)
    parts = (dhidden.T @ x, dhidden.sum(axis=0), dlogits.T @ z, dlogits.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts]), float(loss.mean())


def init(x, hyper=None):
    """State before round 1; a device not seen yet has no last models."""
    return {"x": np.array(x, dtype=np.float64), "last": {}, "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round over the sampled devices. ``rows``: a device's last models, the newest first, and how many they are."""
    h = local.settings(hyper, **OWN)
    w, classes, last, fits = state["x"], h["classes"], dict(state["last"]), []
    for device in cohort:
        models = [w, *last.get(device["client"], [])]

        def gradient(y, inputs, labels, models=models):
            return mean_gradient(y, inputs, labels, classes, models, h["mu"], h["tau"])

        def losses(y, valid=device["valid"]):
            return example_losses(y, *valid, classes)

        stop = None
        if h["gamma"] is not None:
            stop = local.EarlyStop(h["gamma"], losses, h["first_epoch"], h["valid_loss"])
        fit = local.sgd_fit(w, device["batches"], gradient, h["lr"], h["momentum"], h["weight_decay"], h["clip_norm"],
                            stop=stop)  # fmt: skip
        last[device["client"]] = [fit.y, *models[1:]][: h["buffer"]]
        fits.append(fit)
    x = w + h["server_lr"] * local.mean_update(w, cohort, fits, h["weighting"])
    empty = [np.zeros_like(w)] * h["buffer"]
    rows = {
        k: (np.stack([*last_models, *empty][: h["buffer"]]), float(len(last_models))) for k, last_models in last.items()
    }
    return {"x": x, "last": last, "rows": rows, "t": state["t"] + 1, "stats": fits}
