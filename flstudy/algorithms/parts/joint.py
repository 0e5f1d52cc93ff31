"""Joint adaptivity (FedAda², Lee et al. 2024): an adaptive server over adaptive devices; the common base of its arms.

    device: from y = x and fresh statistics, K steps of an adaptive optimizer (``adaptive``); send Δ_i = y - x
    server: Δ = mean_S Δ_i;   m ← β₁ m + (1 - β₁) Δ;   v ← v + Δ² (AdaGrad) or β₂ v + (1 - β₂) Δ² (Adam)
            x ← x + η_g m / (√v + τ_s)                                                             eq. (SU)

Differs: the authors' code starts the server's v at 0 (``v_init: zero``), weights by examples (``weighting``), has
β₁ = 0 under AdaGrad, and its published runs correct no bias; the devices' ε is τ_ℓ in the paper's tables. The warm-up's
first step is η_ℓ / W. Where z counts epochs, the server tells the device how many steps its epochs have: one number.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive import Accumulator, adaptive, exact, sm3
from flstudy.algorithms.parts.adaptive_server import AdaptiveServer
from flstudy.algorithms.parts.rules import adagrad_moment, adam_moment, off
from flstudy.algorithms.parts.signatures import Job, Layout, Local, Rule, State
from flstudy.hyper import hyper
from flstudy.user_error import UserError


class Message(NamedTuple):
    x: Tensor  # [n]
    v: Any = ()  # [n] the server's
    per_epoch: Any = ()  # [] steps of a local epoch


@dataclass(frozen=True, kw_only=True)
class Joint(AdaptiveServer):
    """Joint adaptivity (Lee et al. 2024): the server, and the settings of the devices' optimizers."""

    server_optimizer: Literal["adagrad", "adam"] = "adagrad"
    """The server's second moment."""
    beta2: float = hyper(0.999, "[0, 1)")
    """β₂, decay of the second moment of a server with Adam."""
    bias_correction: bool = False
    """Correct the bias of the moments of a server with Adam, as FedAdam's option does."""
    eps: float = hyper(1e-3, "(0, 1e12]")
    """ε of the devices, τ_ℓ in the paper's tables: smaller is more adaptive. The paper: 1e-7 to 1, searched."""
    client_beta1: float = hyper(0.9, "[0, 1)")
    """β₁ of devices with Adam."""
    client_beta2: float = hyper(0.999, "[0, 1)")
    """β₂ of devices with Adam."""
    client_bias_correction: bool = False
    """Correct the bias of devices with Adam, as Alg. 6 to 8 do and the paper's published runs do not."""
    sm3: Literal["I", "II"] = "II"
    """SM3-II, which the paper analyses, or SM3-I, which its code runs."""
    delay: int = hyper(1, "[1, 1e6]")
    """z: devices update their second moment in every z-th step or epoch."""
    delay_unit: Literal["step", "epoch"] = "step"
    """Unit of z: steps, as in the algorithms, or local epochs, as in the code and Fig. 7."""
    warmup: int = hyper(0, "[0, 1e6]")
    """W: steps in which a device's learning rate rises to η_ℓ; 10 in the paper's image tasks."""
    eps_s: float = hyper(0.0, "[0, 1e12]")
    """ε_s: steps whose direction is shorter than this are left out (Alg. 2, 8, 10); the paper needs it for proofs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not off(self.momentum):
            raise UserError(
                f"{type(self).__name__}: momentum must be 0, got {self.momentum}: adaptive devices have none; take an "
                "Adam optimizer for them and set client_beta1"
            )

    @property
    def by_epochs(self) -> bool:
        """Return whether devices must know how long their epochs are."""
        return self.delay > 1 and self.delay_unit == "epoch"

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        if self.server_optimizer == "adam":
            return adam_moment(v, delta, self.beta2)
        return adagrad_moment(v, delta)

    def bias(self, t: Tensor) -> Any:
        if not self.bias_correction or self.server_optimizer == "adagrad":
            return 1.0
        return torch.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)

    def accumulator(self, optimizer: str) -> Accumulator:
        """Return a device's accumulator of squared gradients."""
        beta2 = self.client_beta2 if optimizer.endswith("adam") else None
        return sm3(beta2, self.sm3) if optimizer.startswith("sm3") else exact(beta2)

    def rule(self, optimizer: str, lr: Any, delay: int) -> Rule:
        """Return a device's optimizer."""
        adam = optimizer.endswith("adam")
        return adaptive(lr, self.accumulator(optimizer), beta1=self.client_beta1 if adam else 0.0,
                        beta2=self.client_beta2 if adam else None, eps=self.eps, weight_decay=self.weight_decay,
                        bias_correction=self.client_bias_correction, delay=delay, delay_unit=self.delay_unit,
                        warmup=self.warmup, eps_s=self.eps_s)  # fmt: skip

    @abstractmethod
    def device_rule(self) -> Rule:
        """Return the optimizer of the arm's devices."""

    def broadcast(self, server: State, job: Job) -> Any:
        return Message(server.x, per_epoch=job.per_epoch.to(server.x.dtype) if self.by_epochs else ())

    def local_start(self, msg: Any, client: State, layout: Layout) -> Local:
        local = super().local_start(msg, client, layout)
        return local._replace(rule=local.rule._replace(per_epoch=msg.per_epoch)) if self.by_epochs else local
