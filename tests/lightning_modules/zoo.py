"""Modules as people write them, each with something that only Lightning's own loop was sure to follow.

None of them knows flstudy. Inputs are [B, 16]; labels are 0 … 2.
"""

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from .modules import CLASSES, FEATURES, LitBatchNorm, LitClassifier, LitDropout, LitGan


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


# ---- rounds, steps and batches ---------------------------------------------------------------------------------------


class LitAnnealed(LitClassifier):
    """A penalty that rises over epochs."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + 0.01 * (1 + self.current_epoch) * self.l1.weight.square().sum()


class LitWarmUp(LitClassifier):
    """A loss that rises over steps."""

    def training_step(self, batch, batch_idx):
        return min(1.0, (1 + self.global_step) / 5) * super().training_step(batch, batch_idx)


class LitEveryOther(LitClassifier):
    """A penalty on every other batch."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss + 0.1 * self.l1.weight.square().sum() if batch_idx % 2 else loss


class LitPassesOn(LitClassifier):
    """The number of the batch is handed on, and nobody looks at it."""

    def training_step(self, batch, batch_idx):
        return self._shared(batch, batch_idx, "train")

    def _shared(self, batch, batch_idx, stage):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log(f"{stage}_loss", loss)
        return loss


class LitAsksTrainer(LitClassifier):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / self.trainer.num_training_batches


class LitMetricInLoss(LitClassifier):
    """What a torchmetric says of a batch weighs its loss."""

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        return F.cross_entropy(logits, y) * (2 - self.accuracy(logits, y))


# ---- state -----------------------------------------------------------------------------------------------------------


class LitAssignedBuffer(LitClassifier):
    """A running mean that is assigned anew in each step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x):
        return super().forward(x - self.mean)

    def training_step(self, batch, batch_idx):
        self.mean = 0.5 * self.mean + 0.5 * batch[0].mean(0).detach()
        return super().training_step(batch, batch_idx)


class LitBufferInPlace(LitAssignedBuffer):
    """A running mean that is changed in place."""

    def training_step(self, batch, batch_idx):
        self.mean.mul_(0.5).add_(0.5 * batch[0].mean(0).detach())
        return LitClassifier.training_step(self, batch, batch_idx)


class LitAssignedAfter(LitAssignedBuffer):
    """A running mean that no loss looks at."""

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(LitClassifier.forward(self, batch[0]), batch[1])
        self.mean = 0.5 * self.mean + 0.5 * batch[0].mean(0)
        return loss


class LitCounts(LitClassifier):
    """An attribute counts examples, and the loss looks at it."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def training_step(self, batch, batch_idx):
        self.seen += len(batch[1])
        return super().training_step(batch, batch_idx) / (1 + 0.1 * self.seen)


class LitSetUp(LitClassifier):
    """Its layers are made by the hooks for that."""

    def __init__(self):
        super().__init__()
        self.l1 = self.l2 = None

    def setup(self, stage):
        self.l1 = nn.Linear(FEATURES, 12, dtype=torch.float64)

    def configure_model(self):
        if self.l2 is None:
            self.l2 = nn.Linear(12, CLASSES, dtype=torch.float64)


# ---- hooks of training -----------------------------------------------------------------------------------------------


class LitMaskedGradient(LitClassifier):
    def on_after_backward(self):
        self.l1.weight.grad[::2] = 0


class LitClips(LitClassifier):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class LitBeforeStep(LitClassifier):
    def on_before_optimizer_step(self, optimizer):
        self.l1.bias.grad.zero_()


class LitBackward(LitClassifier):
    def backward(self, loss):
        (0.5 * loss).backward()


class LitOptimizerStep(LitClassifier):
    """Rates that rise over a fit's steps, as in Lightning's page on optimizers."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + self.trainer.global_step)


class LitFreezesAtStart(LitClassifier):
    def on_train_epoch_start(self):
        self.l1.bias.requires_grad_(False)


class LitBoundWeights(LitClassifier):
    """Weights that are bounded after each step, as a Wasserstein critic's."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(-0.2, 0.2)


class LitBoundAtEnd(LitClassifier):
    def on_train_end(self):
        with torch.no_grad():
            self.l2.weight.clamp_(-0.1, 0.1)


class LitStartsElsewhere(LitClassifier):
    def on_train_start(self):
        with torch.no_grad():
            self.l2.weight.mul_(0.5)


class LitAverages(LitClassifier):
    """An exponential mean of the weights, by hook."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros_like(self.l1.weight))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.ema.lerp_(self.l1.weight.detach(), 0.1)


class LitSkips(LitClassifier):
    """Every third batch is left out."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 2 else None


# ---- hooks of batches ------------------------------------------------------------------------------------------------


class LitTransforms(LitClassifier):
    """Inputs that are changed before and after they come to a device."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x + 1, y

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        x, y = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return 2 * x, y

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x - 3 * x.mean(1, keepdim=True), y


class LitTransformsAlone(LitTransforms):
    """Losses of single examples, after the same hooks."""

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


# ---- sequences -------------------------------------------------------------------------------------------------------


class LitTagger(LitClassifier):
    """Tags of the positions of a sequence, by an LSTM that reads it from both sides."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x):
        states, _ = self.lstm(x.unflatten(1, (4, 4)))
        return self.head(states)

    def loss(self, batch):
        x, y = batch
        tags = (y[:, None] + torch.arange(4)) % CLASSES
        return F.cross_entropy(self(x).flatten(0, 1), tags.flatten())

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


class LitForecaster(LitClassifier):
    """The next value of a series, by a GRU whose last state is decoded."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 6, num_layers=2)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        _, last = self.gru(x.T.unsqueeze(-1))
        return self.head(last[-1]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        return F.mse_loss(self(x[:, :-1]), x[:, -1])

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        self.log("val_loss", F.mse_loss(self(x[:, :-1]), x[:, -1]))


class LitPacked(LitClassifier):
    """Sequences of unequal lengths, packed."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, CLASSES, batch_first=True)

    def forward(self, x):
        lengths = 1 + (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
        packed = nn.utils.rnn.pack_padded_sequence(
            x.unflatten(1, (4, 4)), lengths, batch_first=True, enforce_sorted=False
        )
        return self.lstm(packed)[1][0][-1]


# ---- architectures ---------------------------------------------------------------------------------------------------


class LitTransformer(LitClassifier):
    """A transformer over four tokens."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.place = nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        return super().forward(self.encoder(x.unflatten(1, (4, 4)) + self.place).flatten(1))


class LitUNet(LitClassifier):
    """A U-Net that restores an image of 4 × 4 pixels."""

    def __init__(self):
        super().__init__()
        self.down, self.bottom = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(6, 3, 2, stride=2), nn.Conv2d(6, 1, 3, padding=1)

    def restored(self, x):
        high = torch.relu(self.down(x))
        low = torch.relu(self.bottom(F.max_pool2d(high, 2)))
        return self.out(torch.cat([high, self.up(low)], 1))

    def training_step(self, batch, batch_idx):
        image = batch[0].unflatten(1, (1, 4, 4))
        return F.mse_loss(self.restored(image.flip(2)), image)


class LitVae(LitClassifier):
    """A variational autoencoder whose divergence counts more from epoch to epoch; its noise is always the same."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 6), nn.Linear(3, FEATURES)
        self.register_buffer("noise", torch.randn(64, 3))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        mean, log_variance = self.encoder(x).chunk(2, 1)
        restored = self.decoder(mean + torch.exp(0.5 * log_variance) * self.noise[: len(x)])
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.mse_loss(restored, x) + min(1.0, (1 + self.current_epoch) / 10) * divergence


class LitFixedGan(LitGan):
    """Two players with an optimizer each, whose generator always meets the same noise."""

    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.randn(64, 4))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        generators, discriminators = self.optimizers()
        real = torch.ones(len(x), 1, dtype=x.dtype)
        generated = self(self.noise[: len(x)])
        for optimizer, loss in (
            (generators, F.binary_cross_entropy_with_logits(self.discriminator(generated), real)),
            (discriminators, F.binary_cross_entropy_with_logits(self.discriminator(x), real)),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss, retain_graph=True)
            optimizer.step()


class LitWeightNorm(LitClassifier):
    def __init__(self):
        super().__init__()
        self.l1 = weight_norm(self.l1)


class LitSpectralNorm(LitClassifier):
    """A layer whose largest singular value is followed by a step of power iteration in each forward."""

    def __init__(self):
        super().__init__()
        self.l1 = spectral_norm(self.l1)


class LitGroupNorm(LitClassifier):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(3, 12)

    def forward(self, x):
        return self.l2(torch.relu(self.norm(self.l1(x))))


class LitBatchStatistics(LitBatchNorm):
    """BatchNorm that takes each batch's statistics and keeps none."""

    def __init__(self):
        super().__init__()
        self.l1[2] = nn.BatchNorm2d(4, track_running_stats=False)


class LitCheckpointing(LitClassifier):
    """Activations that are computed again on the way back."""

    def forward(self, x):
        return self.l2(checkpoint(lambda x: torch.relu(self.l1(x)), x, use_reentrant=False))


class LitLora(LitClassifier):
    """A frozen layer with an update of low rank (Hu et al. 2022)."""

    def __init__(self):
        super().__init__()
        self.l1.requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, FEATURES) / 4), nn.Parameter(torch.zeros(12, 2))

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x) + x @ self.down.T @ self.up.T))


class LitFreezesBackbone(LitClassifier):
    """A backbone without gradients, whose features are computed in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES)).requires_grad_(False)

    def forward(self, x):
        self.backbone.eval()
        with torch.no_grad():
            x = self.backbone(x)
        return super().forward(x)


class LitTwoOptimizers(LitClassifier):
    """A head that takes two steps for each one of the body, by optimizers of their own."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        body, head = self.optimizers()
        for optimizer in (head, head, body):
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self(x), y))
            optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.l1.parameters(), lr=0.1), torch.optim.AdamW(self.l2.parameters(), lr=0.01)


class LitSteppedRate(LitClassifier):
    """A rate that falls after every step."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class LitFallingRate(LitClassifier):
    """A rate that falls after every epoch, of two groups of parameters."""

    def configure_optimizers(self):
        groups = [{"params": self.l1.parameters(), "lr": 0.05}, {"params": self.l2.parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class LitNoDropout(LitDropout):
    """Dropout of nothing."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.l2(self.drop(F.dropout(torch.relu(self.l1(x)), 0.0, training=self.training)))


class LitSameMask(LitDropout):
    """Dropout whose mask is always the same."""

    def training_step(self, batch, batch_idx):
        torch.manual_seed(7)
        return super().training_step(batch, batch_idx)


class LitNestedBatch(LitClassifier):
    """Batches of mappings in mappings, and tuples."""

    def training_step(self, batch, batch_idx):
        values, scale = batch["inputs"]
        return F.cross_entropy(self(values * scale), batch["target"]["label"])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))


class LitTuples(LitClassifier):
    """Batches of three values, of which one weighs the examples."""

    def training_step(self, batch, batch_idx):
        x, weight, y = batch
        return (weight * F.cross_entropy(self(x), y, reduction="none")).sum() / weight.sum()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))
