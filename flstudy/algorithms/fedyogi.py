"""FedYogi (Reddi et al. 2021, Alg. 2).

v ← v - (1 - β₂) Δ² sign(v - Δ²);   the rest is FedAdam's
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flstudy.algorithms.fedadam import FedAdam
from flstudy.algorithms.parts.rules import yogi_moment


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021): Yogi as the server's optimizer."""

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return yogi_moment(v, delta, self.beta2)
