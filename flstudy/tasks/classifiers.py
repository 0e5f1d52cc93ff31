"""Logistic regression, a multi-layer perceptron and a small CNN. Inputs of any shape are flattened where needed."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flstudy.tasks.penalty import penalty
from flstudy.tasks.task import Task


def positive(**sizes: int) -> None:
    """Raise ValueError for the first size below 1."""
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be ≥ 1, got {value}")


def projector(width: int, projection: int | None) -> tuple[list[nn.Module], int]:
    """Layers Linear(width, width), ReLU, Linear(width, projection) between a backbone and its classifier, as in MOON
    (Li et al. 2021, sec. 3.2), and what the classifier is given then; no layers without a projection."""
    if projection is None:
        return [], width
    positive(projection=projection)
    return [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection)], projection


class Logistic(Task):
    """Multinomial logistic regression, a convex task.

    Args:
        shape: shape of one input; a config leaves it out and gets the data set's.
        classes: number of labels; likewise.
        l1: λ of a penalty λ ‖x‖₁ on all parameters, ≥ 0.
        l2: λ of a penalty λ/2 ‖x‖², ≥ 0.
    """

    def __init__(self, shape: Sequence[int], classes: int, l1: float = 0.0, l2: float = 0.0) -> None:
        super().__init__()
        positive(classes=classes)
        self.regulariser = penalty("Logistic", l1, l2)
        self.linear = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        return self.linear(x.flatten(1))


class Mlp(Task):
    """A multi-layer perceptron with ReLU; one hidden layer is FLASH's "2 layer fully connected model".

    Args:
        shape: shape of one input; a config leaves it out and gets the data set's.
        classes: number of labels; likewise.
        hidden: width of the hidden layers, ≥ 1.
        layers: number of hidden layers, ≥ 1.
        projection: width of a projection head before the classifier, of two more dense layers, ≥ 1; null has none.
        l1: λ of a penalty λ ‖x‖₁ on all parameters, ≥ 0.
        l2: λ of a penalty λ/2 ‖x‖², ≥ 0.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        hidden: int = 64,
        layers: int = 1,
        projection: int | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        self.regulariser = penalty("Mlp", l1, l2)
        positive(classes=classes, hidden=hidden, layers=layers)
        widths = [math.prod(shape)] + [hidden] * layers
        blocks: list[nn.Module] = [nn.Flatten()]
        for width, following in itertools.pairwise(widths):
            blocks += [nn.Linear(width, following), nn.ReLU()]
        head, width = projector(hidden, projection)
        self.network = nn.Sequential(*blocks, *head, nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        return self.network(x)

    def features(self, x: Tensor) -> Tensor:
        """Representations [B, hidden or projection], which the last layer classifies."""
        return self.network[:-1](x)


class Cnn(Task):
    """Two 3×3 convolutions, each followed by ReLU, the second by 2×2 pooling, and a dense layer: the
    EMNIST model of Reddi et al. 2021 (App. C.2), whose 1,206,590 parameters for 62 classes are the defaults'. Its
    dropout is ``[0.25, 0.5]``; what is dropped differs between executors, so that they then agree on average only.

    Args:
        shape: (channels, height, width) of one input; a config leaves it out and gets the data set's.
        classes: number of labels; likewise.
        channels: feature maps of the two convolutions, each ≥ 1.
        dense: width of the dense layer, ≥ 1.
        dropout: shares dropped while training after pooling and after the dense layer, each in [0, 1).
        projection: width of a projection head before the classifier, of two more dense layers, ≥ 1; null has none.
        l1: λ of a penalty λ ‖x‖₁ on all parameters, ≥ 0.
        l2: λ of a penalty λ/2 ‖x‖², ≥ 0.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        channels: tuple[int, int] = (32, 64),
        dense: int = 128,
        dropout: tuple[float, float] = (0.0, 0.0),
        projection: int | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        self.regulariser = penalty("Cnn", l1, l2)
        positive(classes=classes, dense=dense, **{f"channels[{i}]": width for i, width in enumerate(channels)})
        if len(shape) != 3 or min(shape[1:]) < 6:
            raise ValueError(f"Cnn: shape must be (channels, height ≥ 6, width ≥ 6), got {tuple(shape)}; use Mlp")
        if not all(0 <= share < 1 for share in dropout):
            raise ValueError(f"Cnn: dropout must hold two shares in [0, 1), got {tuple(dropout)}")
        early, late = ([nn.Dropout(share)] if share else [] for share in dropout)  # without dropout nothing is drawn
        first, second = channels
        self.backbone = nn.Sequential(
            nn.Conv2d(shape[0], first, 3),
            nn.ReLU(),
            nn.Conv2d(first, second, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            *early,
        )
        with torch.no_grad():
            width = self.backbone(torch.zeros(1, *shape)).shape[1]
        head, last = projector(dense, projection)
        self.head = nn.Sequential(nn.Linear(width, dense), nn.ReLU(), *late, *head, nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, classes]."""
        return self.head(self.backbone(x))

    def features(self, x: Tensor) -> Tensor:
        """Representations [B, dense or projection], which the last layer classifies."""
        return self.head[:-1](self.backbone(x))
