"""SM3 (Anil et al. 2019): squared gradients remembered by covers of the parameters, not one by one.

The cover of a tensor is its axis slices S_r; a vector or number is covered by single entries, which is exact.

    SM3-I:   μ(r) ← μ(r) + max_{j ∈ S_r} g(j)²;        v(j) = min_{r: j ∈ S_r} μ(r)
    SM3-II:  v(j) = min_{r: j ∈ S_r} μ(r) + g(j)²;     μ(r) ← max_{j ∈ S_r} v(j)
    as moving averages (SM3-Adam), β₂ and 1 - β₂ before the two terms of each sum

Laws: Σ g² ≤ v of SM3-II ≤ v of SM3-I, and the same of the moving averages.
Differs: FedAda², Alg. 4, clears μ in skipped steps too, after which the next update would have forgotten everything;
here μ stays. In skipped steps of SM3-II its v = v of the step before is no function of μ and has to be kept, n numbers
more; of SM3-I it is. ε keeps denominators from 0, where Anil et al. count 0/0 as 0.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from flstudy.algorithms.parts.adaptive import Accumulator
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.signatures import State


def slices(w: Tensor) -> tuple[Tensor, ...]:
    """max over each slice of w: for every axis of length a vector [a]; of a vector, itself."""
    if w.dim() < 2:
        return (w.reshape(-1),)
    return tuple(w.amax([other for other in range(w.dim()) if other != axis]) for axis in range(w.dim()))


def least(mu: tuple[Tensor, ...]) -> Tensor:
    """v of the tensor's shape: min over the slices that hold each entry."""
    v = mu[0].reshape(-1, *[1] * (len(mu) - 1))
    for axis, vector in enumerate(mu[1:], start=1):
        v = torch.minimum(v, vector.reshape(*[1] * axis, -1, *[1] * (len(mu) - 1 - axis)))
    return v


def flat(parts: list[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])


def sm3(beta2: Any = None, version: Literal["I", "II"] = "II") -> Accumulator:
    """SM3's accumulator: AdaGrad's sums if ``beta2`` is None, else moving averages. The state holds a vector for every
    axis of every tensor, Σ over axes instead of their product."""

    def add(old: Tensor, new: Tensor) -> Tensor:
        return old + new if beta2 is None else beta2 * old + (1 - beta2) * new

    def start(v: Tensor, layout: Layout) -> State:
        return tuple(slices(part) for part in layout.split(v).values())

    def squares(state: State, u: Tensor) -> list[Tensor]:
        shapes = [[len(vector) for vector in mu] for mu in state]
        parts = torch.split(u, [torch.Size(shape).numel() for shape in shapes])
        return [part.reshape(shape) ** 2 for part, shape in zip(parts, shapes, strict=True)]

    def first(state: State, u: Tensor) -> tuple[Tensor, State]:
        pairs = [(mu, slices(square)) for mu, square in zip(state, squares(state, u), strict=True)]
        state = tuple(tuple(add(old, new) for old, new in zip(*pair, strict=True)) for pair in pairs)
        return read(state), state

    def second(state: State, u: Tensor) -> tuple[Tensor, State]:
        v = [add(least(mu), square) for mu, square in zip(state, squares(state, u), strict=True)]
        return flat(v), tuple(slices(part) for part in v)

    def read(state: State) -> Tensor:
        return flat([least(mu) for mu in state])

    return Accumulator(start, first, read) if version == "I" else Accumulator(start, second, None)
