"""Checkpoints of a trial that is running, from which a resumed study goes on."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

if TYPE_CHECKING:
    from flstudy.study.records import RecordWriter


class Snapshots(Checkpoint):
    """Keeps the latest state of a trial in one file, written after the records that led to it.

    Args:
        writer: of the trial's records.
        path: the file; a reader sees the old one or the new one.
        every_s: seconds between two of them; a trial that is shorter writes none.
    """

    def __init__(self, writer: "RecordWriter", path: Path, every_s: float) -> None:
        self.writer, self.path, self.every_s = writer, path, every_s
        self._last = time.monotonic()
        self._trainer: L.Trainer | None = None

    def save(self, path: Path) -> None:
        """Write the state after the latest round somewhere else."""
        assert self._trainer is not None
        self.writer.flush()
        self._trainer.save_checkpoint(path)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Whose state it is."""
        self._trainer = trainer

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a round and its evaluation."""
        rounds = trainer.current_epoch + 1
        if trainer.should_stop or rounds == trainer.max_epochs or time.monotonic() - self._last < self.every_s:
            return
        hidden = self.path.with_suffix(".tmp")
        self.save(hidden)
        os.replace(hidden, self.path)
        self._last = time.monotonic()
