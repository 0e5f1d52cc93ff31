"""HypCluster (Mansour et al. 2020, Alg. 3), which is IFCA (Ghosh et al. 2020, Alg. 1): several global models.

    device: i = argmin_m f_c(x_m) over all M models, on its training data; train x_i, send Δ
    server: each model takes the mean update of the devices that chose it; one without devices stays

Laws: M = 1 is FedAvg; devices that share a minimiser share a model.
Differs: IFCA weighs devices alike (``weighting: uniform``), HypCluster by their examples. Each model starts from a draw
of its own: from equal ones all devices would choose the first, ties going to the lowest number, for ever.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from flstudy.algorithms.parts.clustered import Clustered
from flstudy.algorithms.parts.signatures import Job, Round


@dataclass(frozen=True, kw_only=True)
class HypCluster(Clustered):
    """HypCluster (Mansour et al. 2020), IFCA (Ghosh et al. 2020): a device trains the best of several global models."""

    citations: ClassVar[tuple[str, ...]] = ("mansour2020", "ghosh2020")

    @property
    def starts(self) -> int:
        return self.models

    @property
    def asks(self) -> Literal["loss", "error"]:
        return "loss"

    def choose(self, server: Any, survey: Tensor, jobs: Job, round: Round) -> Tensor:
        return survey.argmin(-1)
