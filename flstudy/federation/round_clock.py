"""Optimizer of a coordinator, which counts rounds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RoundClock(torch.optim.Optimizer):
    """Optimizer that is stepped once per round. Lightning's ``global_step`` counts optimizer steps, and ModelCheckpoint
    silently writes nothing while it stands at 0; the coordinator's own mathematics needs no torch optimizer."""

    derived = True  # configs do not list it among torch's optimizers

    def __init__(self, parameter: Tensor, lr: float) -> None:
        super().__init__([parameter], {"lr": lr})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # an earlier flstudy's checkpoint has none
            group.setdefault("lr", self.defaults["lr"])

    def tell(self, lr: float) -> None:
        """Set the devices' learning rate in the next round, for callbacks that ask the optimizer."""
        for group in self.param_groups:
            group["lr"] = lr

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Count a round; nothing is updated."""
