"""FLASH (Panchal et al. 2023, Alg. 1): a server whose effective learning rate rises at a concept drift.

    device: SGD epochs with early stopping, lines 5-15 (``gamma``, ``first_epoch``, ``valid_loss``)
    server: m ← β₁ m + (1 - β₁) Δ                                          line 17; Δ is the uniform mean, line 16
            v' ← β₂ v + (1 - β₂) Δ²                                        line 18
            β₃ = |v| / (|Δ² - v'| + |v|)                                   line 19, v of the round before on top
            d ← β₃ d + (1 - β₃) (Δ² - v')                                  line 20
            x ← x + η_g m / (√v' - d + τ)                                  line 21

Laws: d ≡ 0 is FedAdam, or FedYogi with Yogi's moment.
Differs: 0/0 in β₃ counts as 0, which leaves d = 0. β₁, β₂, τ and v's start are not published: Reddi et al.'s are used.
Not in the paper: it asserts √v ≥ d, which is false when |Δ| exceeds about √(1 - β₂)/β₂; there line 21 steps against m,
or very far. ``clamp`` keeps √v - d at no less than that share of √v.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive_server import AdaptiveServer
from flstudy.algorithms.parts.rules import adam_moment, yogi_moment
from flstudy.algorithms.parts.signatures import Inbox, Layout
from flstudy.hyper import hyper


class Segments(NamedTuple):
    tensor: Tensor  # [n] number of the tensor to which a coordinate belongs
    zeros: Tensor  # [tensors]


class Server(NamedTuple):
    x: Tensor  # [n]
    m: Tensor  # [n]
    v: Tensor  # [n]
    t: Tensor  # [] rounds done
    d: Tensor  # [n] moving average of the gradient disparity Δ² - v
    beta3: Tensor  # [n] of the last round
    segments: Any  # Segments, or () where β₃ is per coordinate


@dataclass(frozen=True, kw_only=True)
class Flash(AdaptiveServer):
    """FLASH (Panchal et al. 2023): early-stopping devices and a drift-aware adaptive server."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)
    measures: ClassVar[tuple[str, ...]] = (
        *AdaptiveServer.measures,
        "server/beta3",
        "server/reversed",
        "server/clamped",
        "server/boost",
    )

    gamma: float | None = hyper(0.04, "[0, 1e12]")
    """γ of the devices' early stopping; null trains all epochs. The paper: .03 to .05."""
    beta2: float = hyper(0.99, "[0, 1)")
    """β₂, decay of the second moment."""
    moment: Literal["adam", "yogi"] = "adam"
    """Line 18 as printed, or FedYogi's second moment, to which the text says that FLASH reduces."""
    clamp: float | None = hyper(None, "[0, 1]")
    """Share of √v below which √v - d does not fall in line 21; null is the line as printed. Not in the paper."""
    beta3_granularity: Literal["coordinate", "tensor"] = "coordinate"
    """β₃ for every coordinate (as the appendix sums), or with L2 norms over each named tensor."""

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        base = super().server_init(x, layout)
        segments: Any = ()
        if self.beta3_granularity == "tensor":
            segments = Segments(layout.segments(x.device), x.new_zeros(len(layout.sizes)))
        zeros = torch.zeros_like(x)
        return Server(base.x, base.m, base.v, base.t, zeros, zeros, segments)

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return (yogi_moment if self.moment == "yogi" else adam_moment)(v, delta, self.beta2)

    def norm(self, u: Tensor, segments: Any) -> Tensor:
        """Return [n]: ‖u_j‖ of each coordinate of u [n], or of the tensor that holds it."""
        if self.beta3_granularity == "coordinate":
            return u.abs()
        return segments.zeros.scatter_add(0, segments.tensor, u**2).sqrt()[segments.tensor]  # type: ignore[no-any-return]

    def step(self, server: Server, delta: Tensor) -> Server:
        m = self.beta1 * server.m + (1 - self.beta1) * delta
        v = self.second_moment(server.v, delta)
        disparity = delta**2 - v
        top = self.norm(server.v, server.segments)
        bottom = self.norm(disparity, server.segments) + top
        beta3 = torch.where(bottom > 0, top / bottom, 0.0)
        d = beta3 * server.d + (1 - beta3) * disparity
        after = Server(server.x, m, v, server.t + 1, d, beta3, server.segments)
        return after._replace(x=server.x + self.server_lr * m / self.divisor(after))

    def divisor(self, server: Server) -> Tensor:
        root = server.v.sqrt()
        gap = root - server.d
        if self.clamp is not None:
            gap = torch.maximum(gap, self.clamp * root)
        return gap + self.tau

    def diagnostics(self, before: Server, after: Server, inbox: Inbox) -> dict[str, Tensor]:
        """Add the mean of β₃, the shares of coordinates that step against m and that the clamp holds, and the boost,
        numbers [] each.

        The boost is how many times as long the step is as it would be with d = 0. The mean effective rate may hide it:
        that rate weighs all coordinates alike, the step's length those that move.
        """
        root, divisor = after.v.sqrt(), self.divisor(after)
        held = torch.zeros_like(root) if self.clamp is None else (root - after.d < self.clamp * root).to(root.dtype)
        still = (after.m / (root + self.tau)).norm()
        return {
            **super().diagnostics(before, after, inbox),
            "beta3": after.beta3.mean(),
            "reversed": (divisor < 0).to(root.dtype).mean(),
            "clamped": held.mean(),
            "boost": torch.where(still > 0, (after.m / divisor).norm() / still, 1.0),
        }
