"""What a Lightning Trainer may be told where one round is one epoch of one batch: flags that would be dropped without a
word are refused, with what to say instead; all others work as they always do."""

from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch import callbacks
from lightning.pytorch.strategies import SingleDeviceStrategy

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
STRANGE = (  # they act on the weights or steps of the module that the Trainer fits, which here only counts rounds
    callbacks.StochasticWeightAveraging,
    callbacks.WeightAveraging,
    callbacks.GradientAccumulationScheduler,
    callbacks.BatchSizeFinder,
    callbacks.LearningRateFinder,
    callbacks.ModelPruning,
    callbacks.BaseFinetuning,
)


def refuse_flags(trainer: L.Trainer) -> None:
    """Raise ValueError for the first flag of a Trainer that a federation cannot follow."""
    for flag, value, reason in refused(trainer):
        raise ValueError(f"Trainer({flag}={value!r}): {reason}")


def refused(trainer: L.Trainer) -> Iterator[tuple[str, Any, str]]:
    """Flags with their values, and why and what instead."""
    if trainer.num_nodes > 1:
        yield "num_nodes", trainer.num_nodes, "a run stays on one machine; spread trials with flstudy tune"
    if trainer.world_size > 1:
        count = trainer.world_size
        yield "devices", count, "every process would train the same thing; use devices=1 and seeds, or flstudy tune"
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        yield "strategy", type(trainer.strategy).__name__, "models are trained as lanes on one device; leave it out"
    if trainer.precision not in PRECISIONS:
        yield "precision", trainer.precision, f"it must be one of {', '.join(PRECISIONS)}"
    if few := getattr(trainer, "overfit_batches", 0):
        yield "overfit_batches", few, "a round is one batch; use population.steps or fewer clients"
    if not whole(limit := trainer.limit_train_batches):
        yield "limit_train_batches", limit, "a round is one batch; use population.steps or population.epochs"
    for split in ("val", "test"):
        limit = getattr(trainer, f"limit_{split}_batches")
        if limit != 0 and not whole(limit):
            keys = f"population.{'valid' if split == 'val' else split} or check_val_every_n_epoch"
            yield f"limit_{split}_batches", limit, f"an evaluation is one batch of everybody; use {keys}"
    every = getattr(trainer, "val_check_interval", 1.0)  # there is none where it is a time
    if isinstance(every, float) and every != 1.0:
        yield "val_check_interval", every, "a round is one batch; use check_val_every_n_epoch"
    if isinstance(every, int) and every > 1 and trainer.check_val_every_n_epoch is not None:
        yield "val_check_interval", every, f"a round is one batch; use check_val_every_n_epoch={every}"
    if trainer.accumulate_grad_batches != 1:
        yield "accumulate_grad_batches", trainer.accumulate_grad_batches, "devices step by themselves; use batch_size"
    if trainer.gradient_clip_val is not None:
        yield "gradient_clip_val", trainer.gradient_clip_val, "devices clip by themselves; use algorithm.clip_norm"
    if trainer.gradient_clip_algorithm is not None:
        given = str(trainer.gradient_clip_algorithm.value)
        yield "gradient_clip_algorithm", given, "devices clip the norm; use algorithm.clip_norm"
    if trainer._accelerator_connector._layer_sync is not None:
        yield "sync_batchnorm", True, "devices share no statistics; leave it out"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, STRANGE):
            reason = "it acts on weights that devices train by themselves; leave it out"
            yield "callbacks", type(callback).__name__, reason


def whole(limit: float) -> bool:
    """Whether a limit leaves the one batch that there is."""
    return limit == 1.0 if isinstance(limit, float) else limit >= 1


def last_round(trainer: L.Trainer) -> int | None:
    """The last round (from 1) of a fit, one round being one epoch and one step; None where nobody knows."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    ends = [end for end in (epochs, steps) if end is not None and end >= 0]
    return min(ends) if ends else None


def seconds_left(trainer: L.Trainer) -> float | None:
    """Seconds until ``max_time``; None without one."""
    timers = [one for one in trainer.callbacks if isinstance(one, callbacks.Timer)]  # type: ignore[attr-defined]
    left = [seconds for timer in timers if (seconds := timer.time_remaining()) is not None]
    return min(left) if left else None


class TaskSummary(L.Callback):
    """A model summary that sums up the task instead of the coordinator, which has no layers.

    Args:
        summary: as the Trainer was given it.
    """

    def __init__(self, summary: callbacks.ModelSummary) -> None:
        self.summary = summary

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show it."""
        task = getattr(pl_module, "task", pl_module)
        self.summary.on_fit_start(trainer, task if isinstance(task, L.LightningModule) else pl_module)


def follow_task(trainer: L.Trainer) -> None:
    """Let the Trainer's model summaries look at the task."""
    given: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    given[:] = [TaskSummary(one) if isinstance(one, callbacks.ModelSummary) else one for one in given]
