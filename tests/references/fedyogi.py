"""FedYogi: Reddi et al. 2021, Alg. 2 (the FEDYOGI branch): v <- v - (1 - b2) Delta^2 sign(v - Delta^2).

v cannot become negative: it only shrinks where v > Delta^2, and then by less than v.
"""

import numpy as np

from . import adaptive_server

OWN = adaptive_server.OWN


def second_moment(v, delta, h):
    """v_t = v_{t-1} - (1 - b2) Delta_t^2 sign(v_{t-1} - Delta_t^2) (FEDYOGI), sign(0) = 0."""
    return v - (1 - h["beta2"]) * delta**2 * np.sign(v - delta**2)


init, step, round = adaptive_server.branch(OWN, second_moment)
