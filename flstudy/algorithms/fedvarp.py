"""FedVARP (Jhunjhunwala et al. 2022, Alg. 1): the noise of who takes part is taken out by devices' last updates.

    device: y ← y - η_ℓ ∇f_i(y)   K times;   g_i⁺ = y - x;   send g_i⁺ - g_i
    server: v = g + (1/|S|) Σ_S (g_i⁺ - g_i);   x ← x + η_g v;   g ← g + (1/N) Σ_S (g_i⁺ - g_i)

Laws: under full participation it is FedAvg with uniform weights; g is the mean of the g_i.
Differs: the paper's server keeps the g_i (its y_i), here each device its own. N is the number of devices ever known.
"""

from dataclasses import dataclass
from typing import ClassVar

from flstudy.algorithms.mifa import Mifa, Server
from flstudy.algorithms.parts.signatures import Inbox, Round


@dataclass(frozen=True, kw_only=True)
class FedVarp(Mifa):
    """FedVARP (Jhunjhunwala et al. 2022): updates are corrected by the devices' last ones, as in SAGA."""

    citations: ClassVar[tuple[str, ...]] = ("jhunjhunwala2022",)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        v = server.g + inbox.mean().change
        return Server(server.x + self.server_lr * v, server.g + inbox.sum().change / round.num_devices)
