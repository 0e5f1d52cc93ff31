"""FedOMD, federated online mirror descent, as in Master-FL (Ganguly & Aggarwal 2024, eq. 25-27; Mitra et al. 2021).

    ∇φ(y) ← ∇φ(y) - η_t ∇F_c(y),  y = x at first        ⇔  y ← argmin_z ⟨∇F_c(y), z⟩ + B_φ(z; y) / η_t
    x ← x + η_g Σ_c p_c (y_c - x)                       the mean of models, not of their duals
    η_t = η_ℓ s, or η_ℓ s / √t                          s = 1, or what a controller sets for this server

The paper's round is one step on all of a device's data: ``epochs: 1`` and a ``batch_size`` of at least that.

Laws: with φ = ½ ‖x‖² and a constant η it is FedAvg; hypentropy with η/b tends to that as b → ∞, p-norms do as p → 2.
Differs: the φ of the paper's experiments is not published. Several steps are several steps of mirror descent, not the
local processing of Mitra et al.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.rules import clip
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Local, Round, State
from flstudy.hyper import hyper

NEWTON = 40  # steps to β of `eg`; from above they fall monotonically, the last of them quadratically


class Mirror(NamedTuple):
    """φ by its gradient and the gradient of its conjugate: ``primal(dual(x))`` is x."""

    dual: Callable[[Tensor], Tensor]  # ∇φ, of x [n]
    primal: Callable[[Tensor], Tensor]  # ∇φ* = (∇φ)⁻¹, of θ [n]


def euclidean() -> Mirror:
    """φ = ½ ‖x‖₂²: gradient descent."""
    return Mirror(lambda x: x, lambda theta: theta)


def hypentropy(b: Any) -> Mirror:
    """φ = Σ x asinh(x/b) - √(x² + b²) (Ghai et al. 2020): unnormalised EG± whose products of weights are b²/4.

    With η/b in place of η it tends to gradient descent as b → ∞.
    """
    return Mirror(lambda x: torch.asinh(x / b), lambda theta: b * torch.sinh(theta))


def pnorm(p: Any) -> Mirror:
    """φ = ½ ‖x‖_p², 1 < p ≤ 2, whose conjugate is ½ ‖θ‖_q², q = p / (p - 1)."""

    def link(x: Tensor, power: Any) -> Tensor:
        """∇ ½ ‖x‖²: sign(x) |x / ‖x‖|^(power - 1) ‖x‖; 0 at 0."""
        size = x.abs()
        most = size.max().clamp(min=torch.finfo(x.dtype).tiny)
        norm = most * ((size / most) ** power).sum() ** (1 / power)
        norm = norm.clamp(min=torch.finfo(x.dtype).tiny)
        linked: Tensor = x.sign() * (size / norm) ** (power - 1) * norm
        return linked

    return Mirror(lambda x: link(x, p), lambda theta: link(theta, p / (p - 1)))


def eg(radius: Any) -> Mirror:
    """EG± (Kivinen & Warmuth 1997) in {‖x‖₁ < R}: x = w⁺ - w⁻ of weights that add up to R.

    EG± from equal weights keeps all products w⁺_i w⁻_i equal, to β²/4 say, and thus is mirror descent with φ* =
    R log Σ cosh θ: θ = asinh(x/β), where β is the root of Σ √(x² + β²) = R.
    """

    def dual(x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).eps * radius / x.numel()
        beta = x.new_ones(()) * radius / x.numel()  # the root is at most that, and the sum is convex in β
        for _ in range(NEWTON):
            root = torch.sqrt(x**2 + beta**2)
            beta = (beta - (root.sum() - radius) / (beta / root).sum()).clamp(min=tiny)
        return torch.asinh(x / beta)

    def primal(theta: Tensor) -> Tensor:
        plus, minus = torch.softmax(torch.cat([theta, -theta]), 0).chunk(2)
        x: Tensor = radius * (plus - minus)
        return x

    return Mirror(dual, primal)


class Server(NamedTuple):
    x: Tensor  # [n]
    t: Tensor  # [] rounds done
    pace: Tensor  # [] s


class Message(NamedTuple):
    x: Tensor  # [n]
    pace: Tensor  # [] η_t / η_ℓ


@dataclass(frozen=True, kw_only=True)
class FedOmd(Algorithm):
    """FedOMD (Ganguly & Aggarwal 2024; Mitra et al. 2021): devices take online mirror descent; models are averaged."""

    citations: ClassVar[tuple[str, ...]] = ("mitra2021", "ganguly2024")
    measures: ClassVar[tuple[str, ...]] = (*Algorithm.measures, "server/lr_scale")

    mirror: Literal["euclidean", "hypentropy", "pnorm", "eg"] = "hypentropy"
    """φ: ½ ‖x‖₂², the hypentropy, ½ ‖x‖_p², or that of EG±. The hypentropy is like gradient descent with η b where |x|
    ≪ b, multiplicative where |x| ≫ b. EG± stays within an L1 ball, into which a larger first model is scaled."""
    b: float = hyper(1.0, "(0, 1e12]")
    """b of ``hypentropy``, in the model's units."""
    p: float = hyper(1.5, "(1, 2]")
    """p of ``pnorm``."""
    radius: float = hyper(100.0, "(0, 1e12]")
    """R of ``eg``: the model's L1 norm stays below it."""
    decay: Literal["constant", "sqrt"] = "constant"
    """η_t constant, or divided by √t (Theorem 2), t being the rounds that this server has seen."""

    def map(self) -> Mirror:
        """Return the mirror map φ."""
        if self.mirror == "euclidean":
            return euclidean()
        if self.mirror == "hypentropy":
            return hypentropy(self.b)
        return pnorm(self.p) if self.mirror == "pnorm" else eg(self.radius)

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
