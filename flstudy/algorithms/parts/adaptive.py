"""Adaptive optimizers for devices: AdaGrad and Adam over an accumulator of squared gradients, exact or not, whose
updates may be delayed (FedAda², Lee et al. 2024, Alg. 6-10: ADMU is delayed Adam, AGDU delayed AdaGrad).

    step k = 1, 2, …:   m_k = β₁ m_{k-1} + (1 - β₁) g_k;   m̂_k = m_k / (1 - β₁^k)
        if (k - 1) mod z = 0:   v_k = v_{k-1} + g_k²  (AdaGrad),  β₂ v_{k-1} + (1 - β₂) g_k²  (Adam)
                     else:      v_k = v_{k-1}
        v̂_k = v_k / (1 - β₂^s),  s = ⌊(k - 1) / z⌋ + 1 updates done
        d = m̂_k / (√v̂_k + ε);   d = 0 where ‖d‖ < ε_s  (Alg. 2 line 11);   step = η min(1, k / W) d

With ``delay_unit`` epoch, as the authors' code counts, v is updated in every step of the local epochs 1, 1 + z, ….
A β₁, λ or ε_s of exactly 0, a W of 0, a z of 1 and a missing bias correction cost neither time nor state.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.algorithms.parts.hyper import off
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.rules import adagrad_moment, adam_moment
from flstudy.algorithms.parts.signatures import Rule
from flstudy.algorithms.parts.signatures import State as AnyState

Unit = Literal["step", "epoch"]


class Accumulator(NamedTuple):
    """What an optimizer remembers of squared gradients."""

    start: Callable[[Tensor, Layout], AnyState]  # of a second moment that begins at v [n]
    update: Callable[[AnyState, Tensor], tuple[Tensor, AnyState]]  # (state, u [n]) -> v [n], state
    read: Callable[[AnyState], Tensor] | None  # the last v [n], if the state still tells it


def exact(beta2: Any = None) -> Accumulator:
    """v itself: AdaGrad's sum if ``beta2`` is None, else Adam's moving average."""

    def update(v: AnyState, u: Tensor) -> tuple[Tensor, AnyState]:
        v = adagrad_moment(v, u) if beta2 is None else adam_moment(v, u, beta2)
        return v, v

    return Accumulator(lambda v, layout: v, update, lambda v: v)


class State(NamedTuple):
    """Fields that the settings do not ask for are ()."""

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
    """The rule above. Without delay, warm-up and ε_s it is ``torch.optim.Adagrad`` (β₁ = 0, β₂ None) over ``exact()``
    and, with bias correction, ``torch.optim.Adam`` over ``exact(beta2)``; β₂ None has no bias to correct."""
    delayed, corrected = delay > 1, bias_correction and beta2 is not None

    def init(x: Tensor, layout: Layout) -> State:
        zeros, zero = torch.zeros_like(x), x.new_zeros(())
        return State(
            moment=accumulator.start(zeros, layout),
            m=() if off(beta1) else zeros,
            t=zero if delayed or corrected or warmup > 0 else (),
            updates=zero if delayed and corrected else (),
            v=zeros if delayed and accumulator.read is None else (),
            per_epoch=zero + 1 if delayed and delay_unit == "epoch" else (),
        )

    def update(u: Tensor, state: Any, x: Tensor) -> tuple[Tensor, State]:
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
        return step, State(moment, m, t, updates, last, state.per_epoch)

    return Rule(init, update)
