"""SGD, Adam and AdamW of torch as functions of a flat vector, which can be mapped over devices and compiled.

    SGD:   u ← u + λ x;   b ← ρ b + (1 - κ) u   (b = u at first);   step = η b   (Nesterov: η (u + ρ b))
    Adam:  u ← u + λ x;   m ← β₁ m + (1 - β₁) u;   v ← β₂ v + (1 - β₂) u²
           step = η m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)      AdamW: λ is not in u, but step grows by η λ x

Groups of parameters make vectors of settings, and parameters that the optimizer does not hold have η = 0. Settings are
tensors, so that one compiled program serves all their values.

Laws: 20 steps are those of torch's own.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.signatures import Layout


class OptimizerState(NamedTuple):
    """State of a device's optimizer."""

    tensors: tuple[Tensor, ...]  # the optimizer's, of all parameters: [n] of a `FlatRule`, else as torch shapes them
    steps: Tensor  # [] taken by it
    before: Tensor  # [] local steps of earlier rounds
    per_epoch: Tensor  # [] of the device's data


def before_steps(tensors: Iterable[Tensor], like: Tensor) -> OptimizerState:
    """Return the state before the first step, with the optimizer's tensors [...]; its numbers [] are of ``like``'s
    type."""
    zero = like.new_zeros(())
    return OptimizerState(tuple(tensors), zero, zero, zero + 1)


class FlatRule(ABC):
    """Steps of an optimizer of torch, computed here.

    Args:
        optimizer: a plain one, `twin` says which.
        names: of its parameters, by id.
        layout: of the model.
    """

    moments = 0  # vectors [n] of its state

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str], layout: Layout) -> None:
        self.sizes = layout.sizes
        group_of = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
        self._groups = [group_of.get(name) for name in layout.names]
        self._made: dict[Any, Tensor] = {}

    def any(self, key: str) -> bool:
        """Return whether some group has this setting."""
        return any(group is not None and group[key] for group in self._groups)

    def told(self, x: Tensor, name: str, setting: Callable[[dict[str, Any]], float], nobody: float = 0.0) -> Tensor:
        """Return [] or, where groups differ, [n]: a setting of the groups, where the model x [n] is and in its
        precision; ``nobody`` where the optimizer holds no parameter."""
        key = name, x.dtype, x.device
        if key not in self._made:
            values = [nobody if group is None else float(setting(group)) for group in self._groups]
            exact = torch.tensor(values, dtype=torch.float64)
            whole = exact[0] if len(set(values)) == 1 else exact.repeat_interleave(torch.tensor(self.sizes))
            self._made[key] = whole.to(x.dtype).to(x.device)
        return self._made[key]

    def init(self, x: Tensor, layout: Layout) -> OptimizerState:
        """Return the state before the first step from x [n]."""
        self.settings(x)  # made here, and not while a program is traced
        return before_steps((torch.zeros_like(x) for _ in range(self.moments)), x)

    @abstractmethod
    def settings(self, x: Tensor) -> dict[str, Tensor]:
        """Return all settings that `step` reads by name, each [] or [n] as `told` returns it for a model x [n]."""

    @abstractmethod
    def step(self, u: Tensor, tensors: tuple[Tensor, ...], t: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the step [n] number t [] (from 1) along a gradient u [n] at x [n], and the state's tensors [n] after
        it."""

    def update(self, u: Tensor, state: OptimizerState, x: Tensor, layout: Layout) -> tuple[Tensor, OptimizerState]:
        """Return the step from x [n] along a gradient u [n], which is subtracted."""
        t = state.steps + 1
        step, tensors = self.step(u, state.tensors, t, x)
        return step, state._replace(tensors=tensors, steps=t, before=state.before + 1)


class FlatSgd(FlatRule):
    """``torch.optim.SGD``."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str], layout: Layout) -> None:
        super().__init__(optimizer, names, layout)
        self.nesterov, self.decays = self.any("nesterov"), self.any("weight_decay")
        self.moments = int(self.any("momentum"))

    def settings(self, x: Tensor) -> dict[str, Tensor]:
        values = {"lr": self.told(x, "lr", lambda group: group["lr"])}
        if self.decays:
            values["decay"] = self.told(x, "decay", lambda group: group["weight_decay"])
        if self.moments:
            values["momentum"] = self.told(x, "momentum", lambda group: group["momentum"])
            values["kept"] = self.told(x, "kept", lambda group: 1 - group["dampening"] * bool(group["momentum"]))
        return values

    def step(self, u: Tensor, tensors: tuple[Tensor, ...], t: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        settings = self.settings(x)
        if self.decays:
            u = u + settings["decay"] * x
        if not self.moments:
            return settings["lr"] * u, ()
        b = torch.where(t == 1, u, settings["momentum"] * tensors[0] + settings["kept"] * u)
        return settings["lr"] * (u + settings["momentum"] * b if self.nesterov else b), (b,)


class FlatAdam(FlatRule):
    """``torch.optim.Adam`` and ``AdamW``."""

    moments = 2

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str], layout: Layout) -> None:
        super().__init__(optimizer, names, layout)
        self.decays, self.decoupled = self.any("weight_decay"), self.any("decoupled_weight_decay")

    def settings(self, x: Tensor) -> dict[str, Tensor]:
        values = {"lr": self.told(x, "lr", lambda group: group["lr"])}
        values["eps"] = self.told(x, "eps", lambda group: group["eps"], nobody=1.0)
        for k in (0, 1):
            values[f"beta{k}"] = self.told(x, f"beta{k}", partial(beta_of, k))
            values[f"rest{k}"] = self.told(x, f"rest{k}", partial(rest_of, k))
            values[f"log{k}"] = self.told(x, f"log{k}", partial(logarithm_of, k), nobody=-1.0)
        if self.decays:
            values["decay"] = self.told(x, "decay", lambda group: group["weight_decay"])
        return values

    def step(self, u: Tensor, tensors: tuple[Tensor, ...], t: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        settings, (m, v) = self.settings(x), tensors
        if self.decays and not self.decoupled:
            u = u + settings["decay"] * x
        m = settings["beta0"] * m + settings["rest0"] * u
        v = settings["beta1"] * v + settings["rest1"] * u**2
        first, second = (-torch.expm1(t * settings[f"log{k}"]) for k in (0, 1))  # 1 - βᵗ
        step = settings["lr"] / first * m / (v.sqrt() / second.sqrt() + settings["eps"])
        if self.decays and self.decoupled:
            step = step + settings["lr"] * settings["decay"] * x
        return step, (m, v)


def beta_of(k: int, group: dict[str, Any]) -> float:
    """Return β of the first moment (0) or the second (1)."""
    return float(group["betas"][k])


def rest_of(k: int, group: dict[str, Any]) -> float:
    """Return 1 - β."""
    return 1 - beta_of(k, group)


def logarithm_of(k: int, group: dict[str, Any]) -> float:
    """Return log β; -∞ for β = 0."""
    beta = beta_of(k, group)
    return math.log(beta) if beta > 0 else -math.inf


def twin(optimizer: torch.optim.Optimizer, names: Mapping[int, str], layout: Layout) -> FlatRule | None:
    """Return the optimizer as functions of flat vectors; None for one that is not written down here."""
    kind = type(optimizer)
    kinds: dict[type, Callable[..., FlatRule]] = {
        torch.optim.SGD: FlatSgd,
        torch.optim.Adam: FlatAdam,
        torch.optim.AdamW: FlatAdam,
    }
    groups = optimizer.param_groups
    settings = [value for group in groups for key, value in group.items() if key != "params"]
    plain = not any(
        isinstance(part, Tensor) for value in settings for part in ([*value] if type(value) is tuple else [value])
    )
    alike = all(len({bool(group.get(key)) for group in groups}) == 1 for key in ("nesterov", "decoupled_weight_decay"))
    switched = any(group.get(key) for group in groups for key in ("maximize", "amsgrad"))
    if kind not in kinds or not plain or not alike or switched:
        return None
    return kinds[kind](optimizer, names, layout)
