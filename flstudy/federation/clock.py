"""The optimizer that only counts rounds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class RoundClock(torch.optim.Optimizer):
    """Stepped once per round. Lightning's ``global_step`` counts optimizer steps, and ModelCheckpoint silently writes
    nothing while it stands at 0; the coordinator's own mathematics needs no torch optimizer."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__([parameter], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Count a round; nothing is updated."""
