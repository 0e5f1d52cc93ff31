"""FedDC (Gao et al. 2022, Alg. 1): local drift, decoupled and corrected.

    device: g = ∇f_i(y) + α (y - (x - h_i)) + c - c_i
            h_i ← h_i + y - x;   c_i⁺ = c_i - c - (y - x) / (K η_ℓ);   send Δ = y - x and c_i⁺ - c_i
    server: h ← h + (1/N) Σ_S Δ;   x ← x + mean_S Δ + h;   c ← c + (1/N) Σ_S (c_i⁺ - c_i)

Laws: h is the mean of all h_i, c of all c_i; its c_i and c are SCAFFOLD's, option II.
Differs: c_i follows the authors' code; the paper keeps the last update alone, c_i⁺ = -(y - x) / (K η_ℓ) here. N is the
number of devices ever known; α is the same for all devices and examples do not weigh, the authors' code scales both by
n_i / mean n, and clips at 10 what is f_i's gradient and the corrections together; K is the number of steps done.
Momentum on the devices biases (y - x)/(K η_ℓ) and is refused.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Local, Round
from flstudy.hyper import hyper
from flstudy.user_error import UserError


class Server(NamedTuple):
    x: Tensor  # [n]
    h: Tensor  # [n] mean over all devices of h_i
    c: Tensor  # [n] mean over all devices of c_i


class Client(NamedTuple):
    h: Tensor  # [n] h_i, drift of the device
    c: Tensor  # [n] c_i


class Message(NamedTuple):
    x: Tensor  # [n]
    c: Tensor  # [n]


class Upload(NamedTuple):
    delta: Tensor  # [n] Δ
    c: Tensor  # [n] c_i⁺ - c_i


@dataclass(frozen=True, kw_only=True)
class FedDC(Algorithm):
    """FedDC (Gao et al. 2022): drift variables and control variates decouple devices' models from the global one."""

    citations: ClassVar[tuple[str, ...]] = ("gao2022",)
    means: ClassVar[tuple[str, ...]] = ("h", "c")

    steps_by_sgd: ClassVar[str] = "its corrections divide what a device did by K η"

    alpha: float = hyper(0.01, "[0, 1e12]")
    """α, weight of the penalty; the paper's values are .005 to .1."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the mean of Δ; the paper's is uniform."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not off(self.momentum):
            raise UserError(f"FedDC: momentum must be 0, got {self.momentum}: it biases the gradients' correction")

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x), torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Client:
        return Client(torch.zeros_like(x), torch.zeros_like(x))

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.c)

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return g + self.alpha * (y - msg.x + client.h) + msg.c - client.c  # type: ignore[no-any-return]

    def local_end(self, local: Local, msg: Any, client: Any) -> tuple[Upload, Client]:
        delta = local.y - msg.x
        c = client.c - msg.c - delta / (local.steps * self.lr)
        return Upload(delta, c - client.c), Client(client.h + delta, c)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        total = inbox.sum()
        h = server.h + total.delta / round.num_devices
        return Server(server.x + self.server_lr * (inbox.mean().delta + h), h, server.c + total.c / round.num_devices)
