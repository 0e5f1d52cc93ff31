"""FedAvg (McMahan et al. 2017, Alg. 1), with a server learning rate as in Reddi et al. 2021.

    y ← x;   y ← y - η_ℓ ∇f_c(y)   K times;   Δ_c = y - x
    x ← x + η_g Σ_c p_c Δ_c                       p_c = n_c / Σ n_c

Laws: η_g = 1 is the mean of the local models.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Layout, Round


class Server(NamedTuple):
    x: Tensor  # [n]


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """FedAvg (McMahan et al. 2017): federated averaging of models that devices train by SGD."""

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017",)

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        return Server(server.x + self.server_lr * inbox.mean().delta)
