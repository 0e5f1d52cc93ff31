"""The recording of one configuration's training: its rounds, its checkpoints, and the signals that end it."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy.federation import Record
from flstudy.federation.divergence import has_diverged
from flstudy.study.records import RoundBuffer, RoundRecord

if TYPE_CHECKING:
    from flstudy.tracking.runs import TrialRun


class Recording:
    """Recording of the rounds of a run or a trial, as Parquet and in MLflow, and of its divergence.

    Args:
        buffer: takes the rounds to Parquet; None: none are kept.
        run: shows them in MLflow; None: nothing does, or the buffer's receiver.
    """

    def __init__(self, buffer: RoundBuffer | None, run: "TrialRun | None" = None) -> None:
        self.buffer, self.run = buffer, run
        self.rounds = 0  # the latest round
        self.metrics: dict[str, Sequence[float]] = {}  # the latest value of each, by replica
        self.divergence: str | None = None  # a sentence on the first round that was not finite

    def add(self, record: RoundRecord) -> None:
        """Record a round that is over, its evaluation included."""
        self.rounds = record.round
        self.metrics.update(record.metrics)
        if self.buffer is not None:
            self.buffer.append(record)
        if self.run is not None:
            self.run.log(record)

    def note_divergence(self, record: Record) -> str | None:
        """Return a sentence on a round whose loss or parameters are not finite; None: they are finite."""
        if not has_diverged(record.metrics):
            return None
        sentence = record.divergence or f"diverged in round {record.round}"
        self.divergence = self.divergence or sentence
        return sentence


class Checkpoints(ModelCheckpoint):
    """Checkpoint callback that writes records first, so that a resumed run misses none.

    Args:
        buffer: of the records.
        folder: of the checkpoints; ``last.ckpt`` is the latest.
        every_n_epochs: rounds between two of them.
    """

    def __init__(self, buffer: RoundBuffer, folder: Path, every_n_epochs: int) -> None:
        super().__init__(
            dirpath=folder,
            filename="round-{epoch}",
            every_n_epochs=every_n_epochs,
            save_top_k=1,
            save_last=True,
            save_on_train_epoch_end=True,
        )
        self.buffer = buffer

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the records before the checkpoint is written."""
        self.buffer.flush()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save after a round as Lightning does, and after the one with which the run is stopped."""
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.should_stop:
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt")


class StopOnSigterm(L.Callback):
    """Callback that notes SIGTERM, which Slurm sends, so that a run ends after its round; Lightning would leave at
    once."""

    def __init__(self) -> None:
        self.asked = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Set the handler; Lightning has set its own by now, and restores the earlier one when the fit is over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
