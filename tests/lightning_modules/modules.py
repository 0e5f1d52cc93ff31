"""Modules as Lightning's documentation writes them: none of them knows flstudy. Inputs are [B, 16], labels 0 … 2 or,
for regressions, numbers."""

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

FEATURES, CLASSES = 16, 3


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        self.decoder = nn.Sequential(nn.Linear(CLASSES, 8), nn.ReLU(), nn.Linear(8, FEATURES))

    def forward(self, x):  # an embedding, as wide as there are classes
        return self.encoder(x)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class LitClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(FEATURES, 12)
        self.l2 = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", (logits.argmax(dim=1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LitRegression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mae", F.l1_loss(self(x), y))

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_mae", F.l1_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class LitBatchNorm(LitClassifier):
    """A CNN with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.l1 = nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)),
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.l2 = nn.Linear(64, CLASSES)


class LitDropout(LitClassifier):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        hidden = F.dropout(torch.relu(self.l1(x)), 0.1, training=self.training)
        return self.l2(self.drop(hidden))


class LitScheduler(LitClassifier):
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


class LitTorchMetrics(LitClassifier):
    def __init__(self):
        super().__init__()
        self.train_acc = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.valid_acc = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        several = torchmetrics.MetricCollection(
            [
                torchmetrics.Precision(task="multiclass", num_classes=CLASSES, average="macro"),
                torchmetrics.Recall(task="multiclass", num_classes=CLASSES, average="macro"),
            ]
        )
        self.train_several, self.valid_several = several.clone(prefix="train_"), several.clone(prefix="val_")

    def training_step(self, batch, batch_idx):
        x, y = batch
        preds = self(x)
        loss = F.cross_entropy(preds, y)
        self.train_acc(preds, y)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=False)
        self.log_dict(self.train_several(preds, y))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.valid_acc(logits, y)
        self.log("valid_acc", self.valid_acc, on_step=True, on_epoch=True)
        self.valid_several.update(logits, y)

    def on_validation_epoch_end(self):
        self.log_dict(self.valid_several.compute())
        self.valid_several.reset()


class LitFrozen(LitClassifier):
    """Transfer learning: the backbone is frozen."""

    def __init__(self):
        super().__init__()
        for parameter in self.l1.parameters():
            parameter.requires_grad = False


class LitTied(L.LightningModule):
    """The decoder is the encoder's matrix, transposed by hand; and one layer is there under two names."""

    def __init__(self):
        super().__init__()
        self.down = nn.Linear(FEATURES, FEATURES, bias=False)
        self.up = nn.Linear(FEATURES, FEATURES, bias=False)
        self.up.weight = self.down.weight

    def training_step(self, batch, batch_idx):
        x, _ = batch
        loss = F.mse_loss(self.up(torch.tanh(self.down(x))), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        self.log("val_loss", F.mse_loss(self.up(torch.tanh(self.down(x))), x))


class LitDictBatch(LitClassifier):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["values"] * batch["mask"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        logits = self(batch["values"] * batch["mask"])
        assert batch["mask"].dtype == torch.int64
        self.log("val_acc", (logits.argmax(1) == batch["label"]).float().mean(), batch_size=len(batch["label"]))


class LitSeveralLoaders(LitClassifier):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        self.log(f"val_loss_{dataloader_idx}", F.cross_entropy(self(x), y), add_dataloader_idx=False)


class LitDictReturn(LitClassifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        preds = self(x)
        return {"loss": F.cross_entropy(preds, y), "preds": preds.detach(), "targets": y}


class LitLogDict(LitClassifier):
    def validation_step(self, batch, batch_idx):
        self.log_dict(self._shared(batch))

    def test_step(self, batch, batch_idx):
        self.log_dict(self._shared(batch))

    def _shared(self, batch):
        x, y = batch
        logits = self(x)
        return {"ce": F.cross_entropy(logits, y), "acc": (logits.argmax(1) == y).float().mean()}


class LitNested(L.LightningModule):
    """Hyper-parameters that are saved, and a LightningModule in a LightningModule."""

    def __init__(self, width=8, classes=CLASSES, label_smoothing=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = LitAutoEncoder()
        self.head = nn.Linear(CLASSES, self.hparams.classes)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y, label_smoothing=self.hparams.label_smoothing)
        self.log("train/ce", loss, on_step=True)
        return loss + 1e-4 * sum((p**2).sum() for p in self.parameters())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/ce", F.cross_entropy(self(x), y))


class LitOutputs(LitClassifier):
    """Metrics of a whole epoch, from what its batches gave."""

    def __init__(self):
        super().__init__()
        self.validation_step_outputs = []

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.validation_step_outputs.append((self(x).argmax(1) == y).float())

    def on_validation_epoch_end(self):
        self.log("val_epoch_acc", torch.cat(self.validation_step_outputs).mean())
        self.validation_step_outputs.clear()


class LitItem(LitClassifier):
    """What it logs is taken out of the graph by ``item``, which no map over devices bears."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss.item())
        return loss


class LitGan(L.LightningModule):
    """Two players with an optimizer each, as in Lightning's page on manual optimisation."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(4, FEATURES)
        self.discriminator = nn.Sequential(nn.Linear(FEATURES, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        nn.init.constant_(self.generator.bias, 2.0)  # far from the data, whose mean is near 0

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        generators, discriminators = self.optimizers()
        real, fake = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        self.toggle_optimizer(generators)
        generated = self(torch.randn(len(x), 4))
        g_loss = F.binary_cross_entropy_with_logits(self.discriminator(generated), real)
        generators.zero_grad()
        self.manual_backward(g_loss)
        generators.step()
        self.untoggle_optimizer(generators)
        self.toggle_optimizer(discriminators)
        d_loss = F.binary_cross_entropy_with_logits(self.discriminator(x), real)
        d_loss = d_loss + F.binary_cross_entropy_with_logits(self.discriminator(generated.detach()), fake)
        discriminators.zero_grad()
        self.manual_backward(d_loss)
        discriminators.step()
        self.untoggle_optimizer(discriminators)
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss}, prog_bar=True)

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        self.log("val_gap", (self.generator.bias - x.mean(0)).norm())

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=0.02, betas=(0.5, 0.9)),
            torch.optim.Adam(self.discriminator.parameters(), lr=0.02, betas=(0.5, 0.9)),
        )
