"""Update rules and second moments shared by devices and servers, and their terms that are switched off."""

import dataclasses
from typing import Any, TypeVar

import torch
from torch import Tensor

from flstudy.algorithms.parts.signatures import Layout, Rule, State
from flstudy.hyper import init_arguments

Parameters = TypeVar("Parameters")


def off(value: Any) -> bool:
    """Return whether a term is switched off: its hyper-parameter is None or the Python number 0."""
    return value is None or (isinstance(value, int | float) and value == 0)


def traced(parameters: Parameters, like: Tensor) -> Parameters:
    """Return a copy of the method with real-valued hyper-parameters as tensors [] of ``like``'s type and device, so
    that one compiled step serves all values.

    Values of exactly 0 switch a term off and stay Python numbers. What the dataclass derives of its fields, it derives
    of tensors.
    """
    tensors = {
        name: like.new_full((), value)
        for name, value in init_arguments(parameters).items()
        if isinstance(value, float) and not off(value)
    }
    return dataclasses.replace(parameters, **tensors)  # type: ignore[type-var]


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
    """Scale g [n] down to at most ``norm`` in L2, as ``torch.nn.utils.clip_grad_norm_`` does; None leaves g alone."""
    if norm is None:
        return g
    return g * torch.clamp(norm / (g.norm() + 1e-6), max=1.0)


def adagrad_moment(v: Tensor, u: Tensor) -> Tensor:
    """Return v + u² [n]  (Reddi et al. 2021, Alg. 2, FedAdaGrad)."""
    return v + u**2


def adam_moment(v: Tensor, u: Tensor, beta2: float) -> Tensor:
    """Return β₂ v + (1 - β₂) u² [n]  (Reddi et al. 2021, Alg. 2, FedAdam)."""
    return beta2 * v + (1 - beta2) * u**2


def yogi_moment(v: Tensor, u: Tensor, beta2: float) -> Tensor:
    """Return v - (1 - β₂) u² sign(v - u²) [n]  (Reddi et al. 2021, Alg. 2, FedYogi); stays ≥ 0 when v does."""
    return v - (1 - beta2) * u**2 * torch.sign(v - u**2)
