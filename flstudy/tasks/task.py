"""Base classes of flstudy's own tasks: classification with per-example losses, penalties and projection heads."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Penalty(NamedTuple):
    """Penalty l1 ‖x‖₁ + l2/2 ‖x‖² on all trained parameters x, biases too.

    Ganguly & Aggarwal 2024, eq. (39), print λ/2 ‖x‖₂, a norm that is not squared, under the name of L1
    regularisation, and say that FedNova and FedProx use L2; these are the two that carry those names.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __bool__(self) -> bool:
        """Return whether there is a penalty, which is where l1 or l2 exceeds 0."""
        return self.l1 > 0 or self.l2 > 0

    def __call__(self, parameters: Iterable[Tensor]) -> Tensor:
        """Return the penalty [] on parameters, one tensor or more; a part with l1 or l2 of 0 is not computed."""
        terms = []
        for x in parameters:
            if self.l1 > 0:
                terms.append(self.l1 * x.abs().sum())
            if self.l2 > 0:
                terms.append(self.l2 / 2 * (x * x).sum())
        return torch.stack(terms).sum()


class Task(L.LightningModule):
    """Classifier: ``forward(x [B, ...]) -> logits [B, classes]``; batches are (x, y) as in any Lightning module.

    Executors ask for ``example_losses`` (per example, so that padding can be masked and validation losses weighed)
    and ``example_correct`` (for accuracies). A user's own LightningModule needs no base class: the first of these,
    or else its ``training_step``, is enough. Methods that compare representations, such as Moon, also ask for
    ``features(x) -> [B, d]``. A task whose first layers are frozen may set ``embeds`` and define ``embed(x) -> z``,
    these layers' outputs: they are computed once for every example, and all other methods are given z in place of x.

    A task with a ``regulariser`` trains on the mean loss of its examples plus that penalty, whatever the executor, so
    that ``train/loss`` holds it. Measures of single examples do not: ``valid/loss``, ``test/loss``, the
    surveys of methods that ask for losses, and the losses by which devices stop early.
    """

    regulariser: Penalty = Penalty()
    """Penalty on the trained parameters; a user's own LightningModule may have one, too."""

    def example_losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the cross-entropy [B] of each example."""
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="none")

    def example_correct(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B]: 1 where the most likely label is the right one."""
        x, y = batch
        return (self(x).argmax(-1) == y).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the mean loss [] of a batch (x [B, ...], y [B, ...]), with the penalty: what the trainer executor
        optimises."""
        loss = self.example_losses(batch).mean()
        return loss + self.regulariser(p for p in self.parameters() if p.requires_grad) if self.regulariser else loss


class HeadedTask(Task, ABC):
    """A classifier whose ``head`` ends with a dense layer, which is given the task's representations."""

    head: nn.Sequential

    @abstractmethod
    def body(self, x: Tensor) -> Tensor:
        """Return the inputs [B, d] of the head, for inputs x [B, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of inputs x [B, ...]."""
        return self.head(self.body(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the representations [B, d] of inputs x [B, ...], which the last layer classifies."""
        return self.head[:-1](self.body(x))


def projector(width: int, projection: int | None) -> tuple[list[nn.Module], int]:
    """Return the layers Linear(width, width), ReLU, Linear(width, projection) between a backbone and its classifier, as
    in MOON (Li et al. 2021, sec. 3.2), and the width of the classifier's input then; no layers without a projection."""
    if projection is None:
        return [], width
    return [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection)], projection
