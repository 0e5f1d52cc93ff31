"""FedSAM: Qu et al. 2022, Alg. 1: the gradient at y + rho g / |g| of the same minibatch."""

import numpy as np

from . import fedavg, local, problem

OWN = {**fedavg.OWN, "rho": 0.05}

init = fedavg.init


def round(state, cohort, hyper):
    """One round."""
    h = local.settings(hyper, **OWN)
    x = state["x"]

    def gradient(y, inputs, labels):
        g, loss = problem.mean_gradient(y, inputs, labels, h["classes"])
        worst = y + h["rho"] * g / np.sqrt(np.sum(g**2)) if h["rho"] else y
        return problem.mean_gradient(worst, inputs, labels, h["classes"])[0], loss

    fits = [local.train(x, device, h, gradient=gradient) for device in cohort]
    delta = local.mean_update(x, cohort, fits, h["weighting"])
    return {"x": x + h["server_lr"] * delta, "t": state["t"] + 1, "stats": fits}
