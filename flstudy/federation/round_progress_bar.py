"""Progress bar over the rounds of a fit."""

import sys
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from flstudy.federation.trainer_flags import last_round


class RoundProgressBar(ProgressBar):
    """Progress bar over all rounds of a fit, with the time that is left, in a terminal or a notebook.

        trainer = L.Trainer(max_epochs=60, callbacks=[RoundProgressBar()])

    Lightning's own bars begin anew with each epoch, which is one round, so that they know no time that is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled, self._bar = True, tqdm(disable=True)

    def disable(self) -> None:
        """Draw nothing, as Lightning asks of all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Draw again."""
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin with the rounds that a checkpoint holds already."""
        self._bar = tqdm(
            desc="Rounds",
            total=last_round(trainer),
            initial=trainer.current_epoch,
            unit="round",
            file=sys.stdout,
            dynamic_ncols=True,
            disable=not self._enabled,
        )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Count the round, and show its headline metrics."""
        self._bar.set_postfix(self.get_metrics(trainer, pl_module), refresh=False)
        self._bar.update()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bar."""
        self._bar.write(sep.join(map(str, args)), **kwargs)
