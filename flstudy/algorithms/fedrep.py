"""FedRep (Collins et al. 2021, Alg. 1): devices keep a head h_i, which they train before they train the body φ.

    device: h_i ← GRD(f_i(h_i, φ))   in the first ``head_epochs`` epochs, φ resting
            φ_i ← GRD(f_i(h_i, φ))   in the others, h_i resting;   send Δ_i = φ_i - φ
    server: φ ← φ + Σ_c p_c Δ_c      uniform p_c

Laws: what a step does not move stays, its momentum included.
Differs: the paper counts τ_h updates of the head in Alg. 1 and epochs in its experiments; here they are epochs of the
device's data, the world's ``epochs`` being both together. h_i starts at the common initial head.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.signatures import Job
from flstudy.hyper import hyper


class Message(NamedTuple):
    x: Tensor  # [n]
    per_epoch: Tensor  # [] steps of a local epoch


@dataclass(frozen=True, kw_only=True)
class FedRep(FedAvg):
    """FedRep (Collins et al. 2021): a head of each device's own, trained before the body that all share."""

    citations: ClassVar[tuple[str, ...]] = ("collins2021",)

    needs_parts: ClassVar[bool] = True
    steps_by_parts: ClassVar[bool] = True
    steps_by_sgd: ClassVar[str] = "its steps move one part of the model at a time"

    head_epochs: int = hyper(1, "[0, 1e6]")
    """Local epochs in which the head alone is trained; the body is trained in the others."""
    weighting: Literal["examples", "uniform"] = "uniform"
    """p_c of the server's mean; the paper's is uniform."""

    def broadcast(self, server: Any, job: Job) -> Any:
        return Message(server.x, job.per_epoch.to(server.x))

    def steps_parts(self, local: Any, msg: Any) -> tuple[Tensor, Tensor]:
        head = local.steps < self.head_epochs * msg.per_epoch
        return head, ~head
