"""The run that test_resume.py kills: ``python -m tests.laws.killed FOLDER ROUNDS SECONDS [CHECKPOINT]``."""

import sys
import time
import warnings
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy import Coordinator, RunSettings
from flstudy.algorithms import Scaffold
from flstudy.controllers import Restart

from ..worlds import drifting, mlp, trainer


class Slow(L.Callback):
    """Waits in every round, so that there is time to be killed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_train_batch_start(self, *_) -> None:
        time.sleep(self.seconds)


def main(folder: Path, rounds: int, seconds: float, ckpt_path: str | None) -> None:
    """Train, writing a checkpoint after every round."""
    saving = ModelCheckpoint(folder, every_n_epochs=1, save_last=True, save_on_train_epoch_end=True)
    module = Coordinator(
        mlp(),
        Scaffold(lr=0.1),
        RunSettings(seeds=(0, 44), initial="seeded"),
        controllers=[Restart(rounds=[7], keep_model=True)],
    )
    warnings.simplefilter("ignore")
    outer = trainer(rounds, enable_checkpointing=True, callbacks=[saving, Slow(seconds)], default_root_dir=folder)
    outer.fit(module, datamodule=drifting(), ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
