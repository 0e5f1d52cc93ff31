"""FedSAM (Qu et al. 2022, Alg. 1; Caldarola et al. 2022): devices step by the gradient at the worst point near by.

    device: ŷ = y + ρ ∇f_i(y; ζ) / ‖∇f_i(y; ζ)‖;   y ← y - η_ℓ ∇f_i(ŷ; ζ)   K times, two gradients each
    server: FedAvg's

Laws: ρ = 0 is FedAvg.
Differs: Qu et al. weigh devices alike, Caldarola et al. by examples, which is the default here. Clipping is of the
gradient at ŷ. The loss of a step is that at y.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Batch, Gradient, Local, State
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedSam(FedAvg):
    """FedSAM (Qu et al. 2022; Caldarola et al. 2022): devices that minimise sharpness beside the loss."""

    citations: ClassVar[tuple[str, ...]] = ("qu2022", "caldarola2022")

    rho: float = hyper(0.05, "[0, 1e12]")
    """ρ, how far the worst point is; 0 is FedAvg. The papers choose among .01 to .5."""

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        if off(self.rho):
            return super().local_step(local, batch, grad, msg, client)
        g, loss = grad(local.y, batch)
        worst = local.y + self.rho * g / g.norm().clamp(min=1e-12)
        stepped, _ = super().local_step(local, batch, lambda y, batch: grad(worst, batch), msg, client)
        return stepped, loss
