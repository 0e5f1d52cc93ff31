"""FedProx: Li et al. 2020, eq. (2): device k minimises h_k(w; w^t) = F_k(w) + (mu / 2) ||w - w^t||_2^2.

The gradient is grad F_k(w) + mu (w - w^t) over all parameters; the server averages as FedAvg does.
"""

from . import fedavg, local

OWN = {"mu": 0.0, **fedavg.OWN}

init = fedavg.init


def round(state, cohort, hyper):
    """One round: the proximal local objective on every device, then FedAvg's mean."""
    h = local.settings(hyper, **OWN)
    x = state["x"]  # w^t

    def correct(g, y):
        return g + h["mu"] * (y - x)  # grad h_k(y; w^t) = grad F_k(y) + mu (y - w^t)

    fits = [local.train(x, device, h, correct) for device in cohort]
    delta = local.mean_update(x, cohort, fits, h["weighting"])
    return {**state, "x": x + h["server_lr"] * delta, "t": state["t"] + 1, "stats": fits}
