"""LG-FedAvg: Liang et al. 2020, Alg. 1: local l_i and global theta are trained together, theta is averaged."""

from . import fedper

OWN = fedper.OWN

init, round = fedper.init, fedper.round
