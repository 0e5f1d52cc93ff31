"""Flags of a Lightning Trainer where one round is one epoch of one batch: flags that would be dropped without a word
are refused, with what to say instead; all others work as they always do."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry

from flstudy.metrics.panel import Panel
from flstudy.population import Population
from flstudy.user_error import UserError

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


class Refusal(NamedTuple):
    """Refusal of a flag's values that a federation cannot follow."""

    flag: str
    when: str
    """Which values, for the docs."""
    reason: str
    """Why, and what to say instead; ``{value}`` is the value."""
    refused_value: Callable[[L.Trainer], Any]
    """Returns a Trainer's value where it is one of them, as it is shown; None where it is another."""


def refuse_flags(trainer: L.Trainer) -> None:
    """Raise UserError for the first flag of a Trainer that a federation cannot follow."""
    for refusal in REFUSALS:
        if (value := refusal.refused_value(trainer)) is not None:
            raise UserError(f"Trainer({refusal.flag}={value!r}): {refusal.reason.format(value=value)}")


class LanesStrategy(SingleDeviceStrategy):
    """``L.Trainer(devices=N, num_nodes=M, strategy="lanes")``: one process drives, and the lanes of every round are
    divided over N devices of each of M machines; on a CPU, and on other machines, a device is a Ray actor."""

    strategy_name = "lanes"

    def __init__(self) -> None:
        super().__init__()
        self.num_nodes = 1  # which the Trainer sets
        self._parallel_devices: Sequence[torch.device] | None = None
        self._ends: list[Callable[[], None]] = []

    @property
    def parallel_devices(self) -> Sequence[torch.device] | None:
        """All devices; the models and measurements are on the first."""
        return self._parallel_devices

    @parallel_devices.setter
    def parallel_devices(self, devices: Sequence[torch.device] | None) -> None:
        self._parallel_devices = devices
        if devices:
            self._root_device = devices[0]

    def at_end(self, end: Callable[[], None]) -> None:
        """Register a function to be called at the end of the Trainer's run, however that ends."""
        self._ends.append(end)

    def teardown(self) -> None:
        """Call the registered functions."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()
        super().teardown()


StrategyRegistry.register(LanesStrategy.strategy_name, LanesStrategy, description="A round's lanes over devices.")


def lanes_devices(trainer: L.Trainer) -> Sequence[torch.device]:
    """Return the devices over which a round's lanes are divided."""
    strategy = trainer.strategy
    devices = strategy.parallel_devices if isinstance(strategy, LanesStrategy) else None
    return devices or [strategy.root_device]


def is_lanes(trainer: L.Trainer) -> bool:
    """Return whether a round's lanes are divided over devices."""
    return isinstance(trainer.strategy, LanesStrategy)


def leaves_batch(limit: float) -> bool:
    """Return whether a limit leaves the one batch that there is."""
    return limit == 1.0 if isinstance(limit, float) else limit >= 1


def _part_of_a_round(flag: str) -> Callable[[L.Trainer], Any]:
    """Return a test for a flag's limit that does not leave the one batch that there is; evaluations may be left none,
    too."""

    def refused_value(trainer: L.Trainer) -> Any:
        limit = getattr(trainer, flag)
        return None if leaves_batch(limit) or (limit == 0 and "train" not in flag) else limit

    return refused_value


def _check_interval(kind: type[int] | type[float]) -> Callable[[L.Trainer], Any]:
    """Return a test for a ``val_check_interval`` of a type that is not the one batch of a round."""

    def refused_value(trainer: L.Trainer) -> Any:
        every = getattr(trainer, "val_check_interval", 1.0)  # there is none where it is a time
        if type(every) is not kind or every == 1:
            return None
        return every if kind is float or trainer.check_val_every_n_epoch is not None else None

    return refused_value


def _strange_callback(trainer: L.Trainer) -> str | None:
    """Return the class name of a Trainer's first callback in `STRANGE`; None where it has none."""
    attached: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((type(callback).__name__ for callback in attached if isinstance(callback, STRANGE)), None)


def _syncs_layers(trainer: L.Trainer) -> bool:
    """Return whether a Trainer was made with ``sync_batchnorm=True``; False where Lightning, of which 2.6 was tried,
    does not keep that there any more."""
    return getattr(getattr(trainer, "_accelerator_connector", None), "_layer_sync", None) is not None


def _clip_algorithm(trainer: L.Trainer) -> str | None:
    clipping = trainer.gradient_clip_algorithm
    return None if clipping is None else str(clipping.value)


_EVALUATION = "an evaluation is one batch of everybody; use population.{split} or check_val_every_n_epoch"

REFUSALS = (
    Refusal(
        *("num_nodes", 'more than 1 without `strategy="lanes"`'),
        "every machine would train the same thing; add strategy='lanes', or spread trials with flstudy tune",
        lambda trainer: trainer.num_nodes if trainer.num_nodes > 1 and not is_lanes(trainer) else None,
    ),
    Refusal(
        *("devices", 'more than 1 without `strategy="lanes"`'),
        "every process would train the same thing; add strategy='lanes', which divides a round's lanes",
        lambda trainer: trainer.world_size if trainer.world_size > 1 else None,
    ),
    Refusal(
        *("strategy", "any but `auto` and `lanes`", "models are trained as lanes on one device; leave it out"),
        lambda trainer: None if isinstance(trainer.strategy, SingleDeviceStrategy) else type(trainer.strategy).__name__,
    ),
    Refusal(
        *("precision", "others", f"it must be one of {', '.join(PRECISIONS)}"),
        lambda trainer: None if trainer.precision in PRECISIONS else trainer.precision,
    ),
    Refusal(
        *("overfit_batches", "any", "a round is one batch; use population.steps or fewer clients"),
        lambda trainer: getattr(trainer, "overfit_batches", 0) or None,
    ),
    Refusal(
        *(
            "limit_train_batches",
            "less than one batch",
            "a round is one batch; use population.steps or population.epochs",
        ),
        _part_of_a_round("limit_train_batches"),
    ),
    Refusal(
        *("limit_val_batches", "a share", _EVALUATION.format(split="valid")), _part_of_a_round("limit_val_batches")
    ),
    Refusal(
        *("limit_test_batches", "a share", _EVALUATION.format(split="test")), _part_of_a_round("limit_test_batches")
    ),
    Refusal(
        *("val_check_interval", "a share", "a round is one batch; use check_val_every_n_epoch"), _check_interval(float)
    ),
    Refusal(
        *("val_check_interval", "a number of batches"),
        "a round is one batch; use check_val_every_n_epoch={value}",
        _check_interval(int),
    ),
    Refusal(
        *("accumulate_grad_batches", "more than 1", "devices step by themselves; use batch_size"),
        lambda trainer: trainer.accumulate_grad_batches if trainer.accumulate_grad_batches != 1 else None,
    ),
    Refusal(
        *("gradient_clip_val", "any", "devices clip by themselves; use algorithm.clip_norm"),
        lambda trainer: trainer.gradient_clip_val,
    ),
    Refusal(
        *("gradient_clip_algorithm", "any", "devices clip the norm; use algorithm.clip_norm"),
        _clip_algorithm,
    ),
    Refusal(
        *("sync_batchnorm", "`True`", "devices share no statistics; leave it out"),
        lambda trainer: _syncs_layers(trainer) or None,
    ),
    Refusal(
        *("callbacks", ", ".join(f"`{callback.__name__}`" for callback in STRANGE)),
        "it acts on weights that devices train by themselves; leave it out",
        _strange_callback,
    ),
)
"""Refusals, in the order in which they are looked for."""

ALWAYS = "as always"
MEANINGS = {
    "accelerator": ALWAYS,
    "strategy": "`lanes` divides the lanes of every round over `devices`; `auto` takes one",
    "devices": 'with `strategy="lanes"`: how many share a round, on a CPU as Ray actors; in a config `devices: N`',
    "num_nodes": 'with `strategy="lanes"`: machines of a Ray cluster, with `devices` each; in a config `num_nodes: M`',
    "precision": ", ".join(PRECISIONS),
    "logger": "one row a round, its evaluation included, at the step that Lightning gives to values of its epoch",
    "callbacks": "see a round as an epoch of one batch; `LearningRateMonitor` shows the devices' rate",
    "fast_dev_run": "one round",
    "max_epochs": "rounds",
    "min_epochs": "rounds",
    "max_steps": "rounds, too",
    "min_steps": "rounds, too",
    "max_time": "until the round after which it has passed; nothing is compiled that could not pay until then",
    "limit_train_batches": "1 or 1.0",
    "limit_val_batches": "0 evaluates nothing; 1 or 1.0",
    "limit_test_batches": "0 evaluates nothing; 1 or 1.0",
    "limit_predict_batches": "devices",
    "overfit_batches": "",
    "val_check_interval": "a time",
    "check_val_every_n_epoch": "rounds between evaluations; the last round is always evaluated",
    "num_sanity_val_steps": "nothing: there is nothing to check before the first round",
    "log_every_n_steps": "nothing: every round is logged",
    "enable_checkpointing": ALWAYS,
    "enable_progress_bar": "rounds, with training loss and validation accuracy",
    "enable_model_summary": "of the task",
    "accumulate_grad_batches": "1",
    "gradient_clip_val": "",
    "gradient_clip_algorithm": "",
    "deterministic": ALWAYS,
    "benchmark": ALWAYS,
    "inference_mode": ALWAYS,
    "use_distributed_sampler": "nothing: there is one process",
    "profiler": ALWAYS,
    "detect_anomaly": ALWAYS,
    "barebones": ALWAYS,
    "plugins": ALWAYS,
    "sync_batchnorm": "",
    "reload_dataloaders_every_n_epochs": ALWAYS,
    "default_root_dir": ALWAYS,
    "enable_autolog_hparams": ALWAYS,
    "model_registry": ALWAYS,
}
"""Meaning here of each flag that is followed."""


def flags_page() -> str:
    """Return the page of the docs that lists all flags."""
    lines = [
        "# Flags of `L.Trainer`",
        "",
        "One round is one epoch of one batch. What a federation cannot follow is refused before the first round, in",
        "the sentence given here. This page is `flstudy.federation.trainer_flags.flags_page()`.",
        "",
        "| flag | what it does | refused | because |",
        "|---|---|---|---|",
    ]
    for flag, meaning in MEANINGS.items():
        refusals = [refusal for refusal in REFUSALS if refusal.flag == flag]
        reasons = dict.fromkeys(refusal.reason.replace("{value}", "N") for refusal in refusals)
        whens = " or ".join(refusal.when for refusal in refusals)
        lines.append(
            f"| `{flag}` | {meaning} | {whens} | {'; or: '.join(reasons)} |".replace("|  |", "| |").replace(
                "|  |", "| |"
            )
        )
    return "\n".join([*lines, ""])


def trainer_of(module: L.LightningModule) -> L.Trainer | None:
    """Return the Trainer to which a module is attached; None where there is none, for which Lightning's property
    raises."""
    try:
        return module.trainer
    except RuntimeError:
        return None


def evaluate_every(trainer: L.Trainer) -> int:
    """Return the number of rounds between two evaluations."""
    return trainer.check_val_every_n_epoch or 1


def world_of(trainer: L.Trainer, panel: Panel | None) -> Population:
    """Return the population that a Trainer was given as its datamodule.

    Raises:
        UserError: where it was given another datamodule, or the panel of evaluations does not suit the population.
    """
    population = trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(population, Population):
        raise UserError(
            "the coordinator needs a Population: call trainer.fit(coordinator, datamodule=Population(dataset, "
            f"clients=..., participants=...)), got {type(population).__name__}"
        )
    if panel is not None:
        panel.check(population.clients, evaluate_every(trainer))
    return population


def last_round(trainer: L.Trainer) -> int | None:
    """Return the last round (from 1) of a fit, one round being one epoch and one step; None where nobody knows."""
    epochs, steps = trainer.max_epochs, trainer.max_steps
    ends = [end for end in (epochs, steps) if end is not None and end >= 0]
    return min(ends) if ends else None


def stops(trainer: L.Trainer, round: int) -> bool:
    """Return whether a fit ends after a round (from 1), since somebody has asked for it."""
    return trainer.should_stop and round >= max(trainer.min_epochs or 0, trainer.min_steps or 0)


@contextlib.contextmanager
def validating_now(trainer: L.Trainer) -> Iterator[None]:
    """Have a Trainer validate when its present batch is over, in the last round, whatever its flags say."""
    every, trainer.check_val_every_n_epoch = trainer.check_val_every_n_epoch, 1
    if getattr(trainer, "val_check_interval", None) != 1:  # it counts batches over epochs, or seconds
        trainer.should_stop = True
    try:
        yield
    finally:
        trainer.check_val_every_n_epoch = every


def seconds_left(trainer: L.Trainer) -> float | None:
    """Return the seconds until ``max_time``; None without one."""
    timers = [part for part in trainer.callbacks if isinstance(part, callbacks.Timer)]  # type: ignore[attr-defined]
    left = [seconds for timer in timers if (seconds := timer.time_remaining()) is not None]
    return min(left) if left else None


class TaskSummary(L.Callback):
    """Model summary of the task instead of the coordinator, which has no layers.

    Args:
        summary: as the Trainer was given it.
    """

    def __init__(self, summary: callbacks.ModelSummary) -> None:
        self.summary = summary

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the task's summary."""
        task = getattr(pl_module, "task", pl_module)
        self.summary.on_fit_start(trainer, task if isinstance(task, L.LightningModule) else pl_module)


def follow_task(trainer: L.Trainer) -> None:
    """Let the Trainer's model summaries look at the task."""
    attached: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    attached[:] = [TaskSummary(part) if isinstance(part, callbacks.ModelSummary) else part for part in attached]
