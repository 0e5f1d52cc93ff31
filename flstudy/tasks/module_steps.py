"""A LightningModule's own steps without a Trainer: logged values are recorded, torchmetrics are kept or muted."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, get_args
from weakref import WeakSet

import lightning as L
import torch
from torch import Tensor, nn

from flstudy.lightning_hooks import BATCH_HOOKS, SET_UP_HOOKS
from flstudy.tasks.stand_in_trainer import NeedsExecutor, StandInTrainer, Unavailable
from flstudy.user_error import UserError

Stage = Literal["training", "validation", "test", "predict"]
CorrectBy = Literal["example_correct", "predict_step", "forward"]
CORRECT_BY: tuple[CorrectBy, ...] = get_args(CorrectBy)
"""Functions that may tell whether a module is right about an example; the first that it has does."""
MOST_EXAMPLES = 4096  # of a device that a step is given at once
STAGES: dict[str, Stage] = {"valid": "validation", "test": "test"}  # of a device's data


def overrides(task: L.LightningModule, method: str) -> bool:
    """Return whether a module defines a method that LightningModule only declares."""
    return getattr(type(task), method, None) is not getattr(L.LightningModule, method, None)


def silent(*_: Any, **__: Any) -> None:
    """Log call that does nothing, since there is no trainer."""


_set_up = WeakSet[L.LightningModule]()


def set_up(task: L.LightningModule, stand_in: StandInTrainer) -> None:
    """Call the hooks in which a module prepares data and makes layers, once, as a Trainer does before a fit.

    Raises:
        UserError: where it asks for its Trainer, which is not there yet.
    """
    hooks = [hook for hook in SET_UP_HOOKS if overrides(task, hook)]
    if not hooks or task in _set_up:
        return
    _set_up.add(task)
    task.trainer = stand_in  # type: ignore[assignment]
    try:
        for hook in hooks:
            getattr(task, hook)(*(["fit"] if hook == "setup" else []))
    except NeedsExecutor as need:
        name = type(task).__name__
        raise UserError(
            f"task: {name} {need.does} in {hook}, which runs before there is a Trainer: give __init__ an argument"
        ) from need
    finally:
        task.trainer = None


def is_metric(module: nn.Module) -> bool:
    """Return whether a module is a torchmetric, or a collection of them."""
    return any(kind.__module__.startswith("torchmetrics.") for kind in type(module).__mro__)


class MutedValues(dict[str, Any]):
    """Values of a muted collection of torchmetrics: none, to be logged; one that is asked for by name is refused."""

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.refuse = refuse

    def __missing__(self, name: str) -> NoReturn:
        self.refuse()


class Muted(nn.Module):
    """Stand-in for a torchmetric that would keep tensors of a mapped step: it remembers nothing, and its value may be
    logged, but not be computed with.

    Args:
        metric: that it stands for.
        module: name of the class whose metric it is.
    """

    def __init__(self, metric: nn.Module, module: str) -> None:
        super().__init__()
        self.several = isinstance(metric, nn.ModuleDict)  # a collection says something by name
        self.module = module

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return the value that may be logged alone, or none of a collection."""
        return MutedValues(self.refuse) if self.several else Unavailable(self.refuse)

    def refuse(self) -> NoReturn:
        """Raise NeedsExecutor for a module that computes with a torchmetric's value."""
        raise NeedsExecutor(self.module, "computes with the value of a torchmetric", "under a trainer")

    compute = forward
    update = reset = silent


def mute(module: nn.Module, name: str) -> None:
    """Put `Muted` in the place of all torchmetrics within a module whose class has that name."""
    for attribute, child in module.named_children():
        if is_metric(child):
            setattr(module, attribute, Muted(child, name))
        else:
            mute(child, name)


def unmute(module: nn.Module, like: nn.Module) -> None:
    """Put copies of another module's torchmetrics back."""
    for name, child in module.named_children():
        if isinstance(child, Muted):
            setattr(module, name, copy.deepcopy(getattr(like, name)))
        else:
            unmute(child, like.get_submodule(name))


def step_arguments(task: L.LightningModule, stage: Stage, batch: Any, index: Any) -> list[Any]:
    """Return the arguments that Lightning passes to a step: the batch, its number where the step takes one, and 0 for
    the loader, a device's own data, where it takes that."""
    names = list(inspect.signature(getattr(task, f"{stage}_step")).parameters)
    numbers = {"batch_idx": index, "dataloader_idx": 0}
    return [batch, *(numbers.get(name, index if place == 1 else 0) for place, name in enumerate(names) if place)]


def hooks_on_batches(task: L.LightningModule) -> dict[str, Callable[..., Any]]:
    """Return the module's own hooks around a batch's transfer to a device, in Lightning's order."""
    return {hook: getattr(task, hook) for hook in BATCH_HOOKS if overrides(task, hook)}


def transferred(task: L.LightningModule, batch: Any, hooks: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Return the batch after the module's own hooks around its transfer to a device, or after other ones."""
    for name, hook in (hooks_on_batches(task) if hooks is None else hooks).items():
        batch = hook(batch, *([task.device] if name == "transfer_batch_to_device" else []), 0)
    return batch


def leave_batches(task: L.LightningModule) -> None:
    """Let the module's own hooks leave batches as they are, since its steps are given what the hooks have changed."""
    for hook in hooks_on_batches(task):
        setattr(task, hook, lambda batch, *_: batch)


def call_on_batch(task: L.LightningModule, method: str, batch: Any) -> Any:
    """Return the result of a method on a batch, after the module's own hooks have changed the batch."""
    return getattr(task, method)(transferred(task, batch))


def predictions(
    task: L.LightningModule, by: CorrectBy, form: Callable[[Tensor, Tensor], Any], x: Tensor, y: Tensor
) -> tuple[Any, Tensor]:
    """Return the outputs of ``forward`` or ``predict_step`` for inputs x [B, ...], and labels [B, ...], after the
    module's own hooks have changed the batch; a batch in another form than a pair has the labels y."""
    batch = form(x, y)
    if form is as_pair:
        batch = x, y = transferred(task, batch)
    elif by == "predict_step":
        batch = transferred(task, batch)
    return task(x) if by == "forward" else task.predict_step(*step_arguments(task, "predict", batch, 0)), y


def share_right(outputs: Any, labels: Tensor) -> Tensor:
    """Return [B]: the share of each example's labels [B, ...] that outputs predict, which are classes [B, ...], or a
    number for each class [B, ..., classes].

    Raises:
        TypeError: for other outputs, which predict no class.
    """
    if not isinstance(outputs, Tensor) or labels.is_floating_point():
        raise TypeError("outputs are no classes")
    if outputs.is_floating_point() and outputs.shape[:-1] == labels.shape and outputs.shape[-1] > 1:
        outputs = outputs.argmax(-1)
    if outputs.is_floating_point() or outputs.shape != labels.shape:
        raise TypeError("outputs are no classes")
    correct = (outputs == labels).to(torch.get_default_dtype())
    return correct.flatten(1).mean(1) if labels.dim() > 1 else correct


def run_step(task: L.LightningModule, stage: Stage, batch: Any, index: Any = 0) -> Any:
    """Return the result of a step on a batch, after the module's own hooks have changed the batch."""
    batch = transferred(task, batch)
    return getattr(task, f"{stage}_step")(*step_arguments(task, stage, batch, index))


def loss_of(result: Any, task: L.LightningModule) -> Tensor:
    """Return the loss [] in the result of a training_step.

    Raises:
        UserError: where there is none.
    """
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = "None" if loss is None else f"{type(loss).__name__}"
        if isinstance(loss, Tensor):
            got = f"a tensor {list(loss.shape)}"
        raise UserError(
            f"task: {type(task).__name__}.training_step must return the loss of a batch, one number, got {got}: "
            "return it, or {'loss': it}"
        )
    return loss.reshape(())


class LoggedValue(NamedTuple):
    """One value that a step has logged."""

    value: Any  # a number, a tensor of one, or a torchmetric
    examples: int  # of the batch
    reduce: Any  # Lightning's reduction of the values of several batches


class Display:
    """Names that a module's own steps log for the progress bar, and those of which they ask two values, the step's and
    the epoch's, which Lightning then calls ``NAME_epoch``."""

    def __init__(self) -> None:
        self.bar, self.twofold = set[str](), set[str]()

    def note(
        self,
        name: str,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        *further: Any,
        training: bool,
        **others: Any,
    ) -> None:
        """Note how a name is logged, by the arguments and defaults of ``LightningModule.log``."""
        if prog_bar:
            self.bar.add(name)
        if (training if on_step is None else on_step) and (not training if on_epoch is None else on_epoch):
            self.twofold.add(name)


class Log:
    """Recorder in the place of ``log`` and ``log_dict``: remembers the logged values.

    Args:
        display: is told how they are logged; None where that is known.
        training: whether a training_step logs.
    """

    def __init__(self, display: Display | None = None, *, training: bool = True) -> None:
        self.entries: dict[str, list[LoggedValue]] = {}
        self.examples = 1
        self._display, self._training = display, training

    def __call__(self, name: str, value: Any, *positional: Any, **options: Any) -> None:
        """Record a value, as ``LightningModule.log`` takes it."""
        if self._display is not None:
            self._display.note(name, *positional, **options, training=self._training)
        examples = options.get("batch_size") or self.examples
        value = value.detach() if isinstance(value, Tensor) else value
        self.entries.setdefault(name, []).append(LoggedValue(value, examples, options.get("reduce_fx", "mean")))

    def all(self, values: Mapping[str, Any], *positional: Any, **options: Any) -> None:
        """Record values by name, as ``LightningModule.log_dict`` takes them."""
        for name, value in values.items():
            self(name, value, *positional, **options)

    def taken(self) -> dict[str, Tensor]:
        """Return the logged values, reduced to one number [] for each name; the recorder forgets them.

        Raises:
            UserError: for a value that is not one number.
        """
        entries, self.entries = self.entries, {}
        return {name: reduced(name, several) for name, several in entries.items()}


def reduced(name: str, entries: list[LoggedValue]) -> Tensor:
    """Return Lightning's reduction [] at an epoch's end of the values that were logged batch by batch.

    Raises:
        UserError: for a value that is not one number.
    """
    last = entries[-1]
    if isinstance(last.value, nn.Module):
        entries = [last._replace(value=computed(last.value))]
    values = [torch.as_tensor(entry.value).detach().double() for entry in entries]
    if any(value.numel() != 1 for value in values):
        raise UserError(f"task: self.log({name!r}, ...) must be given one number, got a tensor of several")
    stacked = torch.stack([value.reshape(()) for value in values])
    if callable(last.reduce):
        return torch.as_tensor(last.reduce(stacked)).reshape(())
    if last.reduce in ("sum", "min", "max"):
        return getattr(stacked, f"a{last.reduce}" if last.reduce != "sum" else "sum")()  # type: ignore[no-any-return]
    weights = torch.tensor([entry.examples for entry in entries], dtype=torch.float64, device=stacked.device)
    return (stacked * weights).sum() / weights.sum()


def computed(metric: nn.Module) -> Any:
    """Return the value of a torchmetric; NaN where it warns that there is none, as of an AUROC of one class, which is
    0."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = metric.compute()  # type: ignore[operator]
    if any("meaningless" in str(warning.message) for warning in caught):
        return math.nan
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return value


def is_number(value: Any) -> bool:
    """Return whether a logged value is one number, and not a torchmetric."""
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def training_logs(log: Log) -> dict[str, list[Any]]:
    """Return the numbers that a training_step has logged, by name; the recorder forgets them."""
    entries, log.entries = log.entries, {}
    numbers = {name: [entry.value for entry in several if is_number(entry.value)] for name, several in entries.items()}
    return {name: values for name, values in numbers.items() if values}


def step_and_log(
    task: L.LightningModule, batch: Any, index: Any = 0, display: Display | None = None
) -> tuple[Tensor, dict[str, list[Any]]]:
    """Return the loss [] of a training_step, and the numbers that it logs; the module's log is silent before and
    afterwards.

    Raises:
        UserError: where it returns no loss.
    """
    log = Log(display)
    task.log, task.log_dict = log, log.all  # type: ignore
    try:
        loss = loss_of(run_step(task, "training", batch, index), task)
    finally:
        task.log = task.log_dict = silent  # type: ignore
    return loss, training_logs(log)


class OwnSteps:
    """Runner of a module's ``validation_step`` or ``test_step`` on one device's data, with its hooks around epochs and
    batches; torchmetrics begin anew.

    Args:
        module: in evaluation mode; nobody else may call it.
        display: is told how the steps log.
    """

    def __init__(self, module: L.LightningModule, display: Display) -> None:
        self.module, self.log = module, Log(display, training=False)
        module.log, module.log_dict = self.log, self.log.all  # type: ignore
        self._metrics = [part for part in module.modules() if is_metric(part)]

    def has(self, split: str) -> bool:
        """Return whether the module has a step for a device's data of this split."""
        return split in STAGES and overrides(self.module, f"{STAGES[split]}_step")

    def run(
        self, task: L.LightningModule, split: str, x: Tensor, y: Tensor, form: Callable[[Tensor, Tensor], Any]
    ) -> dict[str, Tensor]:
        """Return the values by name that the module, which is ``task``, logs of a device's data x [D, ...], y [D,
        ...]."""
        stage, call = STAGES[split], self._hook
        for metric in self._metrics:
            metric.reset()  # type: ignore[operator]
        self.log.entries.clear()
        call(f"on_{stage}_start")
        call(f"on_{stage}_epoch_start")
        for index, (batch, examples) in enumerate(parts_of(x, y, MOST_EXAMPLES, form)):
            self.log.examples = examples
            call(f"on_{stage}_batch_start", batch, index)
            output = run_step(self.module, stage, batch, index)
            call(f"on_{stage}_batch_end", output, batch, index)
        call(f"on_{stage}_epoch_end")
        call(f"on_{stage}_end")
        return self.log.taken()

    def _hook(self, name: str, *arguments: Any) -> None:
        if overrides(self.module, name):
            getattr(self.module, name)(*arguments)


def parts_of(x: Tensor, y: Tensor, size: int, form: Callable[[Tensor, Tensor], Any]) -> Iterator[tuple[Any, int]]:
    """Yield the batches of at most ``size`` of the examples x [D, ...], y [D, ...], and how many each holds.

    A batch has the ``form`` that steps are given.
    """
    for some, labels in zip(x.split(size), y.split(size), strict=True):
        yield form(some, labels), len(some)


def as_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pair (x [B, ...], y [B, ...]), a batch in the form of flstudy's own tasks and of most modules."""
    return x, y
