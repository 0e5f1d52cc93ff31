"""The base of flstudy's own tasks: classification with per-example losses."""

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F

from flstudy.tasks.penalty import Penalty


class Task(L.LightningModule):
    """A classifier: ``forward(x [B, ...]) -> logits [B, classes]``; batches are (x, y) as in any Lightning module.

    Executors ask for ``example_losses`` (per example, so that padding can be masked and validation losses weighed)
    and ``example_correct`` (for accuracies). A user's own LightningModule needs no base class: the first of these,
    or else its ``training_step``, is enough. Methods that compare representations, such as Moon, also ask for
    ``features(x) -> [B, d]``.

    A task with a ``regulariser`` trains on the mean loss of its examples plus that penalty, whatever the executor, so
    that ``train/loss`` holds it. What is measured of single examples does not: ``valid/loss``, ``test/loss``, the
    surveys of methods that ask for losses, and the losses by which devices stop early.
    """

    regulariser: Penalty = Penalty()
    """Of the trained parameters, as a user's own LightningModule may have one."""

    def example_losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy [B] of each example."""
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def example_correct(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """[B]: 1 where the most likely label is the right one."""
        x, y = batch
        return (self(x).argmax(-1) == y).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean loss, with the penalty: what the trainer executor optimises."""
        loss = self.example_losses(batch).mean()
        return loss + self.regulariser(p for p in self.parameters() if p.requires_grad) if self.regulariser else loss
