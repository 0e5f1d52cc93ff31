"""Findings about a LightningModule before it trains: what it declares, how fast it can be trained, and what it logs.

What a module declares decides what its loss is. The rest is found by calls on a few examples
(`flstudy.tasks.probing`).
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import lightning as L
from torch import Tensor, nn

from flstudy.lightning_hooks import REFUSED_HOOKS, TRAINING_HOOKS, UNCALLED_HOOKS
from flstudy.tasks.buffers import is_batch_norm
from flstudy.tasks.module_steps import (
    CORRECT_BY,
    CorrectBy,
    overrides,
)
from flstudy.tasks.stand_in_trainer import Runs
from flstudy.user_error import UserError

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
UNDECLARED = "it declares no losses of single examples"
TO_DECLARE = "add example_losses(batch) -> [B] to it, or mean_over_examples = True if training_step returns their mean"
TO_SAY_CORRECT = "add example_correct(batch) -> [B] to it, 1 where it is right, or a predict_step that returns classes"


class TaskFindings(NamedTuple):
    """Findings about a task: how it can be trained, and what it logs."""

    per_example: bool  # it declares losses of single examples, so that padding can be masked
    runs: Runs = "mapped"
    why: str = ""  # the reason why it is not mapped, or its single examples have no losses
    correct_by: CorrectBy | None = None  # what tells whether it is right about an example; None: nothing does
    maps_correct: bool = True  # that can be mapped over devices, too
    logs: Mapping[str, tuple[str, ...]] | None = None  # names, by split; None: not known
    training_logs: tuple[str, ...] | None = ()  # names of numbers that its training_step logs; None: not known
    draws: bool = False  # random numbers while it trains, as dropout's masks


def check_module(task: L.LightningModule) -> None:
    """Refuse what is no LightningModule, or has hooks without which it would mean something else; warn of others that
    are not called.

    Raises:
        UserError: for a hook that cannot be followed, or no LightningModule.
    """
    name = type(task).__name__
    if not isinstance(task, L.LightningModule):
        raise UserError(
            f"task must be a lightning.LightningModule, got {type(task).__module__}.{name}: derive it from that class, "
            "with a training_step"
        )
    for hook, advice in REFUSED_HOOKS.items():
        if overrides(task, hook):
            raise UserError(f"task: {name} overrides {hook}, which nobody calls here: {advice}")
    for hook, advice in UNCALLED_HOOKS.items():
        if overrides(task, hook):
            warnings.warn(f"task: {hook} of {name} is not called: {advice}", stacklevel=3)


def plain_findings(task: L.LightningModule) -> TaskFindings:
    """Return the findings from a module's methods and attributes alone, before it is called.

    Raises:
        UserError: for a ``mean_over_examples`` that cannot hold.
    """
    per_example = declares_mean_over_examples(task) or hasattr(task, "example_losses")
    runs: Runs = "mapped"
    why = "" if per_example else UNDECLARED
    if (hook := next((hook for hook in TRAINING_HOOKS if overrides(task, hook)), None)) is not None:
        runs, why = "under a trainer", f"it overrides {hook}"
    if not task.automatic_optimization:
        runs, why = "under a trainer", "it optimises by itself (automatic_optimization = False)"
    training_logs = () if runs == "mapped" else None
    correct_by = next(
        (by for by in CORRECT_BY if hasattr(task, by) and overrides(task, by)), None
    )  # a call may show that it tells nothing
    draws = any(isinstance(part, DROPOUT) and part.p > 0 for part in task.modules())
    return TaskFindings(per_example, runs, why, correct_by, training_logs=training_logs, draws=draws)


def declares_mean_over_examples(task: L.LightningModule) -> bool:
    """Return whether a module declares that the loss of its ``training_step`` is the mean of the losses of single
    examples.

    Raises:
        UserError: for a module of which that cannot hold.
    """
    declared = getattr(task, "mean_over_examples", False)
    name = type(task).__name__
    if not isinstance(declared, bool):
        raise UserError(f"task: {name}.mean_over_examples must be True or False, got {declared!r}")
    if not declared or hasattr(task, "example_losses"):
        return False
    if not task.automatic_optimization:
        raise UserError(
            f"task: {name} declares mean_over_examples, but optimises by itself (automatic_optimization = False), "
            "which flstudy gives whole minibatches: leave the declaration out"
        )
    if any(is_batch_norm(part) for part in task.modules()):
        raise UserError(
            f"task: {name} declares mean_over_examples, but has BatchNorm, whose statistics tie the examples of a "
            "batch together: leave the declaration out, or use GroupNorm"
        )
    return True


def failing(name: str, method: str, examples: str, x: Tensor, y: Tensor, error: Exception) -> UserError:
    """Return the error of a module whose method fails on examples x [B, ...], y [B, ...], which are called so."""
    batch = ", ".join(f"{part} {kind_of(values)}" for part, values in (("x", x), ("y", y)))
    return UserError(
        f"task: {name}.{method} fails on {examples} {batch}: {brief(error)}: let it take them, or change the data"
    )


def kind_of(part: Tensor) -> str:
    """Return the shape and type of a tensor, as in ``[6, 12] float32``."""
    return f"{list(part.shape)} {str(part.dtype).removeprefix('torch.')}"


def trained_parameters(task: L.LightningModule) -> dict[str, Tensor]:
    """Return a module's trained parameters by name, shaped as in the module."""
    return {name: p.detach() for name, p in task.named_parameters() if p.requires_grad}


def brief(error: BaseException) -> str:
    """Return the first line of an error, as a part of a sentence; its class stands before it where that says more."""
    line = (str(error).strip().splitlines() or [""])[0]
    if not isinstance(error, RuntimeError | ValueError) or not line:
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return line if len(line) <= 80 else f"{line[:77]}..."
