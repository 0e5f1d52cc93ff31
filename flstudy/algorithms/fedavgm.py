"""FedAvgM (Hsu et al. 2019, sec. 3): server momentum.

    v ← β v + Δ,  v = 0 at first          Δ = Σ_c p_c Δ_c
    x ← x + η_g v                          (Nesterov: x + η_g (Δ + β v))

Laws: β = 0 is FedAvg.
Differs: the paper writes gradients -Δ and subtracts.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Layout, Round
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    v: Tensor  # [n] momentum


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm):
    """FedAvgM (Hsu et al. 2019): FedAvg with momentum on the server."""

    citations: ClassVar[tuple[str, ...]] = ("hsu2019",)

    beta: float = hyper(0.9, "[0, 1)")
    """β, server momentum."""
    nesterov: bool = False
    """Step along Δ + β v instead of v."""

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x))

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        delta = inbox.mean().delta
        v = self.beta * server.v + delta
        return Server(server.x + self.server_lr * (delta + self.beta * v if self.nesterov else v), v)
