"""FedProx (Li et al. 2020, Alg. 2).

    device: minimise f_c(y) + (μ/2) ‖y - x‖²,  that is  g = ∇f_c(y) + μ (y - x)
    server: FedAvg's

Laws: μ = 0 is FedAvg.
Differs: devices take SGD steps on the proximal objective; the paper's γ-inexact solver is any such method.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedProx (Li et al. 2020): FedAvg with a proximal term towards the received model in the local objective."""

    citations: ClassVar[tuple[str, ...]] = ("li2020fedprox",)

    mu: float = hyper(0.01, "[0, 1e12]")
    """μ, strength of the proximal term; the paper's grid is {.001, .01, .1, 1}."""

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return g + self.mu * (y - msg.x)  # type: ignore[no-any-return]
