"""SCAFFOLD (Karimireddy et al. 2020, Alg. 1).

    device: y ← y - η_ℓ (∇f_i(y) + c - c_i)   K times
            c_i⁺ = ∇f_i(x)                         option I
            c_i⁺ = c_i - c + (x - y) / (K η_ℓ)     option II
            send Δy = y - x, Δc = c_i⁺ - c_i
    server: x ← x + η_g mean_S Δy;   c ← c + (1/N) Σ_S Δc

Laws: round 1 is FedAvg with uniform weights; under full participation c is the mean of the c_i.
Differs: N is the number of devices ever known, since devices may come and go. Momentum on the devices biases
(x - y)/(K η_ℓ) by about 1/(1 - ρ) and is refused; weight decay counts as part of f_i. Option I takes ∇f_i(x) along the
round's minibatches, a second gradient in every step: it is that of all examples where devices work for whole epochs.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Round, State
from flstudy.user_error import UserError


class Server(NamedTuple):
    x: Tensor  # [n]
    c: Tensor  # [n] control variate


class Client(NamedTuple):
    c: Tensor  # [n] c_i


class Message(NamedTuple):
    x: Tensor  # [n]
    c: Tensor  # [n]


class AlsoAtStart(NamedTuple):
    """A device while it trains, and its gradient at the received model."""

    y: Tensor  # [n]
    rule: State
    steps: Tensor  # []
    g: Tensor  # [n] sum of ∇f_i(x; ζ) over examples
    examples: Tensor  # [] in that sum


class Upload(NamedTuple):
    delta: Tensor  # [n] Δy
    c: Tensor  # [n] Δc


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of devices towards their own optima."""

    citations: ClassVar[tuple[str, ...]] = ("karimireddy2020",)
    means: ClassVar[tuple[str, ...]] = ("c",)

    steps_by_sgd: ClassVar[str] = "its control variates divide what a device did by K η"

    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the mean of Δy; the paper's is uniform."""
    option: Literal["I", "II"] = "II"
    """c_i⁺: the device's gradient at x (I, another gradient in every step), or what its steps came to (II)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not off(self.momentum):
            raise UserError(
                f"Scaffold: momentum must be 0, got {self.momentum}: it biases the control variates (option II)"
            )

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x, torch.zeros_like(x))

    def client_init(self, x: Tensor) -> Client:
        return Client(torch.zeros_like(x))

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.c)

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return g + msg.c - client.c  # type: ignore[no-any-return]

    def local_start(self, msg: Any, client: State, layout: Layout) -> Any:
        start = super().local_start(msg, client, layout)
        return start if self.option == "II" else AlsoAtStart(*start, torch.zeros_like(msg.x), msg.x.new_zeros(()))

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Any, Tensor]:
        stepped, loss = super().local_step(local, batch, grad, msg, client)
        if self.option == "II":
            return stepped, loss
        at_x, _ = grad(msg.x, batch)
        count = batch.examples(msg.x)
        return AlsoAtStart(*stepped, local.g + count * at_x, local.examples + count), loss

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Upload, Client]:
        if self.option == "I":
            c = local.g / local.examples.clamp(min=1) + self.weight_decay * msg.x
        else:
            c = client.c - msg.c + (msg.x - local.y) / (local.steps * self.lr)
        return Upload(local.y - msg.x, c - client.c), Client(c)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        x = server.x + self.server_lr * inbox.mean().delta
        return Server(x, server.c + inbox.sum().c / round.num_devices)
