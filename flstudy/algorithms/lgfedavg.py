"""LG-FedAvg (Liang et al. 2020, Alg. 1): devices keep a body ℓ_i of their own and average the head θ over it.

    device: ℓ_i, θ_i ← SGD on f_i(θ(ℓ_i))   both in every step, from its own ℓ_i and the server's θ
            send Δ_i = θ_i - θ
    server: θ ← θ + Σ_c p_c Δ_c             p_c by examples

``shared`` names θ, as ``personal`` names what devices keep with the other methods: FedAvg whose ``personal`` names
ℓ_i is the same method.

Laws: with the head named it is FedAvg whose ``personal`` names the body.
Differs: the paper's experiments begin from a model that FedAvg trained; here from the common initial one.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from flstudy.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class LgFedAvg(FedAvg):
    """LG-FedAvg (Liang et al. 2020): representations of each device's own under a head that is averaged."""

    citations: ClassVar[tuple[str, ...]] = ("liang2020",)

    names_parts: ClassVar[str] = "shared"
    needs_parts: ClassVar[bool] = True

    shared: tuple[str, ...] = ()
    """Names of the parameters and buffers that are averaged, such as head.*; devices keep all others."""
    personal: tuple[str, ...] = field(default=(), init=False)  # all that is not shared

    def parts_named(self) -> tuple[str, ...]:
        return self.shared

    def keeps(self, named: bool) -> bool:
        return not named
