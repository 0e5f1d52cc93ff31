"""FedRep: Collins et al. 2021, Alg. 1: the head h_i is trained in the first epochs, the representation phi after it."""

import numpy as np

from . import fedper

OWN = {**fedper.OWN, "weighting": "uniform", "head_epochs": 1}

init = fedper.init


def round(state, cohort, hyper):
    """One round: h_i^t <- GRD of f_i(h_i, phi^t), then phi_i^t <- GRD of f_i(h_i^t, phi_i), then their mean."""
    head, head_epochs = np.array(hyper["kept"]), hyper["head_epochs"]
    return fedper.round(state, cohort, hyper, OWN, lambda epoch: head if epoch <= head_epochs else ~head)
