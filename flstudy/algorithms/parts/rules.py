"""Update rules and second moments shared by devices and servers."""

from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms.parts.hyper import off
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.signatures import Rule, State


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False) -> Rule:
    """Stochastic gradient descent as in ``torch.optim.SGD`` (no dampening).

        u ← u + λ x;   b ← ρ b + u   (b = 0 at first);   step = η b   (Nesterov: η (u + ρ b))

    λ and ρ that are exactly 0 cost neither time nor state.
    """

    def init(x: Tensor, layout: Layout) -> State:
        return () if off(momentum) else (torch.zeros_like(x),)

    def update(u: Tensor, state: State, x: Tensor) -> tuple[Tensor, State]:
        if not off(weight_decay):
            u = u + weight_decay * x
        if off(momentum):
            return lr * u, ()
        b = momentum * state[0] + u
        return lr * (u + momentum * b if nesterov else b), (b,)

    return Rule(init, update)


def clip(g: Tensor, norm: Any) -> Tensor:
    """g scaled down to at most ``norm`` in L2, as ``torch.nn.utils.clip_grad_norm_`` does; None leaves g alone."""
    if norm is None:
        return g
    return g * torch.clamp(norm / (g.norm() + 1e-6), max=1.0)


def adagrad_moment(v: Tensor, u: Tensor) -> Tensor:
    """v + u²  (Reddi et al. 2021, Alg. 2, FedAdaGrad)."""
    return v + u**2


def adam_moment(v: Tensor, u: Tensor, beta2: float) -> Tensor:
    """β₂ v + (1 - β₂) u²  (Reddi et al. 2021, Alg. 2, FedAdam)."""
    return beta2 * v + (1 - beta2) * u**2


def yogi_moment(v: Tensor, u: Tensor, beta2: float) -> Tensor:
    """v - (1 - β₂) u² sign(v - u²)  (Reddi et al. 2021, Alg. 2, FedYogi); stays ≥ 0 when v does."""
    return v - (1 - beta2) * u**2 * torch.sign(v - u**2)
