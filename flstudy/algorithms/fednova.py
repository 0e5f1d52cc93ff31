"""FedNova (Wang et al. 2020, eq. 9 and 10): normalised averaging, for devices that take different numbers of steps.

    device: K_c steps of SGD with momentum ρ;  Δ_c = y - x
            a_c = ‖a‖₁ = [K_c - ρ (1 - ρ^K_c) / (1 - ρ)] / (1 - ρ)      (ρ = 0: a_c = K_c)
            send Δ_c / a_c and a_c
    server: x ← x + η_g τ Σ_c p_c Δ_c / a_c,   τ = Σ_c p_c a_c

Laws: devices with equal K and ρ make it FedAvg.
Differs: p_c counts participants only, the authors' code all workers; no server momentum (their gmf).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg, Server
from flstudy.algorithms.parts.signatures import Inbox, Local, Round, State


class Upload(NamedTuple):
    direction: Tensor  # [n] Δ_c / a_c
    a: Tensor  # [] a_c


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """Averages directions instead of distances, so that who takes more steps does not pull harder."""

    citations: ClassVar[tuple[str, ...]] = ("wang2020",)

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Any, State]:
        rho, steps = self.momentum, local.steps
        a = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        return Upload((local.y - msg.x) / a, a), client

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        mean = inbox.mean()
        return Server(server.x + self.server_lr * mean.a * mean.direction)
