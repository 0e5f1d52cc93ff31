"""FedACG (Kim et al. 2024, Alg. 1): accelerated client gradient, devices that start from a look-ahead of the server.

    server: send x̂ = x + λ m
    device: minimise f_i(y) + (β/2) ‖y - x̂‖²,  that is  g = ∇f_i(y) + β (y - x̂);   send Δ = y - x̂
    server: m ← λ m + mean_S Δ;   x ← x + m                    m = 0 at first

Laws: λ = β = 0 is FedAvg with uniform weights; x⁺ - x = m⁺; x⁺ is the mean of the local models; its traffic is
FedAvg's, one vector down and one up.
Differs: the authors' code multiplies ‖y - x̂‖² by .001 without the half, so that its β is .002 here. A server learning
rate, which the paper does not have, scales m in both lines: x̂ = x + η_g λ m, x ← x + η_g m.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Message, Round
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n] the model that is evaluated
    m: Tensor  # [n] momentum


@dataclass(frozen=True, kw_only=True)
class FedAcg(Algorithm):
    """FedACG (Kim et al. 2024): devices start from the server's look-ahead along its momentum, with a proximal term."""

    citations: ClassVar[tuple[str, ...]] = ("kim2024",)

    lam: float = hyper(0.85, "[0, 1)")
    """λ, server momentum."""
    beta: float = hyper(0.001, "[0, 1e12]")
    """β, strength of the proximal term; the paper's grid is {.001, .01, .1}."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the mean of Δ; the paper's is uniform."""

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x))

    def broadcast(self, server: Server, job: Job) -> Message:
        return Message(server.x + self.server_lr * self.lam * server.m)

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return g + self.beta * (y - msg.x)  # type: ignore[no-any-return]

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        m = self.lam * server.m + inbox.mean().delta
        return Server(server.x + self.server_lr * m, m)
