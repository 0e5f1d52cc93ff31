"""Adaptive optimizers for devices: AdaGrad and Adam over an accumulator of squared gradients, exact or not, whose
updates may be delayed (FedAda², Lee et al. 2024, Alg. 6-10: ADMU is delayed Adam, AGDU delayed AdaGrad).

    step k = 1, 2, …:   m_k = β₁ m_{k-1} + (1 - β₁) g_k;   m̂_k = m_k / (1 - β₁^k)
        if (k - 1) mod z = 0:   v_k = v_{k-1} + g_k²  (AdaGrad),  β₂ v_{k-1} + (1 - β₂) g_k²  (Adam)
                     else:      v_k = v_{k-1}
        v̂_k = v_k / (1 - β₂^s),  s = ⌊(k - 1) / z⌋ + 1 updates done
        d = m̂_k / (√v̂_k + ε);   d = 0 where ‖d‖ < ε_s  (Alg. 2 line 11);   step = η min(1, k / W) d

With ``delay_unit`` epoch, as the authors' code counts, v is updated in every step of the local epochs 1, 1 + z, ….
A β₁, λ or ε_s of exactly 0, a W of 0, a z of 1 and a missing bias correction cost neither time nor state.

SM3 (Anil et al. 2019): squared gradients remembered by covers of the parameters, not one by one.

The cover of a tensor is its axis slices S_r; a vector or number is covered by single entries, which is exact.

    SM3-I:   μ(r) ← μ(r) + max_{j ∈ S_r} g(j)²;        v(j) = min_{r: j ∈ S_r} μ(r)
    SM3-II:  v(j) = min_{r: j ∈ S_r} μ(r) + g(j)²;     μ(r) ← max_{j ∈ S_r} v(j)
    as moving averages (SM3-Adam), β₂ and 1 - β₂ before the two terms of each sum

Laws: Σ g² ≤ v of SM3-II ≤ v of SM3-I, and the same of the moving averages.
Differs: FedAda², Alg. 4, clears μ in skipped steps too, after which the next update would have forgotten everything;
here μ stays. In skipped steps of SM3-II its v = v of the step before is no function of μ and has to be kept, n numbers
more; of SM3-I it is. ε keeps denominators from 0, where Anil et al. count 0/0 as 0.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms.parts.rules import adagrad_moment, adam_moment, off
from flstudy.algorithms.parts.signatures import Layout, Rule, State

Unit = Literal["step", "epoch"]


class Accumulator(NamedTuple):
    """Accumulator of squared gradients, an optimizer's memory of them."""

    start: Callable[[Tensor, Layout], State]  # of a second moment that begins at v [n]
    update: Callable[[State, Tensor], tuple[Tensor, State]]  # (state, u [n]) -> v [n], state
    read: Callable[[State], Tensor] | None  # the last v [n], if the state still tells it


def exact(beta2: Any = None) -> Accumulator:
    """Return the exact accumulator, v itself: AdaGrad's sum if ``beta2`` is None, else Adam's moving average."""

    def update(v: State, u: Tensor) -> tuple[Tensor, State]:
        v = adagrad_moment(v, u) if beta2 is None else adam_moment(v, u, beta2)
        return v, v

    return Accumulator(lambda v, layout: v, update, lambda v: v)


class AdaptiveState(NamedTuple):
    """State of an adaptive rule; fields that the settings do not ask for are ()."""

    moment: Any  # of the accumulator
    m: Any  # [n]
    t: Any  # [] steps done, k - 1
    updates: Any  # [] s
    v: Any  # [n] the last v, kept only where steps are skipped and the accumulator cannot tell it
    per_epoch: Any  # [] steps of a local epoch; 1 unless the method fills it in


def adaptive(
    lr: Any,
    accumulator: Accumulator,
    *,
    beta1: Any = 0.0,
    beta2: Any = None,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    bias_correction: bool = False,
    delay: int = 1,
    delay_unit: Unit = "step",
    warmup: int = 0,
    eps_s: Any = 0.0,
) -> Rule:
    """Return the rule of the steps above. Without delay, warm-up and ε_s it is ``torch.optim.Adagrad`` (β₁ = 0, β₂
    None) over ``exact()``, with bias correction ``torch.optim.Adam`` over ``exact(beta2)``; β₂ None has no bias to
    correct."""
    delayed, corrected = delay > 1, bias_correction and beta2 is not None

    def init(x: Tensor, layout: Layout) -> AdaptiveState:
        zeros, zero = torch.zeros_like(x), x.new_zeros(())
        return AdaptiveState(
            moment=accumulator.start(zeros, layout),
            m=() if off(beta1) else zeros,
            t=zero if delayed or corrected or warmup > 0 else (),
            updates=zero if delayed and corrected else (),
            v=zeros if delayed and accumulator.read is None else (),
            per_epoch=zero + 1 if delayed and delay_unit == "epoch" else (),
        )

    def update(u: Tensor, state: Any, x: Tensor) -> tuple[Tensor, AdaptiveState]:
        if not off(weight_decay):
            u = u + weight_decay * x
        v, moment = accumulator.update(state.moment, u)
        updates: Any = state.updates
        last = state.v
        if delayed:
            period = state.t if delay_unit == "step" else torch.floor(state.t / state.per_epoch)
            due = torch.remainder(period, delay) == 0
            moment = pytree.tree_map(lambda new, old: torch.where(due, new, old), moment, state.moment)
            v = torch.where(due, v, last) if accumulator.read is None else accumulator.read(moment)
            updates = state.updates + due if corrected else ()
            last = v if accumulator.read is None else ()
        t: Any = () if isinstance(state.t, tuple) else state.t + 1
        m = () if off(beta1) else beta1 * state.m + (1 - beta1) * u
        top = u if off(beta1) else m
        if corrected:
            top = top if off(beta1) else top / (1 - beta1**t)
            v = v / (1 - beta2 ** (updates if delayed else t))
        d = top / (v.sqrt() + eps)
        if not off(eps_s):
            d = torch.where(d.norm() < eps_s, 0.0, d)
        step = lr * d * (torch.clamp(t / warmup, max=1.0) if warmup > 0 else 1.0)
        return step, AdaptiveState(moment, m, t, updates, last, state.per_epoch)

    return Rule(init, update)


# ---- SM3 -----------------------------------------------------------------------------------------------------------


def axis_maxima(w: Tensor) -> tuple[Tensor, ...]:
    """Return the maxima over each slice of w [a, b, …]: a vector [a], [b], … for each axis; of a vector, itself."""
    if w.dim() < 2:
        return (w.reshape(-1),)
    return tuple(w.amax([other for other in range(w.dim()) if other != axis]) for axis in range(w.dim()))


def axis_minimum(mu: tuple[Tensor, ...]) -> Tensor:
    """Return v [a, b, …]: for each entry the minimum over the slices that hold it, given a vector [a], [b], … for each
    axis."""
    v = mu[0].reshape(-1, *[1] * (len(mu) - 1))
    for axis, vector in enumerate(mu[1:], start=1):
        v = torch.minimum(v, vector.reshape(*[1] * axis, -1, *[1] * (len(mu) - 1 - axis)))
    return v


def concatenated(parts: list[Tensor]) -> Tensor:
    """Return tensors [...] of n entries in all as one vector [n]."""
    return torch.cat([part.reshape(-1) for part in parts])


def sm3(beta2: Any = None, version: Literal["I", "II"] = "II") -> Accumulator:
    """SM3's accumulator: AdaGrad's sums if ``beta2`` is None, else moving averages. The state holds a vector for every
    axis of every tensor, Σ over axes instead of their product."""

    def add(old: Tensor, new: Tensor) -> Tensor:
        return old + new if beta2 is None else beta2 * old + (1 - beta2) * new

    def start(v: Tensor, layout: Layout) -> State:
        return tuple(axis_maxima(part) for part in layout.split(v).values())

    def squares(state: State, u: Tensor) -> list[Tensor]:
        shapes = [[len(vector) for vector in mu] for mu in state]
        parts = torch.split(u, [torch.Size(shape).numel() for shape in shapes])
        return [part.reshape(shape) ** 2 for part, shape in zip(parts, shapes, strict=True)]

    def first(state: State, u: Tensor) -> tuple[Tensor, State]:
        pairs = [(mu, axis_maxima(square)) for mu, square in zip(state, squares(state, u), strict=True)]
        state = tuple(tuple(add(old, new) for old, new in zip(*pair, strict=True)) for pair in pairs)
        return read(state), state

    def second(state: State, u: Tensor) -> tuple[Tensor, State]:
        v = [add(axis_minimum(mu), square) for mu, square in zip(state, squares(state, u), strict=True)]
        return concatenated(v), tuple(axis_maxima(part) for part in v)

    def read(state: State) -> Tensor:
        return concatenated([axis_minimum(mu) for mu in state])

    return Accumulator(start, first, read) if version == "I" else Accumulator(start, second, None)
