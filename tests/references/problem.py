"""Softmax (multinomial logistic) regression in float64, differentiated by hand.

The parameters are one flat vector `w`, laid out as `torch.nn.Linear(features, classes)` lists them:
the weight [classes, features] row by row, then the bias [classes].

    z_b = W x_b + b            f(w; x_b, y_b) = log sum_k exp z_bk - z_b,y_b
"""

import numpy as np


def unpack(w, features, classes):
    """Return (weight [classes, features], bias [classes]) of the flat vector `w`."""
    w = np.asarray(w, dtype=np.float64)
    split = classes * features
    return w[:split].reshape(classes, features), w[split : split + classes]


def log_softmax(w, x, classes):
    """log p_bk = z_bk - (max_k z_bk + log sum_k exp(z_bk - max_k z_bk)), shape [B, classes]."""
    x = np.asarray(x, dtype=np.float64)
    weight, bias = unpack(w, x.shape[1], classes)
    z = x @ weight.T + bias
    top = z.max(axis=1, keepdims=True)
    return z - (top + np.log(np.exp(z - top).sum(axis=1, keepdims=True)))


def example_losses(w, x, y, classes):
    """Cross-entropy of every example, shape [B]: f_b = -log p_b,y_b."""
    log_p = log_softmax(w, x, classes)
    return -log_p[np.arange(len(y)), y]


def mean_gradient(w, x, y, classes):
    """Gradient [n] of (1/B) sum_b f_b at w, and that mean loss.

    df/dz_bk = p_bk - 1{k = y_b} ;  df/dW = (1/B) sum_b (p_b - e_b) x_b^T ;  df/db = (1/B) sum_b (p_b - e_b)
    """
    log_p = log_softmax(w, x, classes)
    rows = np.arange(len(y))
    dz = np.exp(log_p)
    dz[rows, y] -= 1.0
    dz /= len(y)
    gradient = np.concatenate([(dz.T @ np.asarray(x, dtype=np.float64)).ravel(), dz.sum(axis=0)])
    return gradient, float(-log_p[rows, y].mean())


def accuracy(w, x, y, classes):
    """Share of examples whose largest logit (the first of equals) is that of the label."""
    return float((log_softmax(w, x, classes).argmax(axis=1) == np.asarray(y)).mean())
