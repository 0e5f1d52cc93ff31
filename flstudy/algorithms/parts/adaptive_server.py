"""Adaptive server optimizers (Reddi et al. 2021, Alg. 2): the common base of FedAdaGrad, FedAdam and FedYogi.

    Δ = Σ_c p_c Δ_c                       uniform p_c, as in Alg. 2
    m ← β₁ m + (1 - β₁) Δ
    v ← second_moment(v, Δ)               each method's own line
    x ← x + η_g m / (√v + τ)

Differs: the authors' code starts v at 0 (``v_init: zero``), weights by examples (``weighting: examples``) and, in
FedAdam and FedYogi, corrects the bias of m and v (``bias_correction``); the paper does none of these.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Layout, Round
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    m: Tensor  # [n]
    v: Tensor  # [n]
    t: Tensor  # [] rounds done


@dataclass(frozen=True, kw_only=True)
class AdaptiveServer(Algorithm):
    """Adaptive server over SGD devices (Reddi et al. 2021)."""

    measures: ClassVar[tuple[str, ...]] = (*Algorithm.measures, "server/gradient_disparity")

    server_lr: float = hyper(0.1, "(0, 1e12]")
    """η_g, learning rate of the server."""
    beta1: float = hyper(0.9, "[0, 1)")
    """β₁, decay of the first moment."""
    tau: float = hyper(1e-3, "(0, 1e12]")
    """τ, adaptivity: smaller is more adaptive. Experience: 1e-5 to 1e-1, searched."""
    v_init: Literal["tau_sq", "zero"] = "tau_sq"
    """v before the first round: τ² (the paper asks for at least that) or 0 (the authors' code)."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the server's mean."""

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        v = torch.full_like(x, self.tau**2) if self.v_init == "tau_sq" else torch.zeros_like(x)
        return Server(x, torch.zeros_like(x), v, torch.zeros((), dtype=x.dtype, device=x.device))

    @abstractmethod
    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return v [n] after a mean update Δ [n]."""

    def bias(self, t: Tensor) -> Any:
        """Return the factor [] on η_g in round t [] (from 1)."""
        return 1.0

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        return self.step(server, self.mean_update(inbox))

    def step(self, server: Any, delta: Tensor) -> Any:
        """Return the server's state after a mean update Δ [n]."""
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.second_moment(server.v, delta)
        t = server.t + 1
        after = server._replace(m=m, v=v, t=t)
        return after._replace(x=server.x + self.server_lr * self.bias(t) * m / self.divisor(after))

    def mean_update(self, inbox: Inbox) -> Tensor:
        """Return [n]: the mean update Δ of a round."""
        return inbox.mean().delta  # type: ignore[no-any-return]

    def divisor(self, server: Any) -> Tensor:
        """Return [n]: the divisor of m."""
        return server.v.sqrt() + self.tau  # type: ignore[no-any-return]

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        """Add the numbers [] of FLASH's Fig. 1 (mean of η_g over the divisor) and Fig. 2, ‖Δ² - v‖."""
        return {
            **super().diagnostics(before, after, inbox),
            "effective_lr": (self.server_lr / self.divisor(after)).mean(),
            "gradient_disparity": (self.mean_update(inbox) ** 2 - after.v).norm(),
        }
