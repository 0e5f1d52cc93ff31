"""Early stopping of devices (FLASH, Panchal et al. 2023, Alg. 1 line 7), an option of every method."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When a device has trained enough: by the loss on its own validation examples."""

    gamma: float | None = hyper(None, "[0, inf)")
    """γ of FLASH's early stopping, Alg. 1 line 7: after epoch e go on only if the validation loss fell by at least
    γ/e; null trains all epochs. Experience: .03 to .05 with mean losses."""
    first_epoch: Literal["inf", "eval_received"] = "inf"
    """Validation loss before epoch 1: infinite (the first test always passes), or that of the received model."""
    valid_loss: Literal["mean", "sum"] = "mean"
    """Over the device's validation examples; line 9 prints a sum, with which the γ of the paper would never stop."""

    def goes_on(self, epoch: Tensor, previous: Tensor, current: Tensor) -> Tensor:
        """Whether a device trains on after ``epoch`` (from 1), given its validation losses (FLASH, Alg. 1 line 7)."""
        assert self.gamma is not None
        return previous - current >= self.gamma / epoch
