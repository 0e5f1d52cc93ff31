"""APFL (Deng et al. 2020, Alg. 1): adaptive personalised federated learning.

    v̄ = α v + (1 - α) w
    device: w ← w - η_ℓ ∇f_i(w);   v ← v - η_ℓ α ∇f_i(v̄)   on the same minibatches, v̄ of before the step
            adaptive: α ← α - η_ℓ ⟨v - w, ∇f_i(v̄)⟩, clipped to [0, 1], in the first step of a round
            keep v and α, send Δ = w - x
    server: FedAvg's

Laws: the global model is FedAvg's; α = 1 trains v alone; its traffic is FedAvg's.
Differs: devices keep the mixture v̄ of their last weights w as their personal model, as the paper deploys it. The
authors' code mixes outputs instead of weights, takes the step of v after that of w, and draws an adaptive α to 0 by
.02 α.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import clip
from flstudy.algorithms.parts.signatures import Batch, Gradient, Layout, State, Upload
from flstudy.hyper import hyper


class Client(NamedTuple):
    v: Tensor  # [n] personal model
    alpha: Tensor  # [] α
    mixed: Tensor  # [n] v̄ at the end of the last visit


class Local(NamedTuple):
    y: Tensor  # [n] w
    rule: State
    steps: Tensor  # []
    v: Tensor  # [n]
    personal_rule: State
    alpha: Tensor  # []


@dataclass(frozen=True, kw_only=True)
class Apfl(FedAvg):
    """APFL (Deng et al. 2020): each device trains a personal model and uses its mixture with the global one."""

    citations: ClassVar[tuple[str, ...]] = ("deng2020",)

    personalized: ClassVar[bool] = True

    alpha: float = hyper(0.25, "[0, 1]")
    """α, share of the personal model; FLASH uses .25, and .5 for Shakespeare and Synthetic."""
    adaptive: bool = False
    """Let every device adapt its α by a gradient step per round."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the server's mean; the paper's is uniform."""

    def client_init(self, x: Tensor) -> Client:
        return Client(x, x.new_zeros(()) + self.alpha, x)

    def local_start(self, msg: Any, client: Any, layout: Layout) -> Any:
        rule = self.device_rule()
        states = rule.init(msg.x, layout), rule.init(client.v, layout)
        return Local(msg.x, states[0], msg.x.new_zeros(()), client.v, states[1], client.alpha)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        g, loss = grad(local.y, batch)
        step, rule = self.device_rule().update(clip(g, self.clip_norm), local.rule, local.y)
        alpha = local.alpha
        mixed, _ = grad(alpha * local.v + (1 - alpha) * local.y, batch)
        mixed = clip(mixed, self.clip_norm)
        personal, state = self.device_rule().update(alpha * mixed, local.personal_rule, local.v)
        if self.adaptive:
            moved = (alpha - self.lr * torch.dot(local.v - local.y, mixed)).clamp(0, 1)
            alpha = torch.where(local.steps == 0, moved, alpha)
        return Local(local.y - step, rule, local.steps + 1, local.v - personal, state, alpha), loss

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Upload, Client]:
        mixed = local.alpha * local.v + (1 - local.alpha) * local.y
        return Upload(local.y - msg.x), Client(local.v, local.alpha, mixed)

    def local_model(self, local: Any, client: Any) -> Tensor:
        return client.mixed  # type: ignore[no-any-return]

    def deployed(self, server: Any, client: Any) -> Tensor:
        return client.mixed  # type: ignore[no-any-return]
