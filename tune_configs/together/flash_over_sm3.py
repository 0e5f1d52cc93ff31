"""FLASH's server over the devices of FedAda²: the two papers' methods in one, which neither of them has.

device: Alg. 2 of Lee et al. 2024 with SM3-II in AdaGrad's form: v = 0 in every round, nothing of size n is kept
server: lines 16-21 of Panchal et al. 2023, Alg. 1, line 21 clamped at .1, as that of Flash-clamped
"""

from dataclasses import dataclass
from typing import ClassVar

from flstudy.algorithms import Flash
from flstudy.algorithms.parts.adaptive import adaptive, sm3
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FlashAda2(Flash):
    """FLASH's server over devices with SM3."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023", "lee2024", "anil2019")

    lr: float = hyper(0.01, "(0, 1e12]")
    """η_ℓ of the devices."""
    server_lr: float = hyper(0.1, "(0, 1e12]")
    """η_g of the server."""
    gamma: float | None = hyper(None, "[0, 1e12]")
    """γ of early stopping, which needs epochs; null does all steps."""
    clamp: float | None = hyper(0.1, "[0, 1]")
    """Share of √v below which √v - d does not fall in line 21; null is the line as printed."""
    eps: float = hyper(1e-3, "(0, 1e12]")
    """ε of the devices; smaller is more adaptive."""

    def device_rule(self):
        return adaptive(self.lr, sm3(None, "II"), eps=self.eps, weight_decay=self.weight_decay)
