"""Modules whose loss of a batch is its own, as people write them: none of them knows flstudy.

Inputs are [B, 16]; labels are 0 … 2.
"""

import torch
from torch import nn
from torch.nn import functional as F

from .modules import CLASSES, FEATURES, LitClassifier


class LitClassWeights(LitClassifier):
    """Classes that count differently: the mean is one of weights, and a batch of one class knows none."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y, weight=torch.tensor([1.0, 20.0, 5.0], dtype=x.dtype))


class LitIgnoreIndex(LitClassifier):
    """Labels that do not count, of which a batch may hold nothing else."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), torch.where(x[:, 0] > 0.5, -100, y), ignore_index=-100)


class LitSum(LitClassifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="sum") / 4


class LitContrastive(LitClassifier):
    """Supervised contrastive loss (Khosla et al. 2020): each example against all others of its batch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = F.normalize(self(x), dim=1)
        others = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
        likeness = (z @ z.T / 0.5).masked_fill(~others, -1e9)
        alike = (y[:, None] == y) & others
        positives = -(likeness - torch.logsumexp(likeness, 1, keepdim=True)) * alike
        return (positives.sum(1) / alike.sum(1).clamp(min=1)).mean()


class LitTriplet(LitClassifier):
    """Triplets of neighbours within a batch."""

    def training_step(self, batch, batch_idx):
        z = self(batch[0])
        return F.triplet_margin_loss(z, z.roll(1, 0), z.roll(2, 0))


class LitMixup(LitClassifier):
    """Each example mixed with another one of its batch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(0.7 * x + 0.3 * x.flip(0))
        return 0.7 * F.cross_entropy(logits, y) + 0.3 * F.cross_entropy(logits, y.flip(0))


class LitAuc(LitClassifier):
    """A smooth area under the curve: every pair of a positive and a negative example of the batch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        score, positive = self(x)[:, 0], (y == 0).to(x.dtype)
        pairs = positive[:, None] * (1 - positive)
        return (torch.sigmoid(score - score[:, None]) * pairs).sum() / pairs.sum().clamp(min=1)


class LitFocal(LitClassifier):
    """Focal loss (Lin et al. 2017), normalised by the confidence of the whole batch."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        weights = (1 - torch.exp(-losses)) ** 2
        return (weights * losses).sum() / weights.sum()


class LitCentred(LitClassifier):
    def forward(self, x):
        return super().forward(x - x.mean(0, keepdim=True))


class LitDecorrelated(LitClassifier):
    """A penalty on the covariance of a batch's representations."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = torch.relu(self.l1(x))
        hidden = hidden - hidden.mean(0)
        return F.cross_entropy(self.l2(hidden), y) + 0.01 * (hidden.T @ hidden / len(y)).square().sum()


class LitMultiTask(LitClassifier):
    """Two heads, weighed by parameters of their own (Kendall et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(12, 1)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = torch.relu(self.l1(x))
        losses = torch.stack([F.cross_entropy(self.l2(hidden), y), F.mse_loss(self.second(hidden).squeeze(1), x[:, 0])])
        return (torch.exp(-self.log_variances) * losses + self.log_variances).sum()


class LitBare(LitClassifier):
    """Parameters without a layer."""

    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(FEATURES, CLASSES) / 4), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x):
        return x @ self.w + self.b + 0 * super().forward(x)


class LitDataDependent(LitClassifier):
    """Python looks at the batch before it knows what to do."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        if (logits.argmax(1) == y).float().mean() > 0.5:
            return F.cross_entropy(logits, y, label_smoothing=0.1)
        return F.cross_entropy(logits, y)
