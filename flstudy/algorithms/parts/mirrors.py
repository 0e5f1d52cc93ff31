"""Mirror maps: pairs (∇φ, ∇φ*) of inverse functions between models x [n] and their duals θ [n], pure and vmap-able."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

NEWTON = 40  # steps to β of `eg`; from above they fall monotonically, the last of them quadratically


class Mirror(NamedTuple):
    """φ by its gradient and the gradient of its conjugate: ``primal(dual(x))`` is x."""

    dual: Callable[[Tensor], Tensor]  # ∇φ
    primal: Callable[[Tensor], Tensor]  # ∇φ* = (∇φ)⁻¹


def euclidean() -> Mirror:
    """φ = ½ ‖x‖₂²: gradient descent."""
    return Mirror(lambda x: x, lambda theta: theta)


def hypentropy(b: Any) -> Mirror:
    """φ = Σ x asinh(x/b) - √(x² + b²) (Ghai et al. 2020): unnormalised EG± whose products of weights are b²/4.

    With η/b in place of η it tends to gradient descent as b → ∞.
    """
    return Mirror(lambda x: torch.asinh(x / b), lambda theta: b * torch.sinh(theta))


def pnorm(p: Any) -> Mirror:
    """φ = ½ ‖x‖_p², 1 < p ≤ 2, whose conjugate is ½ ‖θ‖_q², q = p / (p - 1)."""

    def link(x: Tensor, power: Any) -> Tensor:
        """∇ ½ ‖x‖²: sign(x) |x / ‖x‖|^(power - 1) ‖x‖; 0 at 0."""
        size = x.abs()
        most = size.max().clamp(min=torch.finfo(x.dtype).tiny)
        norm = most * ((size / most) ** power).sum() ** (1 / power)
        norm = norm.clamp(min=torch.finfo(x.dtype).tiny)
        linked: Tensor = x.sign() * (size / norm) ** (power - 1) * norm
        return linked

    return Mirror(lambda x: link(x, p), lambda theta: link(theta, p / (p - 1)))


def eg(radius: Any) -> Mirror:
    """EG± (Kivinen & Warmuth 1997) in {‖x‖₁ < R}: x = w⁺ - w⁻ of weights that add up to R.

    EG± from equal weights keeps all products w⁺_i w⁻_i equal, to β²/4 say, and thus is mirror descent with φ* =
    R log Σ cosh θ: θ = asinh(x/β), where β is the root of Σ √(x² + β²) = R.
    """

    def dual(x: Tensor) -> Tensor:
        tiny = torch.finfo(x.dtype).eps * radius / x.numel()
        beta = x.new_ones(()) * radius / x.numel()  # the root is at most that, and the sum is convex in β
        for _ in range(NEWTON):
            root = torch.sqrt(x**2 + beta**2)
            beta = (beta - (root.sum() - radius) / (beta / root).sum()).clamp(min=tiny)
        return torch.asinh(x / beta)

    def primal(theta: Tensor) -> Tensor:
        plus, minus = torch.softmax(torch.cat([theta, -theta]), 0).chunk(2)
        x: Tensor = radius * (plus - minus)
        return x

    return Mirror(dual, primal)
