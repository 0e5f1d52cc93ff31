"""MIFA (Gu et al. 2021, Alg. 1 and 2): absent devices are stood in for by their last updates.

    device: y ← y - η_ℓ ∇f_i(y)   K times;   g_i⁺ = y - x;   send g_i⁺ - g_i
    server: g ← g + (1/N) Σ_S (g_i⁺ - g_i);   x ← x + η_g g

Laws: under full participation it is FedAvg with uniform weights; g is the mean of the g_i.
Differs: the paper divides g_i by a rate that falls over rounds and multiplies by the present one; here rates are
constant. It has all devices take part in round 1; here g_i = 0 until a device's first round. N is the number of devices
ever known.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Layout, Local, Round


class Server(NamedTuple):
    x: Tensor  # [n]
    g: Tensor  # [n] mean of all devices' last updates


class Client(NamedTuple):
    g: Tensor  # [n] g_i


class Upload(NamedTuple):
    change: Tensor  # [n] g_i⁺ - g_i


@dataclass(frozen=True, kw_only=True)
class Mifa(Algorithm):
    """MIFA (Gu et al. 2021): the last updates of absent devices count beside those of the present."""

    citations: ClassVar[tuple[str, ...]] = ("gu2021",)
    means: ClassVar[tuple[str, ...]] = ("g",)

    weighting: Literal["examples", "uniform"] = field(default="uniform", init=False)  # means are over all devices

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Client:
        return Client(torch.zeros_like(x))

    def local_end(self, local: Local, msg: Any, client: Any) -> tuple[Upload, Client]:
        g = local.y - msg.x
        return Upload(g - client.g), Client(g)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        g = server.g + inbox.sum().change / round.num_devices
        return Server(server.x + self.server_lr * g, g)
