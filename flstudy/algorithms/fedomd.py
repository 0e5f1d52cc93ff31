"""FedOMD, federated online mirror descent, as in Master-FL (Ganguly & Aggarwal 2024, eq. 25-27; Mitra et al. 2021).

    ∇φ(y) ← ∇φ(y) - η_t ∇F_c(y),  y = x at first        ⇔  y ← argmin_z ⟨∇F_c(y), z⟩ + B_φ(z; y) / η_t
    x ← x + η_g Σ_c p_c (y_c - x)                       the mean of models, not of their duals
    η_t = η_ℓ s, or η_ℓ s / √t                          s = 1, or what a controller sets for this server

The paper's round is one step on all of a device's data: ``epochs: 1`` and a ``batch_size`` of at least that.

Laws: with φ = ½ ‖x‖² and a constant η it is FedAvg; hypentropy with η/b tends to that as b → ∞, p-norms do as p → 2.
Differs: the φ of the paper's experiments is not published. Several steps are several steps of mirror descent, not the
local processing of Mitra et al.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts import mirrors
from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.rules import clip
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Local, Round, State
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    t: Tensor  # [] rounds done
    pace: Tensor  # [] s


class Message(NamedTuple):
    x: Tensor  # [n]
    pace: Tensor  # [] η_t / η_ℓ


@dataclass(frozen=True, kw_only=True)
class FedOmd(Algorithm):
    """Online mirror descent on the devices, averaged."""

    citations: ClassVar[tuple[str, ...]] = ("mitra2021", "ganguly2024")
    measures: ClassVar[tuple[str, ...]] = (*Algorithm.measures, "server/lr_scale")

    mirror: Literal["euclidean", "hypentropy", "pnorm", "eg"] = "hypentropy"
    """φ: ½ ‖x‖₂², the hypentropy (like gradient descent with η b where |x| ≪ b, multiplicative where |x| ≫ b),
    ½ ‖x‖_p², or that of EG± within an L1 ball, into which a larger first model is scaled."""
    b: float = hyper(1.0, "(0, inf)")
    """b of ``hypentropy``, in the model's units."""
    p: float = hyper(1.5, "(1, 2]")
    """p of ``pnorm``."""
    radius: float = hyper(100.0, "(0, inf)")
    """R of ``eg``: the model's L1 norm stays below it."""
    decay: Literal["constant", "sqrt"] = "constant"
    """η_t constant, or divided by √t (Theorem 2), t being the rounds that this server has seen."""

    def map(self) -> mirrors.Mirror:
        """φ."""
        if self.mirror == "euclidean":
            return mirrors.euclidean()
        if self.mirror == "hypentropy":
            return mirrors.hypentropy(self.b)
        return mirrors.pnorm(self.p) if self.mirror == "pnorm" else mirrors.eg(self.radius)

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        if self.mirror == "eg":  # half-way to the edge: on it no weight would be left to move
            norm = x.abs().sum()
            x = torch.where(norm < self.radius, x, x * self.radius / (2 * norm))
        return Server(x, x.new_zeros(()), x.new_ones(()))

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.pace if self.decay == "constant" else server.pace / (server.t + 1).sqrt())

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        g, loss = grad(local.y, batch)
        step, rule = self.device_rule().update(clip(g, self.clip_norm), local.rule, local.y)
        phi = self.map()
        return Local(phi.primal(phi.dual(local.y) - msg.pace * step), rule, local.steps + 1), loss

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        return server._replace(x=server.x + self.server_lr * inbox.mean().delta, t=server.t + 1)

    def diagnostics(self, before: Server, after: Server, inbox: Inbox) -> dict[str, Tensor]:
        return {**super().diagnostics(before, after, inbox), "lr_scale": self.broadcast(before, None).pace}  # type: ignore
