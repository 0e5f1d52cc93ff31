"""Joint adaptivity without preconditioner communication (FedAda², Lee et al. 2024, sec. 4, Alg. 8 and 10).

    device: v = 0 in every round; AdaGrad or Adam, as ``client_optimizer`` says;   the rest is ``joint``'s
    x travels down, Δ up: 2 n numbers

Laws: ε → ∞ and η_ℓ = ε η make it the adaptive server over SGD(η); delay 1 is no delay.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flstudy.algorithms.parts.joint import Joint
from flstudy.algorithms.parts.signatures import Rule


@dataclass(frozen=True, kw_only=True)
class JointAdaptivity(Joint):
    """Joint adaptivity (Lee et al. 2024): adaptive server and devices, which start each round from fresh statistics."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    client_optimizer: Literal["adagrad", "adam", "sm3_adagrad", "sm3_adam"] = "adagrad"
    """Optimizer of the devices; the server may have another."""

    def device_rule(self) -> Rule:
        return self.rule(self.client_optimizer, self.lr, self.delay)
