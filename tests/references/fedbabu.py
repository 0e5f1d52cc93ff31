"""FedBABU: Oh et al. 2022, Alg. 1: the head rests while the body is trained; it is tuned at the end."""

import numpy as np

from . import fedper

OWN = {**fedper.OWN, "head_from": None}

init = fedper.init


def round(state, cohort, hyper):
    """One round t = 1, 2, ...: the body's, and from `head_from` on the head's."""
    head, head_from = np.array(hyper["kept"]), hyper["head_from"]
    begun = head_from is not None and state["t"] + 1 >= head_from
    return fedper.round(state, cohort, hyper, OWN, lambda epoch: head if begun else ~head)
