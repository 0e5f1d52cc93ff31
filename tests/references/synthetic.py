"""Synthetic(alpha, beta): Li et al. 2020 (FedProx), section 5.1; the Synthetic task of FLASH, appendix A (.5, .5).

For device k:   y = argmax softmax(W_k x + b_k),   W_k ~ N(u_k, 1), b_k ~ N(u_k, 1), u_k ~ N(0, alpha)
                x ~ N(v_k, Sigma), Sigma diagonal with Sigma_jj = j^-1.2 (j from 1)
                v_k,j ~ N(B_k, 1), B_k ~ N(0, beta)
Everything is a pure function of standard normals, so another implementation can be fed the same ones.
`spread` says how N(0, alpha) and N(0, beta) are read: 'std', as in the generator the authors released, or 'variance',
the usual meaning of the printed notation. The two agree at 0 and 1 only.
"""

import numpy as np


def scale(spread_value, spread):
    """The standard deviation behind N(0, spread_value)."""
    return {"std": spread_value, "variance": np.sqrt(spread_value)}[spread]


def sizes(z, mu=4.0, sigma=2.0, floor=50):
    """n_k = floor(exp(mu + sigma z_k)) + 50: lognormal(4, 2), and the 50 that the released generator adds."""
    return np.floor(np.exp(mu + sigma * np.asarray(z, dtype=np.float64))).astype(np.int64) + floor


def model(z_u, z_weight, z_bias, alpha, spread="std"):
    """W_k [classes, features] and b_k [classes]; the one scalar u_k is the mean of both."""
    u = scale(alpha, spread) * z_u  # u_k ~ N(0, alpha)
    return u + z_weight, u + z_bias  # W_k, b_k ~ N(u_k, 1)


def inputs(z_mean, z_v, z_x, beta, spread="std"):
    """x [n_k, features] from scalar z_mean, z_v [features] and z_x [n_k, features]."""
    b = scale(beta, spread) * z_mean  # B_k ~ N(0, beta)
    v = b + z_v  # v_k,j ~ N(B_k, 1)
    sigma = np.arange(1, len(z_v) + 1, dtype=np.float64) ** -1.2  # Sigma_jj = j^-1.2
    return v + np.sqrt(sigma) * z_x  # x ~ N(v_k, Sigma)


def device(z_u, z_weight, z_bias, z_mean, z_v, z_x, alpha, beta, spread="std"):
    """One device's (x, y). Softmax keeps the order of the logits, so its argmax is theirs."""
    weight, bias = model(z_u, z_weight, z_bias, alpha, spread)
    x = inputs(z_mean, z_v, z_x, beta, spread)
    return x, (x @ weight.T + bias).argmax(axis=1)  # y = argmax softmax(W x + b)
