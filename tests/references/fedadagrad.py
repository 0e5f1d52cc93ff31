"""FedAdaGrad: Reddi et al. 2021, Alg. 2 (the FEDADAGRAD branch): v <- v + Delta^2."""

from . import adaptive_server

OWN = {"server_lr": 1.0, "beta1": 0.0, "tau": 1e-3, "v_init": "tau_sq", "weighting": "uniform"}


def second_moment(v, delta, h):
    """v_t = v_{t-1} + Delta_t^2 (FEDADAGRAD)."""
    return v + delta**2


init, step, round = adaptive_server.branch(OWN, second_moment)
