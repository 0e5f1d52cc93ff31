"""FedAda² (Lee et al. 2024, Alg. 1 and 2): joint adaptivity that neither sends nor keeps preconditioners of size n.

    device: v = 0 in every round; SM3 in AdaGrad's or Adam's form (``covers``), Alg. 2 line 9;   the rest is ``joint``'s
    x travels down, Δ up: 2 n numbers;   a device keeps Σ over axes instead of n of them (``memory``)

Laws: without a matrix in the model it is JointAdaptivity; delay 1 is no delay.
Differs: SM3's Adam form has Adam's m, n numbers, unless ``client_beta1`` is 0, and a delay of SM3-II costs the device n
more (``covers``); the paper's Table 2 counts 2 n, model included, for FedAda² as for exact AdaGrad.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flstudy.algorithms.jointadaptivity import JointAdaptivity


@dataclass(frozen=True, kw_only=True)
class FedAda2(JointAdaptivity):
    """FedAda² (Lee et al. 2024): adaptive server and devices with memory-saving SM3; no preconditioner is sent."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024", "anil2019")

    client_optimizer: Literal["sm3_adagrad", "sm3_adam"] = "sm3_adagrad"
    """Optimizer of the devices; the server may have another."""
