"""MimeLite (Karimireddy et al. 2020, Alg. 1; 2021): devices apply a server's optimizer whose statistics s stay fixed.

    server: send x and s
    device: send ∇f_i(x) over all of its training examples (the survey)
            y ← x;   K times   y ← y - η_ℓ U(g, s),  g = ∇f_i(y; ζ);   send Δ_i = y - x
    server: s ← V(mean_S ∇f_i(x), s);   x ← x + η_g mean_S Δ_i

    SGDm:     U = β₁ m + (1 - β₁) g                      V: m ← β₁ m + (1 - β₁) g
    AdaGrad:  U = g / (√v + ε)                           V: v ← v + g²
    Adam:     U = (β₁ m + (1 - β₁) g) / (√v + ε)         V: SGDm's m;   v ← β₂ v + (1 - β₂) g²

x and s travel down, ∇f_i(x) and Δ_i up: 4 n numbers, with Adam, whose s are two vectors, 5 n.

Laws: SGDm with β₁ = 0 is FedAvg with uniform weights.
Differs: √v divides in round 1 already, so v starts at ``v_init``; no bias is corrected. ∇f_i(x) is measured without
dropout. Weight decay counts as part of f_i. ``weighting: examples`` weighs Δ_i and ∇f_i(x) alike, as of f = Σ p_i f_i.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.rules import adagrad_moment, adam_moment, off, sgd
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Round, Rule, State
from flstudy.hyper import hyper
from flstudy.user_error import UserError


class Server(NamedTuple):
    x: Tensor  # [n]
    m: Any  # [n], or () under AdaGrad
    v: Any  # [n], or () under SGDm
    c: Tensor  # [n] mean gradient at x of this round's devices


class Message(NamedTuple):
    x: Tensor  # [n]
    m: Any  # [n]
    v: Any  # [n]
    c: Any = ()  # [n]


@dataclass(frozen=True, kw_only=True)
class MimeLite(Algorithm):
    """MimeLite (Karimireddy et al. 2020; 2021): devices apply the server's optimizer with its statistics kept fixed."""

    citations: ClassVar[tuple[str, ...]] = ("karimireddy2020mime", "karimireddy2021")

    base: Literal["sgdm", "adagrad", "adam"] = "sgdm"
    """The optimizer that is imitated."""
    beta1: float = hyper(0.9, "[0, 1)")
    """β₁ of SGDm and Adam."""
    beta2: float = hyper(0.99, "[0, 1)")
    """β₂ of Adam."""
    eps: float = hyper(1e-3, "(0, 1e12]")
    """ε of AdaGrad and Adam."""
    v_init: float = hyper(0.1, "[0, 1e12]")
    """v before the first round; the paper gives none. Small ones make round 1 long: its steps are g / (√v + ε)."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the means of Δ_i and ∇f_i(x); the paper's are uniform."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not off(self.momentum):
            raise UserError(
                f"{type(self).__name__}: momentum must be 0, got {self.momentum}: the devices' is the server's; set "
                "base: sgdm and beta1"
            )

    @property
    def asks(self) -> Literal["gradient"]:
        return "gradient"

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        zeros = torch.zeros_like(x)
        v = () if self.base == "sgdm" else torch.full_like(x, self.v_init)
        return Server(x, () if self.base == "adagrad" else zeros, v, zeros)

    def prepare(self, server: State, clients: State, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        c = survey[0, 0]  # of all
        c = c if off(self.weight_decay) else c + self.weight_decay * server.x
        return server._replace(c=c), clients, jobs.model

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.m, server.v)

    def device_rule(self) -> Rule:
        return sgd(self.lr)

    def first_moment(self, m: Any, g: Tensor) -> Tensor:
        """Return β₁ m + (1 - β₁) g [n], of AdaGrad g itself."""
        return g if self.base == "adagrad" else self.beta1 * m + (1 - self.beta1) * g

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: State) -> Tensor:
        """Return U(g, s) [n]."""
        g = g if off(self.weight_decay) else g + self.weight_decay * y
        d = self.first_moment(msg.m, g)
        return d if self.base == "sgdm" else d / (msg.v.sqrt() + self.eps)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        m, v, c = server.m, server.v, server.c
        if self.base != "adagrad":
            m = self.first_moment(m, c)
        if self.base != "sgdm":
            v = adagrad_moment(v, c) if self.base == "adagrad" else adam_moment(v, c, self.beta2)
        return Server(server.x + self.server_lr * inbox.mean().delta, m, v, c)
