"""One device's local work, the same for every method, and the weighted mean of what the devices send back.

A device is dict(client=int, size=n_c, batches=[epoch, ...], valid=(x, y)[, train=(x, y)]); an epoch is a list of
minibatches (x, y). Settings ("hyper") are a plain dict; `settings` fills in defaults and refuses unknown names.
"""

from collections import namedtuple

import numpy as np

from . import problem

LOCAL = {"classes": None, "lr": None, "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None,
         "gamma": None, "first_epoch": "inf", "valid_loss": "mean"}  # fmt: skip

Fit = namedtuple("Fit", "y steps epochs loss")


def settings(hyper, **defaults):
    """The local defaults, the method's `defaults`, then what the caller gave; a misspelt name is an error."""
    unknown = set(hyper) - set(LOCAL) - set(defaults)
    if unknown:
        raise KeyError(f"unknown settings {sorted(unknown)}")
    return {**LOCAL, **defaults, **hyper}


def clip(g, limit):
    """g * min(1, limit / (||g||_2 + 1e-6)) over all parameters at once (torch.nn.utils.clip_grad_norm_)."""
    return g if limit is None else g * min(1.0, limit / (np.sqrt(np.sum(g * g)) + 1e-6))


class EarlyStop:
    """FLASH (Panchal et al. 2023), Alg. 1 lines 6-13, and its threshold gamma / e.

    The printed order tests l_{e-1} - l_e before l_e exists. Read: after epoch e (from 1) evaluate l_e and go on to
    epoch e+1 only if l_{e-1} - l_e >= gamma / e. The weights after the last trained epoch are kept (no roll-back).
    first_epoch 'inf': l_0 = +inf, so the first test always passes. 'eval_received': l_0 = loss of the received model.
    valid_loss 'sum' is line 9 as printed, 'mean' divides by the number of validation examples.
    A loss that is not a number fails the test, so a diverged device stops.
    """

    def __init__(self, gamma, losses, first_epoch="inf", valid_loss="mean"):
        self.gamma = gamma
        self.reduce = {"mean": np.mean, "sum": np.sum}[valid_loss]
        self.losses, self.first_epoch, self.previous = losses, first_epoch, None

    def start(self, x):
        """l_0, before any training."""
        if self.first_epoch not in ("inf", "eval_received"):
            raise ValueError(self.first_epoch)
        self.previous = np.inf if self.first_epoch == "inf" else self.reduce(self.losses(x))

    def go_on(self, e, y):
        """Whether epoch e + 1 follows the epoch e that ended at y."""
        now = self.reduce(self.losses(y))
        improvement = self.previous - now  # l_{e-1} - l_e
        self.previous = now
        return bool(improvement >= self.gamma / e)


def sgd_fit(w, batches, gradient, lr, momentum=0.0, weight_decay=0.0, clip_norm=None, correct=None, stop=None,
            pull=None, moves=None):  # fmt: skip
    """Local SGD from `w`; `gradient(y, x, labels) -> (g, loss)`. Returns Fit(y, steps K, epochs, mean training loss).

    Per minibatch:  g <- clip(grad f(y)) ;  g <- correct(g, y) ;  g <- g + wd y ;  b <- rho b + g ;  y <- y - lr b
    with b = 0 at the start of every round. `pull(y)`, where it is given, counts beside b in that step; `moves(epoch)`
    says which numbers of y and b its steps move. The mean is over steps, of the minibatch's task loss before each.
    """
    y = np.array(w, dtype=np.float64)
    b = np.zeros_like(y)
    seen, epochs = [], 0
    if stop is not None:
        stop.start(y)
    for e, epoch in enumerate(batches, start=1):
        for x, labels in epoch:
            g, loss = gradient(y, x, labels)
            seen.append(loss)
            g = clip(g, clip_norm)
            if correct is not None:
                g = correct(g, y)
            g = g + weight_decay * y
            moved = np.ones(len(y), dtype=bool) if moves is None else moves(e)
            b = np.where(moved, momentum * b + g, b)
            y = np.where(moved, y - lr * (b if pull is None else b + pull(y)), y)
        epochs = e
        if stop is not None and not stop.go_on(e, y):
            break
    return Fit(y, len(seen), epochs, float(np.mean(seen)))


def train(x, device, h, correct=None, pull=None, moves=None, gradient=None):
    """The device's local work from the server model x, under the settings h."""

    def plain(y, inputs, labels):
        return problem.mean_gradient(y, inputs, labels, h["classes"])

    def losses(y):
        return problem.example_losses(y, *device["valid"], h["classes"])

    stop = None if h["gamma"] is None else EarlyStop(h["gamma"], losses, h["first_epoch"], h["valid_loss"])
    return sgd_fit(x, device["batches"], gradient or plain, h["lr"], h["momentum"], h["weight_decay"], h["clip_norm"],
                   correct, stop, pull, moves)  # fmt: skip


def weights(cohort, weighting):
    """p_c = 1 / |S| ('uniform') or n_c / sum_S n_c ('examples')."""
    n = np.array([{"uniform": 1, "examples": device["size"]}[weighting] for device in cohort], dtype=np.float64)
    return n / n.sum()


def mean_update(x, cohort, fits, weighting):
    """Delta = sum_{c in S} p_c (y_c - x)."""
    return sum(p * (fit.y - x) for p, fit in zip(weights(cohort, weighting), fits, strict=True))
