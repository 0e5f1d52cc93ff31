"""FedAdam: Reddi et al. 2021, Alg. 2 (the FEDADAM branch): v <- b2 v + (1 - b2) Delta^2."""

from . import adaptive_server

OWN = adaptive_server.OWN


def second_moment(v, delta, h):
    """v_t = b2 v_{t-1} + (1 - b2) Delta_t^2 (FEDADAM)."""
    return h["beta2"] * v + (1 - h["beta2"]) * delta**2


init, step, round = adaptive_server.branch(OWN, second_moment)
