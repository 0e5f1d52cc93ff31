"""Lightning's hooks of a module, and where each is called in a federation."""

from typing import NamedTuple

SET_UP_HOOKS = ("prepare_data", "setup", "configure_model")
"""Hooks that are called once, before there is a Trainer."""

BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""Hooks around a batch's transfer to a device."""

TRAINING_HOOKS = (
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward"),
    *("backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping", "optimizer_step"),
)
"""Hooks that only Lightning's own loop calls."""

EVALUATION_HOOKS = tuple(
    f"on_{stage}_{moment}"
    for stage in ("validation", "test")
    for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
"""Hooks around a device's validation and test."""

PREDICTION_HOOKS = (
    "predict_step",
    *(f"on_predict_{moment}" for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")),
)
"""Methods of ``trainer.predict``, which asks a federation for outputs of ``forward``."""

LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
"""Methods that give data, which are a `Population`'s here."""

UNCALLED_HOOKS = {
    "on_save_checkpoint": "keep in a buffer what a checkpoint shall hold",
    "on_load_checkpoint": "keep in a buffer what a checkpoint shall hold",
    "lr_scheduler_step": "a scheduler of configure_optimizers steps by itself",
}
"""Hooks that are not called, and what to do instead."""

_MODE_HOOKS = (
    *("on_validation_model_zero_grad", "on_validation_model_eval", "on_validation_model_train"),
    *("on_test_model_eval", "on_test_model_train", "on_predict_model_eval"),
)
REFUSED_HOOKS = {
    "configure_sharded_model": "call it configure_model",
    **dict.fromkeys(_MODE_HOOKS, "evaluations are in evaluation mode: leave it out"),
}
"""Hooks without which a module would train or be measured in another way, and what to do instead."""


class HookGroup(NamedTuple):
    """Hooks with one fate, and what happens to them by executor."""

    hooks: tuple[str, ...]
    vectorized: str
    one_by_one: str = ""  # by threads and sequential; as vectorized where it is empty
    trainer: str = ""  # likewise


HOOK_GROUPS = (
    HookGroup(SET_UP_HOOKS, "once, when the run is made"),
    HookGroup(
        ("configure_callbacks",), "once: the callbacks join those of the outer Trainer, for which an epoch is a round"
    ),
    HookGroup(("configure_optimizers",), "with `local_optimizer: module`; else a line says that it is not used"),
    HookGroup(
        ("training_step",),
        "on minibatches of many devices at once",
        "on each minibatch",
        "on each minibatch, by Lightning's loop",
    ),
    HookGroup(BATCH_HOOKS, "for every batch of training and evaluation"),
    HookGroup(
        TRAINING_HOOKS, "the module trains under `trainer`", trainer="by Lightning's loop, in each device's local fit"
    ),
    HookGroup(
        ("validation_step", "test_step", *EVALUATION_HOOKS), "on each device's examples, attached to the outer Trainer"
    ),
    HookGroup(("teardown",), "at the end of the outer fit"),
    HookGroup(
        PREDICTION_HOOKS,
        "`trainer.predict(coordinator)` refuses them: it tells outputs of `forward`. Of classes that `predict_step` "
        "returns accuracy is measured",
    ),
    HookGroup(LOADERS, "not called: the `Population` has the data, as a datamodule has in Lightning"),
    HookGroup(tuple(UNCALLED_HOOKS), "not called, and a line says so"),
    HookGroup(tuple(REFUSED_HOOKS), "refused"),
)
"""All hooks of a LightningModule."""


def hooks_table() -> str:
    """Return the table in Markdown of what happens to each hook, by executor."""
    lines = ["| hook | `vectorized` | `threads`, `sequential` | `trainer` |", "|---|---|---|---|"]
    for group in HOOK_GROUPS:
        fates = group.vectorized, group.one_by_one or group.vectorized, group.trainer or group.vectorized
        lines.append(f"| {', '.join(f'`{hook}`' for hook in group.hooks)} | {' | '.join(fates)} |")
    return "\n".join([*lines, ""])
