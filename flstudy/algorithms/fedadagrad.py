"""FedAdaGrad (Reddi et al. 2021, Alg. 2).

v ← v + Δ²;   the rest is that of an adaptive server, with β₁ = 0
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flstudy.algorithms.parts.adaptive_server import AdaptiveServer
from flstudy.algorithms.parts.rules import adagrad_moment
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedAdaGrad(AdaptiveServer):
    """FedAdaGrad (Reddi et al. 2021): AdaGrad as the server's optimizer."""

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    beta1: float = hyper(0.0, "[0, 1)")
    """β₁, decay of the first moment; 0 in the paper's experiments."""

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return adagrad_moment(v, delta)
