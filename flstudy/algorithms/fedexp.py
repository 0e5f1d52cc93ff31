"""FedExP (Jhunjhunwala et al. 2023, Alg. 1): the server's step is the longer the less the devices agree.

    device: FedAvg's;   send Δ_i and ‖Δ_i‖²
    server: η_g = max(1, Σ_i p_i ‖Δ_i‖² / (2 (‖Δ‖² + ε)))   Δ = Σ_i p_i Δ_i;   x ← x + η_g Δ

Laws: where all devices agree it is FedAvg.
Differs: the paper reports the mean of the last two models; here it is the last one. ``server_lr`` multiplies η_g.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg, Server
from flstudy.algorithms.parts.signatures import Inbox, Local, Round, State
from flstudy.hyper import hyper


class Upload(NamedTuple):
    delta: Tensor  # [n] Δ_i
    square: Tensor  # [] ‖Δ_i‖²


@dataclass(frozen=True, kw_only=True)
class FedExp(FedAvg):
    """FedExP (Jhunjhunwala et al. 2023): FedAvg with an extrapolated step of the server."""

    citations: ClassVar[tuple[str, ...]] = ("jhunjhunwala2023",)

    eps: float = hyper(1e-3, "[0, 1e12]")
    """ε, beside the squared length of the mean update; the paper chooses among 1e-3 to 1e-1."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the server's means; the paper's are uniform."""

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Any, State]:
        delta = local.y - msg.x
        return Upload(delta, delta.square().sum()), client

    def extrapolation(self, inbox: Inbox) -> Tensor:
        """Return η_g [] of a round, at least 1."""
        mean = inbox.mean()
        return torch.clamp(mean.square / (2 * (mean.delta.square().sum() + self.eps)), min=1.0)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        return Server(server.x + self.server_lr * self.extrapolation(inbox) * inbox.mean().delta)

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        rate = self.server_lr * self.extrapolation(inbox)
        return {**super().diagnostics(before, after, inbox), "effective_lr": rate}
