"""FedNova (Wang et al. 2020, eq. 9 and 10): normalised averaging, for devices that take different numbers of steps.

    device: K_c steps  b ← ρ b + ∇f_c(y);  y ← y - η_ℓ (b + μ (y - x))         Δ_c = y - x
            u ← ρ u + 1;  a ← (1 - η_ℓ μ) a + u                                  a_c = ‖a‖₁, sec. 4
            send Δ_c / a_c and a_c
    server: x ← x + η_g v,   v ← β v + τ Σ_c p_c Δ_c / a_c,   v = 0 at first
            τ = Σ_c p_c a_c  (μ > 0: Σ_c p_c K_c, as in the authors' code)

so that plain SGD has a_c = K_c, momentum [K_c - ρ (1 - ρ^K_c) / (1 - ρ)] / (1 - ρ), and the proximal solver
[1 - (1 - η_ℓ μ)^K_c] / (η_ℓ μ).

Laws: devices with equal K and ρ make it FedAvg.
Differs: p_c counts participants only, the authors' code all workers. β is that code's ``gmf``, and 0 in the paper. With
ρ and μ, a is what these steps come to; the authors' code counts both solvers' terms, and lets the proximal one into the
momentum.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Layout, Round, State
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    v: Any  # [n] momentum, or () without


class Upload(NamedTuple):
    direction: Tensor  # [n] Δ_c / a_c
    tau: Tensor  # [] what the device adds to τ


class Normalised(NamedTuple):
    """A device's model and optimizer while it trains, and how much its gradients have counted."""

    y: Tensor  # [n]
    rule: State
    steps: Tensor  # [] K so far
    u: Tensor  # [] of the last gradient's step
    a: Tensor  # [] ‖a‖₁ so far


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedNova (Wang et al. 2020): normalised averaging of updates, for devices with different numbers of steps."""

    citations: ClassVar[tuple[str, ...]] = ("wang2020",)

    steps_by_sgd: ClassVar[str] = "its normalisation counts what K steps of SGD with momentum do"

    proximal: float = hyper(0.0, "[0, 1e12]")
    """μ, strength of the devices' proximal term."""
    beta: float = hyper(0.0, "[0, 1)")
    """β, momentum of the server."""

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        return Server(x, () if off(self.beta) else torch.zeros_like(x))

    def local_start(self, msg: Any, client: State, layout: Layout) -> Any:
        zero = msg.x.new_zeros(())
        return Normalised(*super().local_start(msg, client, layout), zero, zero)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Any, Tensor]:
        after, loss = super().local_step(local, batch, grad, msg, client)
        pull, u = self.lr * self.proximal, self.momentum * local.u + 1
        y = after.y if off(self.proximal) else after.y - pull * (local.y - msg.x)
        return Normalised(y, after.rule, after.steps, u, (1 - pull) * local.a + u), loss

    def local_end(self, local: Any, msg: Any, client: State) -> tuple[Any, State]:
        return Upload((local.y - msg.x) / local.a, local.a if off(self.proximal) else local.steps), client

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        mean = inbox.mean()
        step = mean.tau * mean.direction
        if off(self.beta):
            return Server(server.x + self.server_lr * step, ())
        v = self.beta * server.v + step
        return Server(server.x + self.server_lr * v, v)
