"""FedDyn (Acar et al. 2021, Alg. 1), in the form of the authors' code: h_i is the running sum of y - x.

    device: minimise f_i(y) + α ⟨y, h_i - x⟩ + (α/2) ‖y‖²,  that is  g = ∇f_i(y) + α (y - x + h_i)
            h_i ← h_i + y - x;   send Δ = y - x
    server: h ← h + (1/N) Σ_S Δ;   x ← x + mean_S Δ + h

Laws: h is the mean of all h_i; a device's first round is FedProx's with μ = α; on quadratics it reaches the optimum.
Differs: N is the number of devices ever known; α is the same for all devices, the authors' code divides it by
n_i / mean n, and clips at 10 what is f_i's gradient and the linear term together; the paper's ∇_i is -α h_i. A server
learning rate other than 1 scales the step from x.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Layout, Local, Round, Upload
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    h: Tensor  # [n] mean over all devices of h_i


class Client(NamedTuple):
    h: Tensor  # [n] h_i


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """FedDyn (Acar et al. 2021): dynamic regularisation aligns the devices' optima with the federation's."""

    citations: ClassVar[tuple[str, ...]] = ("acar2021",)
    means: ClassVar[tuple[str, ...]] = ("h",)

    alpha: float = hyper(0.01, "(0, 1e12]")
    """α, strength of the regularisation; the paper's grid is {.1, .01, .001}."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the mean of Δ; the paper's is uniform."""

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Client:
        return Client(torch.zeros_like(x))

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return g + self.alpha * (y - msg.x + client.h)  # type: ignore[no-any-return]

    def local_end(self, local: Local, msg: Any, client: Any) -> tuple[Upload, Client]:
        delta = local.y - msg.x
        return Upload(delta), Client(client.h + delta)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        h = server.h + inbox.sum().delta / round.num_devices
        return Server(server.x + self.server_lr * (inbox.mean().delta + h), h)
