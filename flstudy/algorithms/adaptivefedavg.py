"""Adaptive-FedAvg (Canonaco et al. 2021, Alg. 1): the devices' learning rate follows the variance of the global model.

With x_t the global model after round t, and hats for bias correction (μ̂_t = μ_t / (1 - β₁^t), and so on):

    μ_t = β₁ μ + (1 - β₁) x_t;   s_t = β₂ s + (1 - β₂) mean_j (x_t - μ̂_{t-1})_j²;   r_t = ŝ_t / ŝ_{t-1}  (1 where ŝ = 0)
    γ_t = β₃ γ + (1 - β₃) r_t;   η_{t+1} = min(η_ℓ, η_ℓ γ̂_t / t)

    server: x ← x + η_g Σ_c p_c Δ_c;   devices train with η_{t+1}, which is sent with the model

Laws: round 1 is FedAvg's; the devices' rate never exceeds η_ℓ.
Differs: t counts rounds, the FedDrift authors' code also steps of several rounds. The 1/t makes the rate vanish between
drifts, as published; `floor` keeps a share of it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.rules import clip
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Local, Round, State
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    mu: Tensor  # [n] μ
    s: Tensor  # []
    gamma: Tensor  # [] γ
    scale: Tensor  # [] η_{t+1} / η_ℓ


class Message(NamedTuple):
    x: Tensor  # [n]
    scale: Tensor  # []


@dataclass(frozen=True, kw_only=True)
class AdaptiveFedAvg(Algorithm):
    """Adaptive-FedAvg (Canonaco et al. 2021): FedAvg whose local learning rate follows the global model's variance."""

    citations: ClassVar[tuple[str, ...]] = ("canonaco2021",)
    measures: ClassVar[tuple[str, ...]] = (*Algorithm.measures, "server/lr_scale")

    beta1: float = hyper(0.5, "[0, 1)")
    """β₁, decay of the model's mean."""
    beta2: float = hyper(0.5, "[0, 1)")
    """β₂, decay of the model's variance."""
    beta3: float = hyper(0.5, "[0, 1)")
    """β₃, decay of the variance's growth."""
    floor: float = hyper(0.0, "[0, 1]")
    """Smallest share of η_ℓ that devices train with; the paper has none."""

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        nothing = x.new_zeros(())
        return Server(x, torch.zeros_like(x), nothing, nothing, nothing + 1)

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.scale)

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        g, loss = grad(local.y, batch)
        step, rule = self.device_rule().update(clip(g, self.clip_norm), local.rule, local.y)
        return Local(local.y - msg.scale * step, rule, local.steps + 1), loss

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        x, t = server.x + self.server_lr * inbox.mean().delta, round.number
        before = torch.clamp(t - 1, min=1)  # where t = 1 both means are still 0, whatever they are divided by
        mu_hat, s_hat = server.mu / (1 - self.beta1**before), server.s / (1 - self.beta2**before)
        mu = self.beta1 * server.mu + (1 - self.beta1) * x
        s = self.beta2 * server.s + (1 - self.beta2) * ((x - mu_hat) ** 2).mean()
        positive = s_hat > 0
        ratio = torch.where(positive, s / (1 - self.beta2**t) / torch.where(positive, s_hat, 1.0), 1.0)
        gamma = self.beta3 * server.gamma + (1 - self.beta3) * ratio
        scale = (gamma / (1 - self.beta3**t) / t).clamp(min=self.floor, max=1.0)
        return Server(x, mu, s, gamma, scale)

    def diagnostics(self, before: Server, after: Server, inbox: Inbox) -> dict[str, Tensor]:
        return {**super().diagnostics(before, after, inbox), "lr_scale": after.scale}
