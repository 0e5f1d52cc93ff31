"""A task as functions of its parameters, which executors differentiate, whatever LightningModule it is."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from flstudy.algorithms import Algorithm, Batch, Layout
from flstudy.lightning_hooks import SET_UP_HOOKS
from flstudy.run_settings import BufferMode
from flstudy.tasks.buffers import TaskBuffers, is_batch_norm
from flstudy.tasks.findings import failing, plain_findings
from flstudy.tasks.module_steps import (
    STAGES,
    CorrectBy,
    Display,
    OwnSteps,
    as_pair,
    call_on_batch,
    hooks_on_batches,
    leave_batches,
    loss_of,
    mute,
    overrides,
    predictions,
    run_step,
    set_up,
    share_right,
    silent,
    step_and_log,
    transferred,
    unmute,
)
from flstudy.tasks.recurrent_layers import map_recurrent_layers, unmap_recurrent_layers
from flstudy.tasks.stand_in_trainer import NeedsExecutor, StandInTrainer
from flstudy.tasks.task import Penalty, Task
from flstudy.user_error import UserError


class TaskFunction:
    """Losses and accuracies of a task at given parameters.

    Args:
        task: any LightningModule with ``example_losses(batch) -> [B]`` or, failing that, ``training_step``, which is
            given whole minibatches and reduces their losses itself. Where it returns their mean, the class attribute
            ``mean_over_examples = True`` may declare so: then batches are padded, which is faster. Batches of its own
            steps have the ``form`` of the data, a pair (x, y) unless `meet` gets another. A ``regulariser`` (`Penalty`)
            is added to the mean of ``example_losses``. The task is copied; the copy's ``log`` is silent,
            since no trainer stands behind it, and so are its torchmetrics. Methods that compare representations also
            ask for ``features(x) -> [B, d]``.
        buffers: whether its buffers are averaged over devices, local to them, or frozen.

    Raises:
        UserError: if the task has neither, has no trainable parameter, or has lazy or sparse layers.
    """

    def __init__(self, task: L.LightningModule, buffers: BufferMode = "average") -> None:
        name = type(task).__name__
        self.stand_in = StandInTrainer(name)
        set_up(task, self.stand_in)
        refuse_layers(task)
        self.tells_losses = hasattr(task, "example_losses")
        if not self.tells_losses and not overrides(task, "training_step"):
            raise UserError(
                f"task: {name} defines neither example_losses nor training_step, so it has no loss; add "
                f"`def example_losses(self, batch): x, y = batch; return cross_entropy(self(x), y, reduction='none')`"
            )
        self.module = without_values(task)
        has_steps = any(overrides(task, f"{stage}_step") for stage in STAGES.values())
        self.display = Display()
        self.steps = OwnSteps(copy.deepcopy(task).eval(), self.display) if has_steps else None
        # One of flstudy's own has no hooks and never asks for its Trainer.
        self.shipped = isinstance(task, Task) and type(task).__module__.startswith("flstudy.")
        self.model = task if self.shipped else copy.deepcopy(task)  # as it is, its log and metrics alive
        self.module.log = self.module.log_dict = silent  # type: ignore
        mute(self.module, name)
        map_recurrent_layers(self.module)
        self.layout = Layout.of((name, p) for name, p in self.module.named_parameters() if p.requires_grad)
        self._places = parameter_places(self.module)
        if self.layout.n == 0:
            raise UserError(f"task: {name} has no trainable parameter")
        penalty = getattr(task, "regulariser", None) if self.tells_losses else None  # a training_step has its own
        self.regulariser = penalty if isinstance(penalty, Penalty) else Penalty()
        self.buffers = TaskBuffers(self.module, buffers)
        norms = any(is_batch_norm(part) and part.training for part in self.module.modules())
        self._normalises = norms or self.buffers.change
        self.form: Callable[[Tensor, Tensor], Any] = as_pair
        self.rounds: int | None = None  # of the federation; None: nobody knows
        self.findings = plain_findings(task)
        self._heard: Heard | None = None
        self._call = Call(self.module)
        # A module of its own, since switching modes to and fro would keep a step from being compiled; its parameters
        # are the other's, since models come as arguments.
        compared = hasattr(task, "features") or overrides(task, "forward")
        shared: dict[int, Any] = {id(parameter): parameter for parameter in self.module.parameters()}
        self._fixed = Call(copy.deepcopy(self.module, shared).eval()) if compared else None
        self._numbers = plain_numbers(self.module)
        self._attach(self.stand_in)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the state of a copy, whose modules Lightning has left without a Trainer."""
        self.__dict__.update(state)
        self._attach(self.stand_in)

    def _attach(self, trainer: Any) -> None:
        """Attach all modules that are called to a Trainer, or to the stand-in for one."""
        called = [self.module, *([] if self.steps is None else [self.steps.module])]
        called += [] if self._fixed is None else [self._fixed.task]
        for module in called:
            module.trainer = trainer

    @contextmanager
    def attached_to(self, trainer: L.Trainer | None, epoch: int) -> Iterator[None]:
        """Attach the task to a Trainer for a while, or where there is none, let it know the round, from 0."""
        with self.stand_in.at(epoch):
            self._attach(trainer or self.stand_in)
            try:
                yield
            finally:
                self._attach(self.stand_in)

    @property
    def couples(self) -> bool:
        """Return whether the examples of a batch change each other's losses, so that padding must not be among them."""
        return self._normalises or not self.per_example

    @property
    def per_example(self) -> bool:
        """Return whether the loss of a batch is the mean of losses of single examples, which are known."""
        return self.findings.per_example

    @property
    def scores_accuracy(self) -> bool:
        """Return whether the task tells what is correct about an example."""
        return self.findings.correct_by is not None

    @property
    def maps_measures(self) -> bool:
        """Return whether losses and correctness of single examples can be mapped over devices."""
        return self.findings.runs == "mapped" and self.findings.maps_correct

    @property
    def has_loss(self) -> bool:
        """Return whether there is a loss of a device's data: not where a module optimises by itself."""
        return self.tells_losses or bool(self.module.automatic_optimization)

    def to(self, device: torch.device, dtype: torch.dtype) -> "TaskFunction":
        """Move the module's frozen parts; trained parameters come as arguments."""
        copies: list[nn.Module] = [self.module, *([] if self.shipped else [self.model])]
        copies += [] if self.steps is None else [self.steps.module]
        copies += [] if self._fixed is None else [self._fixed.task]
        for copied in copies:
            copied.to(device=device, dtype=dtype)
        return self

    def for_trainer(self) -> L.LightningModule:
        """Copy of the task for a Trainer of its own, which gives it pairs (x, y); with its own log and metrics."""
        task = copy.deepcopy(self.module)
        del task.log, task.log_dict
        for hook in (*SET_UP_HOOKS, "configure_callbacks", "teardown"):  # which are the federation's
            setattr(task, hook, silent)
        unmute(task, self.model)
        unmap_recurrent_layers(task)
        for path, value in self._numbers.items():  # evaluations may have changed those of the module
            owner, _, name = path.rpartition(".")
            vars(task.get_submodule(owner))[name] = value
        if self.form is not as_pair and not self.tells_losses:
            step, form, hooks = task.training_step, self.form, hooks_on_batches(task)
            task.training_step = lambda batch, batch_idx: step(  # type: ignore
                transferred(task, form(*batch), hooks), batch_idx
            )
            leave_batches(task)
        return task

    def serves(self, algorithm: Algorithm) -> None:
        """Raise UserError if the task lacks a function that the method needs."""
        name, method = type(self.module).__name__, type(algorithm).__name__
        if "features" in algorithm.needs and not hasattr(self.module, "features"):
            raise UserError(
                f"task: {name} defines no features(x), which {method} compares; add `def features(self, x)`, the "
                f"representations [B, d] that its classifier is given, or use Logistic, Mlp, Cnn, Vgg, ResNet18, "
                f"ResNet34, FastText or Lstm"
            )
        if "forward" in algorithm.needs and not overrides(self.module, "forward"):
            raise UserError(
                f"task: {name} defines no forward(x), whose logits {method} compares; add `def forward(self, x)` that "
                f"returns them, [B, classes]"
            )

    def refuse_changed(self) -> None:
        """Raise NeedsExecutor where training has changed a number that the module keeps in an attribute, which devices
        would share."""
        if (numbers := plain_numbers(self.module)) != self._numbers:
            changed = next(name for name in (*numbers, *self._numbers) if numbers.get(name) != self._numbers.get(name))
            name = type(self.module).__name__
            raise NeedsExecutor(name, f"changes its attribute {changed} while it trains", "under a trainer")

    def listening(self, names: tuple[str, ...]) -> "TaskFunction":
        """Return this task, which remembers what its ``training_step`` logs under these names."""
        listener = copy.copy(self)
        listener._heard = Heard(names)
        return listener

    def heard_sums(self, like: Tensor) -> Tensor:
        """Return [2 L]: sum over examples, and their number, of each name that was listened for, since the last
        call."""
        assert self._heard is not None
        return self._heard.taken(like)

    def no_losses(self, like: Tensor) -> Tensor:
        """Return the sums of losses before the first step, for lanes as in ``like`` [...]; the values that
        ``training_step`` logs stand behind the loss of a step, where there are any: [..., 1 + 2 L]."""
        training_logs = self.findings.training_logs
        return like.new_zeros((*like.shape, 1 + 2 * len(training_logs)) if training_logs else like.shape)

    def holding(self, b: Tensor) -> "TaskFunction":
        """Return this task, whose models [n] without buffers have these, [b]."""
        held = copy.copy(self)
        held.buffers = self.buffers.holding(b)
        return held

    def example_losses(self, y: Any, batch: Batch) -> Tensor:
        """Return the losses [B] at parameters y, flat [n] or as named tensors; those of training_step on batches of one
        for a task without ``example_losses``."""
        if self.tells_losses:
            own_losses: Tensor = self._at(y, call_on_batch, "example_losses", (batch.x, batch.y))
            return own_losses
        tensors = y if isinstance(y, Mapping) else self.tensors(y)

        names = list[str]()

        def one(x: Tensor, label: Tensor) -> tuple[Tensor, list[Tensor]]:
            loss, logged = self._step(tensors, x.unsqueeze(0), label.unsqueeze(0))
            names[:] = logged
            return loss, list(logged.values())

        losses: Tensor
        losses, logged = torch.vmap(one, randomness="different")(batch.x, batch.y)
        if self._heard is not None:
            mask = batch.mask
            real = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)
            for name, values in zip(names, logged, strict=True):
                masked = values if mask is None else torch.where(mask, values, 0)
                self._heard.add(name, masked.sum(), real.sum())
        return losses

    def __call__(self, y: Any, batch: Batch) -> Tensor:
        """Return the mean loss [] over the batch's real examples, plus the task's penalty."""
        return self.regularised(self.fit(y, batch), y)

    def regularised(self, loss: Tensor, y: Any) -> Tensor:
        """Return the loss [] plus the task's penalty on parameters y, flat [n] or as named tensors."""
        if not self.regulariser:
            return loss
        n = self.layout.n
        return loss + self.regulariser([y[name] for name in self.layout.names] if isinstance(y, Mapping) else [y[:n]])

    def fit(self, y: Any, batch: Batch) -> Tensor:
        """Return the mean loss [] over the batch's real examples, without a penalty; for a task without losses of
        single examples the loss that its ``training_step`` returns."""
        if self.tells_losses or (self.per_example and batch.mask is not None):
            return batch.mean(self.example_losses(y, batch))
        loss, logged = self._step(y, batch.x, batch.y)
        for name, value in logged.items():
            assert self._heard is not None
            self._heard.add(name, value * len(batch.y), value.new_full((), len(batch.y)))
        return loss

    def _step(self, y: Any, x: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss [] that training_step returns, and the values that it logs under names that are listened
        for."""
        if self._heard is None:
            return loss_of(
                self._at(y, run_step, "training", self.form(x, labels), self.stand_in.batch_idx), self.module
            ), {}
        loss, logged = self._at(y, step_and_log, self.form(x, labels), self.stand_in.batch_idx)
        return loss, {name: mean_of(values, loss) for name, values in logged.items() if name in self._heard.names}

    def training_logs(self, y: Any, batch: Batch) -> tuple[str, ...]:
        """Return the names of the numbers that training_step logs of a batch, at parameters y."""
        form, index = self.form(batch.x, batch.y), self.stand_in.batch_idx
        return tuple(self._at(y, step_and_log, form, index, self.display)[1])

    def logged(self, y: Any, split: str, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the values [] by name that the task's own validation_step or test_step logs of a device's data x [D,
        ...] and labels [D, ...], at parameters y.

        Raises:
            UserError: where the step fails.
        """
        assert self.steps is not None
        call = Call(self.steps.module)
        try:
            with torch.no_grad():
                values: dict[str, Tensor] = self._at(y, self.steps.run, split, x, labels, self.form, call=call)
        except UserError:
            raise
        except Exception as error:  # a module's own code has any
            name, method = type(self.module).__name__, f"{STAGES[split]}_step"
            raise failing(name, method, "examples", x, labels, error) from error
        return values

    def features(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """Return [B, d]: the task's representations of inputs x [B, ...] at parameters y, flat [n] or as named tensors;
        ``fixed``: of a model that does not train, in evaluation mode, without dropout."""
        return self._output("features", y, x, fixed).flatten(1)

    def logits(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """Return [B, ..., classes]: the task's ``forward`` of inputs x [B, ...], with the arguments of `features`."""
        return self._output("forward", y, x, fixed)

    def _output(self, method: str, y: Any, x: Tensor, fixed: bool) -> Tensor:
        assert self._fixed is not None, "serves was not asked"
        return self._at(y, method, x, call=self._fixed if fixed else self._call)

    def example_correct(self, y: Any, batch: Batch, by: CorrectBy | None = None) -> Tensor:
        """Return [B]: 1 where the task is right, at parameters y, by what it is found to say itself, or ``by``
        something else.

        Raises:
            TypeError: where that predicts no class.
        """
        by = by or self.findings.correct_by
        if by == "example_correct":
            return self._at(y, call_on_batch, by, (batch.x, batch.y))
        assert by is not None
        return share_right(*self.predicted(y, batch, by))

    def predicted(self, y: Any, batch: Batch, by: CorrectBy) -> tuple[Any, Tensor]:
        """Return the outputs of ``forward`` or ``predict_step`` at parameters y, and labels [B, ...], after the task's
        own hooks on batches."""
        return self._at(y, predictions, by, self.form, batch.x, batch.y)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Set the module to evaluation mode for a while: dropout is off."""
        training = [part for part in self.module.modules() if part.training]
        self.module.eval()
        try:
            yield
        finally:
            for part in training:  # and no other: a frozen BatchNorm stays as it is
                part.training = True

    def tensors(self, y: Tensor) -> dict[str, Tensor]:
        """Return named tensors of a model: of its parameters [n], and of buffers that lie behind them [n + b]."""
        if len(y) == self.layout.n:
            return self.layout.split(y)
        x, b = torch.split(y, [self.layout.n, len(y) - self.layout.n])
        return self.layout.split(x) | self.buffers.split(b)

    def _at(self, y: Any, method: str | Callable[..., Any], *arguments: Any, call: "Call | None" = None) -> Any:
        """Call a method of the task, or a function of it, at parameters y: they come in here and nowhere else."""
        tensors = self.buffers.given(y if isinstance(y, Mapping) else self.tensors(y))
        named = {f"task.{path}": tensors[name] for path, name in self._places if name in tensors}
        call = call or self._call
        buffers = {name: tensors[name] for name in self.buffers.layout.names if name in tensors}
        if not call.task.training:  # what a measurement writes is its own
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            named |= {f"task.{path}": buffers[name] for path, name in self._places if name in buffers}
        # Not tie_weights: of a module under two names it would leave the last call's tensors behind.
        return functional_call(call, named, (buffers, method, *arguments), tie_weights=False)


class Heard:
    """Record of the values that a ``training_step`` logs.

    Args:
        names: of the values that are remembered.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._sums = dict[str, tuple[Tensor, Tensor]]()

    def add(self, name: str, total: Tensor, examples: Tensor) -> None:
        """Record a sum [] over examples, and their number []."""
        self._sums[name] = total, examples

    def taken(self, like: Tensor) -> Tensor:
        """Return [2 L]: sum and number of each name, 0 where it was not logged; the record is then empty."""
        sums, self._sums = self._sums, {}
        nothing = like.new_zeros(())
        parts = [part for name in self.names for part in sums.get(name, (nothing, nothing))]
        return torch.stack([part.to(like.dtype) for part in parts]) if parts else like.new_zeros(0)


def mean_of(values: Sequence[Any], like: Tensor) -> Tensor:
    """Return the mean [] of numbers, each [] or Python's, in the type and on the device of ``like``."""
    numbers = [value.detach().reshape(()).to(like) if isinstance(value, Tensor) else like.new_full((), value).detach()
            for value in values]  # fmt: skip
    return numbers[0] if len(numbers) == 1 else torch.stack(numbers).mean()


def refuse_layers(task: L.LightningModule) -> None:
    """Raise UserError for layers whose parameters or gradients are no tensors of known sizes."""
    for path, part in task.named_modules():
        where = f"task: {type(task).__name__}.{path} is {type(part).__name__}"
        if any(is_lazy(parameter) for parameter in part.parameters(recurse=False)):
            raise UserError(f"{where}, whose sizes only a first batch tells: give them, or call it once in setup")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise UserError(f"{where} with sparse=True, whose gradients no method takes: set sparse=False")


def plain_numbers(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and words in attributes of a user's own modules, by path; whether a part trains is none of
    them."""
    return {
        f"{path}.{name}" if path else name: value
        for path, part in module.named_modules()
        if type(part).__module__.split(".")[0] not in ("torch", "flstudy", "torchmetrics")
        for name, value in vars(part).items()
        if isinstance(value, int | float | str) and name != "training" and not name.startswith("__")
    }


def without_values(task: L.LightningModule) -> L.LightningModule:
    """Copy whose trained parameters are zero, since they are always given as arguments: so the copies of equal tasks
    are equal."""
    plain = [p for p in task.parameters() if p.requires_grad and type(p) is nn.Parameter and not vars(p)]
    copied = copy.deepcopy(task, {id(p): nn.Parameter(torch.empty_like(p)) for p in plain})
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    return copied


def parameter_places(module: nn.Module) -> list[tuple[str, str]]:
    """Return the places of a module's parameters and buffers, each once even if a submodule has several names, as pairs
    of the place's first path and the parameter's name; a tied parameter has several places."""
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return [
        (f"{path}.{attribute}" if path else attribute, names[id(tensor)])
        for path, part in module.named_modules()
        for attribute, tensor in (
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
        )
        if id(tensor) in names
    ]


class Call(nn.Module):
    """Module that calls any method of a task, or function of it, so that ``functional_call`` can reach it."""

    task: L.LightningModule

    def __init__(self, task: L.LightningModule) -> None:
        super().__init__()
        self.task = task

    def forward(self, written: Mapping[str, Tensor], method: str | Callable[..., Any], *arguments: Any) -> Any:
        """Return the method's result, or the function's.

        A buffer that it has assigned anew is copied into the one of that name in ``written``, whose buffers are shaped
        as in the module. So it ends like one that is changed in place.
        """
        result = method(self.task, *arguments) if callable(method) else getattr(self.task, method)(*arguments)
        for name, buffer in written.items():
            if (assigned := self.task.get_buffer(name)) is not buffer:
                buffer.copy_(assigned.detach())
        return result
