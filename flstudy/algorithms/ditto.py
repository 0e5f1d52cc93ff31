"""Ditto (Li et al. 2021, Alg. 1 and 2): FedAvg, and beside it a personal model per device that is held near it.

    device: y ← y - η_ℓ ∇f_i(y);   v_i ← v_i - η_p (∇f_i(v_i) + λ (v_i - x))   on the same minibatches
            keep v_i, send Δ = y - x
    server: FedAvg's

Laws: the global model is FedAvg's; λ = 0 trains v_i alone, whatever the others do; its traffic is FedAvg's.
Differs: x is the model received at the start of the round, as in the authors' code; v_i starts from the first one
received.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import clip, sgd
from flstudy.algorithms.parts.signatures import Batch, Gradient, Layout, Rule, State, Upload
from flstudy.hyper import hyper


class Client(NamedTuple):
    v: Tensor  # [n] v_i


class Local(NamedTuple):
    y: Tensor  # [n]
    rule: State
    steps: Tensor  # []
    v: Tensor  # [n]
    personal_rule: State


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Ditto (Li et al. 2021): FedAvg, and a personal model per device regularised towards the global one."""

    citations: ClassVar[tuple[str, ...]] = ("li2021ditto",)

    personalized: ClassVar[bool] = True

    lam: float = hyper(0.1, "[0, 1e12]")
    """λ, how strongly a personal model is held near the global one; the paper chooses among {.1, 1, 2}."""
    personal_lr: float | None = hyper(None, "(0, 1e12]")
    """η_p, learning rate of the personal models; null is the devices' η_ℓ."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the server's mean; the paper's is uniform."""

    def client_init(self, x: Tensor) -> Client:
        return Client(x)

    def personal_rule(self) -> Rule:
        """Return the personal model's optimizer."""
        return sgd(self.lr if self.personal_lr is None else self.personal_lr, self.momentum, self.weight_decay)

    def local_start(self, msg: Any, client: Any, layout: Layout) -> Any:
        rule, personal = self.device_rule().init(msg.x, layout), self.personal_rule().init(client.v, layout)
        return Local(msg.x, rule, msg.x.new_zeros(()), client.v, personal)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        g, loss = grad(local.y, batch)
        step, rule = self.device_rule().update(clip(g, self.clip_norm), local.rule, local.y)
        g, _ = grad(local.v, batch)
        g = clip(g, self.clip_norm) + self.lam * (local.v - msg.x)
        personal, state = self.personal_rule().update(g, local.personal_rule, local.v)
        return Local(local.y - step, rule, local.steps + 1, local.v - personal, state), loss

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Upload, Client]:
        return Upload(local.y - msg.x), Client(local.v)

    def local_model(self, local: Any, client: Any) -> Tensor:
        return client.v  # type: ignore[no-any-return]

    def deployed(self, server: Any, client: Any) -> Tensor:
        return client.v  # type: ignore[no-any-return]
