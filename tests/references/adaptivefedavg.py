"""Adaptive-FedAvg: Canonaco et al. 2021, Alg. 1, as re-implemented by FedDrift's authors; see the lines below."""

import numpy as np

from . import local

OWN = {"server_lr": 1.0, "beta1": 0.5, "beta2": 0.5, "beta3": 0.5, "floor": 0.0, "weighting": "examples"}


def init(x, hyper=None):
    """State before round 1."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "mu": np.zeros_like(x), "s": 0.0, "gamma": 0.0, "scale": 1.0, "t": 0, "stats": []}


def round(state, cohort, hyper):
    """One round: FedAvg with the devices' rate of the last round, then the rate of the next."""
    h = local.settings(hyper, **OWN)
    x, t = state["x"], state["t"] + 1
    fits = [local.train(x, device, {**h, "lr": h["lr"] * state["scale"]}) for device in cohort]
    mean = np.einsum("i,in->n", local.weights(cohort, h["weighting"]), [fit.y - x for fit in fits])
    theta = x + h["server_lr"] * mean
    mu_hat = state["mu"] / (1 - h["beta1"] ** (t - 1)) if t > 1 else 0.0  # muh_{t-1}, 0 at t = 1
    s_hat = state["s"] / (1 - h["beta2"] ** (t - 1)) if t > 1 else 0.0  # sh_{t-1}
    mu = h["beta1"] * state["mu"] + (1 - h["beta1"]) * theta
    s = h["beta2"] * state["s"] + (1 - h["beta2"]) * np.mean((theta - mu_hat) ** 2)
    ratio = (s / (1 - h["beta2"] ** t)) / s_hat if s_hat > 0 else 1.0
    gamma = h["beta3"] * state["gamma"] + (1 - h["beta3"]) * ratio
    eta = min(h["lr"], h["lr"] * (gamma / (1 - h["beta3"] ** t)) / t)  # eta_t = min(eta_0, eta_0 gamh_t / t)
    scale = max(h["floor"], eta / h["lr"])
    return {"x": theta, "mu": mu, "s": s, "gamma": gamma, "scale": scale, "t": t, "stats": fits}
