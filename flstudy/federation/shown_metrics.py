"""The metrics of a run where Lightning's callbacks, progress bar and loggers find them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import lightning as L
import torch

from flstudy.federation.round_metrics import Record
from flstudy.metrics.registry import replica_means
from flstudy.tasks.module_steps import Display


def show_metrics(trainer: L.Trainer, metrics: Mapping[str, Sequence[float]], display: Display) -> None:
    """Show means over replicas to callbacks and the progress bar.

    ``self.log`` is not used: it takes a third of a millisecond per metric, and these values need no reduction.

    Args:
        trainer: shows the means.
        metrics: by name, a value per replica.
        display: names that the task logs for the progress bar, and those that it logs per step and per epoch.
    """
    means: dict[str, Any] = as_tensors(replica_means(metrics))
    names = headlines(means, display)
    of_epoch = {f"{name}_epoch": value for name, value in means.items() if name in display.twofold}
    trainer.callback_metrics.update(means | of_epoch)
    shown = {name: float(value) for name, value in means.items() if name in names}
    trainer.progress_bar_metrics.update(shown)


def headlines(names: Collection[str], display: Display) -> set[str]:
    """Return those of a round's metrics that tell at a glance how a run goes: losses and accuracies, and what the task
    logs for the progress bar."""
    return ({"train/loss", "valid/accuracy" if "valid/accuracy" in names else "valid/loss"} | display.bar) & {*names}


def log_round(trainer: L.Trainer, record: Record) -> None:
    """Log a round with its evaluation as one row of every logger.

    The row's step is the number of batches that were trained before, as for values that callbacks log.
    """
    means, epoch = replica_means(record.metrics), record.round - 1
    trainer.logged_metrics.update(as_tensors(means))
    for logger in trainer.loggers:
        logger.log_metrics({**means, "epoch": epoch}, step=epoch)
        logger.save()


def as_tensors(values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """Return metrics as tensors [] in double precision, as Lightning keeps them."""
    return dict(zip(values, torch.tensor(list(values.values()), dtype=torch.float64).unbind(), strict=True))
