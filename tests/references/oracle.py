"""ORACLE: Panchal et al. 2023, sec. 5.1: 'simultaneously trains two global models, each based on the pre- and
post-drift distributions'; FedYogi (Reddi et al. 2021, Alg. 2) for each concept k, with devices that know the concepts.

    ahead:      every participant trains x_k on its data under concept k, for every k
    not ahead:  every participant trains x_k on its data, k being the concept under which it lives in this round
    server:     FedYogi's step for every k that somebody trained; the others keep all their state
A device of the cohort has `under`: for each concept k the same device with its labels as they are under k.
"""

import numpy as np

from . import fedyogi, local

OWN = {**fedyogi.OWN, "models": 2, "ahead": True}


def init(x, hyper=None):
    """State before round 1: FedYogi's, for every concept, all from the same x [n]."""
    h = {**OWN, **(hyper or {})}
    model_settings = {name: value for name, value in h.items() if name in fedyogi.OWN}
    return together([fedyogi.init(x, model_settings) for _ in range(h["models"])], [])


def together(states, fits):
    """The concepts' states as arrays [M, ...]; `t` is kept for each."""
    stacked = {name: np.stack([state[name] for state in states]) for name in ("x", "m", "v", "t")}
    return {**stacked, "stats": fits}


def round(state, cohort, hyper):
    """One round: FedYogi's with every concept's jobs apart."""
    h = local.settings(hyper, **OWN)
    yogi = {name: value for name, value in h.items() if name not in ("models", "ahead")}
    states, fits = [], []
    for k in range(h["models"]):
        mine = {name: state[name][k] for name in ("x", "m", "v", "t")}
        jobs = [device["under"][k] for device in cohort if h["ahead"] or device["concept"] == k]
        if jobs:
            mine = fedyogi.round(mine, jobs, yogi)
            fits += mine["stats"]
        states.append(mine)
    return together(states, fits)
