"""MOON (Li et al. 2021, Alg. 1): model-contrastive federated learning.

    z = R_y(u), what the task's ``features`` say of an input u; z_g = R_x(u) and z_p = R_v(u) of the received model x
    and of v, the model that the device ended its last participation with
    device: minimise f_i(y) + μ mean_u ℓ(u),  ℓ = -log [e^(cos(z, z_g)/τ) / (e^(cos(z, z_g)/τ) + e^(cos(z, z_p)/τ))]
            keep v = y, send Δ = y - x
    server: FedAvg's

Laws: μ = 0 is FedAvg, as is a device's first participation; its traffic is FedAvg's.
Differs: the term is skipped at the first participation, where the authors' code takes an initial model of the device's
own for v, and others take x. With a ``buffer`` of several v the denominator sums over them, as in the authors' code.
z is a forward pass of its own, whose dropout masks are not those of f_i. A task without a projection head is compared
by what its classifier is given, logistic regression by its logits.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Batch, Local, Loss, Upload
from flstudy.hyper import hyper


class Client(NamedTuple):
    v: Tensor  # [buffer, n] models of the last participations, the newest first
    participations: Tensor  # [] how many of them there are


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """MOON (Li et al. 2021): contrastive loss between local, global and previous representations."""

    citations: ClassVar[tuple[str, ...]] = ("li2021moon",)

    needs: ClassVar[tuple[str, ...]] = ("features",)

    mu: float = hyper(1.0, "[0, 1e12]")
    """μ, weight of the contrastive term; the paper's grid is {.1, 1, 5, 10}, its best for CIFAR-10 5."""
    tau: float = hyper(0.5, "(0, 1e12]")
    """τ, temperature; the paper's .5, of {.1, .5, 1}."""
    buffer: int = hyper(1, "[1, 1e3]")
    """Last models of a device that it is compared with; each is one more forward pass, and n numbers of its row."""

    def client_init(self, x: Tensor) -> Client:
        return Client(x.new_zeros((self.buffer, *x.shape)), x.new_zeros(()))

    def loss(self, task: Loss, y: Any, batch: Batch, msg: Any, client: Any) -> Tensor:
        loss = task(y, batch)
        if off(self.mu):
            return loss
        z = task.features(y, batch.x)
        others = [task.features(model, batch.x, fixed=True) for model in (msg.x, *client.v.unbind(0))]
        alike = torch.stack([F.cosine_similarity(z, other, -1) for other in others], -1) / self.tau  # [B, 1 + buffer]
        present = torch.arange(len(others), device=z.device) <= client.participations
        apart = -alike.masked_fill(~present, -torch.inf).log_softmax(-1)[..., 0]  # 0 where there is no v
        return loss + self.mu * batch.mean(apart)

    def local_end(self, local: Local, msg: Any, client: Any) -> tuple[Upload, Client]:
        v = torch.cat([local.y[None], client.v[:-1]])
        return Upload(local.y - msg.x), Client(v, (client.participations + 1).clamp(max=self.buffer))
