"""Modules that a user might name by class path."""

import lightning as L
import torch
from torch import Tensor


class Ridge(L.LightningModule):
    """Only a training_step and a forward."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.linear(x.flatten(1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean loss."""
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss


class Lossless(L.LightningModule):
    """No loss at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
