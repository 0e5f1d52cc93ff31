"""Small models: logistic regression, a multi-layer perceptron, and a quadratic with noise in its gradient."""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from flstudy.hyper import checked
from flstudy.tasks.task import Penalty, Task, projector


class Logistic(Task):
    """Multinomial logistic regression, a convex task.

    Args:
        shape: shape of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        l1: λ of a penalty λ ‖x‖₁ on all parameters.
        l2: λ of a penalty λ/2 ‖x‖².
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        l1: Annotated[float, "[0, 1e12]"] = 0.0,
        l2: Annotated[float, "[0, 1e12]"] = 0.0,
    ) -> None:
        super().__init__()
        self.regulariser = Penalty(l1, l2)
        self.linear = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of inputs x [B, ...]."""
        return self.linear(x.flatten(1))

    def features(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes], which no layer comes before; Chang et al.'s code lets MOON compare them."""
        return self(x)


class Mlp(Task):
    """Multi-layer perceptron with ReLU; one hidden layer is FLASH's "2 layer fully connected model".

    Args:
        shape: shape of one input; a config leaves it out and gets the data set's.
        classes: number of labels; a config leaves it out, too.
        hidden: width of the hidden layers.
        layers: number of hidden layers.
        projection: width of a projection head before the classifier, of two more dense layers; null has none.
        l1: λ of a penalty λ ‖x‖₁ on all parameters.
        l2: λ of a penalty λ/2 ‖x‖².
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        hidden: Annotated[int, "[1, 1e5]"] = 64,
        layers: Annotated[int, "[1, 1e3]"] = 1,
        projection: Annotated[int | None, "[1, 1e5]"] = None,
        l1: Annotated[float, "[0, 1e12]"] = 0.0,
        l2: Annotated[float, "[0, 1e12]"] = 0.0,
    ) -> None:
        super().__init__()
        self.regulariser = Penalty(l1, l2)
        widths = [math.prod(shape)] + [hidden] * layers
        blocks: list[nn.Module] = [nn.Flatten()]
        for width, following in itertools.pairwise(widths):
            blocks += [nn.Linear(width, following), nn.ReLU()]
        head, width = projector(hidden, projection)
        self.network = nn.Sequential(*blocks, *head, nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, classes] of inputs x [B, ...]."""
        return self.network(x)

    def features(self, x: Tensor) -> Tensor:
        """Return the representations [B, hidden or projection] of x [B, ...], which the last layer classifies."""
        return self.network[:-1](x)


class Quadratic(Task):
    """Noisy quadratic of FedAda² (Lee et al. 2024, App. A): F(w, ξ) = ½ ‖w‖² + ⟨ξ, w⟩ for inputs ξ. Its expectation is
    ½ ‖w‖² where ξ has mean 0, its optimum w* = 0. In evaluation mode the loss is the expected one, so that
    ``valid/loss`` is ½ ‖w - w*‖². For accuracy an example counts as right where w is ``near`` w*.

    Args:
        shape: shape of w and of one ξ; a config leaves it out and gets the data set's.
        start: every coordinate of the first w.
        near: distance from w* that counts as right.
    """

    @checked
    def __init__(self, shape: Sequence[int], start: float = 1.0, near: Annotated[float, "(0, 1e12]"] = 1.0) -> None:
        super().__init__()
        self.near = near
        self.w = nn.Parameter(torch.full(tuple(shape), float(start)))

    def example_losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the losses [B] of ξ [B, *shape]."""
        noise, w = batch[0].flatten(1), self.w.flatten()
        expected = (w * w).sum() / 2 + torch.zeros_like(noise[:, 0])
        return expected + noise @ w if self.training else expected

    def example_correct(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B]: 1 where ‖w - w*‖ ≤ ``near``."""
        noise = batch[0].flatten(1)[:, 0]
        return ((self.w * self.w).sum() <= self.near**2).to(noise.dtype) + torch.zeros_like(noise)
