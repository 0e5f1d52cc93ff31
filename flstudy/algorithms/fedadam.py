"""FedAdam (Reddi et al. 2021, Alg. 2).

v ← β₂ v + (1 - β₂) Δ²;   the rest is that of an adaptive server
with bias_correction: η_g √(1 - β₂^t) / (1 - β₁^t) in round t = 1, 2, …  (the authors' code)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive_server import AdaptiveServer
from flstudy.algorithms.parts.rules import adam_moment
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedAdam(AdaptiveServer):
    """FedAdam (Reddi et al. 2021): Adam as the server's optimizer."""

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    beta2: float = hyper(0.99, "[0, 1)")
    """β₂, decay of the second moment; .99 in the paper, .999 is its code's default."""
    bias_correction: bool = False
    """Correct the bias of both moments, as the authors' code does and Alg. 2 does not."""

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return adam_moment(v, delta, self.beta2)

    def bias(self, t: Tensor) -> Any:
        return torch.sqrt(1 - self.beta2**t) / (1 - self.beta1**t) if self.bias_correction else 1.0
