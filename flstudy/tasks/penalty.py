"""What a model's size costs while it trains."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Penalty(NamedTuple):
    """l1 ‖x‖₁ + l2/2 ‖x‖² of all trained parameters x, biases too.

    Ganguly & Aggarwal 2024, eq. (39), print λ/2 ‖x‖₂, a norm that is not squared, under the name of L1
    regularisation, and say that FedNova and FedProx use L2; these are the two that carry those names.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __bool__(self) -> bool:
        """Whether anything is asked of a model."""
        return self.l1 > 0 or self.l2 > 0

    def __call__(self, parameters: Iterable[Tensor]) -> Tensor:
        """[]: of parameters, one tensor or more; a part that is 0 is not computed."""
        terms = []
        for x in parameters:
            if self.l1 > 0:
                terms.append(self.l1 * x.abs().sum())
            if self.l2 > 0:
                terms.append(self.l2 / 2 * (x * x).sum())
        return torch.stack(terms).sum()


def penalty(task: str, l1: float, l2: float) -> Penalty:
    """Checked.

    Raises:
        ValueError: for a negative or infinite one.
    """
    for name, value in {"l1": l1, "l2": l2}.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{task}: {name} must be ≥ 0, got {value}")
    return Penalty(l1, l2)
