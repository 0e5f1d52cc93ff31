"""Calls of a LightningModule on a few examples before it trains: whether ``training_step`` can be mapped, whether
labels matter to it, and under which names it logs. They are made on a copy, near the module's own parameters."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from flstudy.algorithms import Batch
from flstudy.process_state import PROCESS_STATE
from flstudy.tasks.attention import mappable_attention
from flstudy.tasks.findings import DROPOUT, UNDECLARED, TaskFindings, brief, failing, plain_findings, trained_parameters
from flstudy.tasks.module_steps import (
    MOST_EXAMPLES,
    STAGES,
    CorrectBy,
    as_pair,
    call_on_batch,
    loss_of,
    overrides,
    run_step,
    share_right,
    silent,
)
from flstudy.tasks.stand_in_trainer import NeedsExecutor
from flstudy.tasks.task_function import TaskFunction
from flstudy.user_error import UserError

EXAMPLES = 6  # on which a module is called
LANES = (None, None, None)  # epoch, step and batch, as mapped devices know them
NOISE = 0.05  # deviation of the noise on its parameters: at zeros nothing would depend on anything
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative, of losses that are the same


def look(task_function: TaskFunction, x: Tensor, y: Tensor, classes: int) -> TaskFindings:
    """Return the findings from a few examples x [B, ...] with labels y [B, ...] of so many classes (0: of none).

    Raises:
        UserError: where its training_step fails, or returns no loss.
    """
    findings = plain_findings(task_function.model)
    with drawing_apart(x.device), task_function.stand_in.at(0, 0, 0):
        torch.default_generator.manual_seed(0)
        task = near(task_function)
        if findings.runs == "mapped":
            findings = of_training(task_function, findings, task, x, y)
            training_logs = None if findings.runs == "under a trainer" else names_told(task_function, task, x, y)
            findings = findings._replace(training_logs=training_logs)
        draws = plain_findings(task).draws or is_random(task_function, x, y)
        findings = findings._replace(correct_by=said_correct(task_function, task, x, y, classes), draws=draws)
        return findings._replace(maps_correct=maps_correct(task_function, task, findings, x, y))


def near(task_function: TaskFunction) -> L.LightningModule:
    """Return a copy of the task whose trained parameters are a little away from its own; frozen ones are called as they
    are."""
    task = copy.deepcopy(task_function.model)
    task.log = task.log_dict = silent  # type: ignore
    task.trainer = task_function.stand_in  # type: ignore[assignment]
    with torch.no_grad():
        for parameter in task.parameters():
            if parameter.requires_grad:
                parameter.add_(NOISE * torch.randn_like(parameter))
    return task


def of_training(
    task_function: TaskFunction, findings: TaskFindings, task: L.LightningModule, x: Tensor, y: Tensor
) -> TaskFindings:
    """Return the findings on where a task can be trained: mapped over devices, one device after another, or under a
    Trainer.

    Args:
        task_function: of the task.
        findings: those before its calls.
        task: a copy, which is called.
        x: [B, ...] inputs of a few examples.
        y: [B, ...] their labels.

    Raises:
        UserError: where its training_step fails, returns no loss, or contradicts a declared mean.
    """
    without_dropout(task)
    if (need := need_of(task_function, task, x, y)) is not None:
        return findings._replace(runs=need.runs, why=f"it {need.does}")
    if task_function.tells_losses:
        if (trouble := mapping_trouble(task_function, task, x, y, masked=True)) is None:
            return findings
        return findings._replace(runs="one by one", why=f"its example_losses cannot be mapped: {trouble}")
    why = UNDECLARED
    if findings.per_example:
        refuse_other_than_mean(task, task_function.form, x, y)
        if (trouble := mapping_trouble(task_function, task, x, y, masked=True)) is None:
            return findings
        why = f"its training_step cannot be mapped over examples: {trouble}"
    if (trouble := mapping_trouble(task_function, task, x, y, masked=False)) is None:
        return TaskFindings(False, "mapped", why)
    return TaskFindings(False, "one by one", f"its training_step cannot be mapped: {trouble}")


def need_of(task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor) -> NeedsExecutor | None:
    """Find what a task reads or does, on x [B, ...] and y [B, ...], that executors of many devices at once cannot
    follow; None: nothing.

    Raises:
        UserError: where its training_step fails, or returns no loss.
    """
    name, stand_in = type(task).__name__, task_function.stand_in
    need = None
    for place in (LANES, (0, 0, 0)):  # in lanes; one device after another
        try:
            with stand_in.at(*place):
                differentiate(task_function, task, x, y)
            task_function.refuse_changed()
            return need
        except NeedsExecutor as error:
            need = error
            if need.runs == "under a trainer":
                return need
        except UserError:
            raise
        except Exception as error:  # torch.func has many, and a module's own code others
            refuse_failing(task_function, task, x, y)
            return NeedsExecutor(name, f"does what torch.func cannot differentiate ({brief(error)})", "under a trainer")
    return need


def refuse_failing(task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor) -> None:
    """Raise UserError for a training_step, or example_losses, that fails by itself on x [B, ...] and y [B, ...],
    too."""
    method = "example_losses" if task_function.tells_losses else "training_step"
    try:
        if task_function.tells_losses:
            call_on_batch(task, method, (x, y))
        else:
            plain_loss(task, task_function.form(x, y))
    except NeedsExecutor:
        return
    except Exception as error:
        raise failing(type(task).__name__, method, "training examples", x, y, error) from error


@contextlib.contextmanager
def drawing_apart(device: torch.device) -> Iterator[None]:
    """Draw random numbers of torch that leave no trace, on the host and a device."""
    with PROCESS_STATE, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def is_random(task_function: TaskFunction, x: Tensor, y: Tensor) -> bool:
    """Return whether a training loss of x [B, ...] and y [B, ...] changes with the random numbers, as with
    ``functional.dropout``. It is False for a task that cannot be called by itself."""
    task = near(task_function).train()
    task.to(device=x.device, dtype=x.dtype if x.is_floating_point() else None)

    def loss(seed: int) -> Tensor:
        twin = copy.deepcopy(task)  # a call may change its buffers
        twin.trainer = task.trainer
        if not task_function.tells_losses:
            return plain_loss(twin, task_function.form(x, y), seed=seed)
        torch.default_generator.manual_seed(seed)
        with torch.no_grad():
            losses: Tensor = call_on_batch(twin, "example_losses", (x, y))
            return losses.mean()

    try:
        with drawing_apart(x.device):
            return not torch.equal(loss(0), loss(1))
    except Exception:  # as its first round will say
        return False


def without_dropout(task: L.LightningModule) -> None:
    """Set a module to training mode, but for its dropout."""
    task.train()
    for part in task.modules():
        if isinstance(part, DROPOUT):
            part.eval()


def plain_loss(task: L.LightningModule, batch: Any, seed: int = 0) -> Tensor:
    """Return the loss [] as Lightning computes it; UserError where there is none."""
    torch.default_generator.manual_seed(seed)
    with torch.no_grad():
        return loss_of(run_step(task, "training", batch), task)


def refuse_other_than_mean(
    task: L.LightningModule, form: Callable[[Tensor, Tensor], Any], x: Tensor, y: Tensor
) -> None:
    """Raise UserError where a few examples x [B, ...], y [B, ...] contradict a declared mean, in double precision where
    the module bears that."""
    if not equal_losses(plain_loss(task, form(x, y)), plain_loss(task, form(x, y), seed=1)):  # random even now
        task.eval()
    try:
        twin = copy.deepcopy(task).double()
        twin.trainer = task.trainer
        both = [part.double() if part.is_floating_point() else part for part in (x, y)]
        whole = plain_loss(twin, form(*both))
    except Exception:  # a module that names its precision, or a device without doubles
        twin, both = task, [x, y]
        whole = plain_loss(twin, form(*both))
    name = type(task).__name__
    try:
        losses = [plain_loss(twin, form(*(part[k : k + 1] for part in both))) for k in range(len(x))]
    except Exception as error:  # a layer that needs several examples
        raise UserError(
            f"task: {name} declares mean_over_examples, but its training_step fails on a batch of one example: "
            f"{brief(error)}: leave the declaration out"
        ) from error
    if not equal_losses(whole, mean := torch.stack(losses).mean()):
        raise UserError(
            f"task: {name} declares mean_over_examples, but its loss of {len(x)} examples is {float(whole):.6g}, and "
            f"the mean of their losses {float(mean):.6g}: leave the declaration out"
        )


@contextlib.contextmanager
def in_modes_of(module: nn.Module, like: nn.Module) -> Iterator[None]:
    """Set a module's parts to training or evaluation mode as another's are, for a while."""
    modes = {name: part.training for name, part in like.named_modules()}
    before = [(part, part.training) for part in module.modules()]
    try:
        for name, part in module.named_modules():
            part.training = modes.get(name, part.training)
        yield
    finally:
        for part, training in before:
            part.training = training


def differentiate(task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor) -> None:
    """Differentiate the loss of x [B, ...] and y [B, ...] as executors do."""
    named, b = parts_of_model(task_function, task)
    with in_modes_of(task_function.module, task):
        grad(lambda named: task_function.fit({**named, **own_buffers(task_function, b)}, Batch(x, y)))(named)


def own_buffers(task_function: TaskFunction, b: Tensor) -> dict[str, Tensor]:
    """Return the named buffers of b [b], to be written to."""
    return {name: part.clone() for name, part in task_function.buffers.split(b).items()}


def parts_of_model(task_function: TaskFunction, task: L.LightningModule) -> tuple[dict[str, Tensor], Tensor]:
    """Return a module's trained parameters by name, and its buffers b [b] as models hold them, in the same
    precision."""
    named = trained_parameters(task)
    return named, task_function.buffers.first().to(next(iter(named.values())))


def mapping_trouble(
    task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor, masked: bool
) -> str | None:
    """Return the reason why the gradient of the loss of x [B, ...] and y [B, ...] cannot be mapped over devices; None:
    it can. With ``masked`` batches are padded, and their loss is the mean of single ones."""
    named, b = parts_of_model(task_function, task)
    flat_parameters = task_function.layout.flat(named)
    mask = torch.ones(len(x), dtype=torch.bool, device=x.device) if masked else None
    before = task_function.findings
    task_function.findings = before._replace(per_example=masked)

    def slope(flat: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Any:
        def loss(named: dict[str, Tensor]) -> Tensor:  # buffers are its own: it writes to them
            return task_function.fit({**named, **own_buffers(task_function, b)}, Batch(x, y, mask))

        return grad(loss)(task_function.layout.split(flat))

    try:
        with mappable_attention(x.device):
            torch.vmap(slope, randomness="different")(
                *(torch.stack([part, part]) for part in (flat_parameters, b, x, y))
            )
    except Exception as error:  # torch.func has many, and a module's own code others
        return brief(error)
    finally:
        task_function.findings = before
    return None


def said_correct(
    task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor, classes: int
) -> CorrectBy | None:
    """Return the declaration of what is correct about examples x [B, ...], y [B, ...]; None: there is none.

    It is an example_correct, classes of a predict_step, or those of a forward whose cross-entropy is the loss.

    Raises:
        UserError: for an example_correct that fails.
    """
    named = trained_parameters(task)
    with torch.no_grad(), task_function.evaluating():
        if hasattr(task, "example_correct"):
            try:
                task_function.example_correct(named, Batch(x, y), "example_correct")
            except NeedsExecutor:
                pass  # an evaluation attaches its Trainer
            except Exception as error:
                raise failing(type(task).__name__, "example_correct", "examples", x, y, error) from error
            return "example_correct"
        if y.is_floating_point():
            return None
        if overrides(task, "predict_step"):
            with contextlib.suppress(Exception):  # one that predicts something else
                outputs, labels = task_function.predicted(named, Batch(x, y), "predict_step")
                share_right(outputs, labels)
                if not outputs.is_floating_point() or outputs.shape[-1] == classes:
                    return "predict_step"
        if classes > 1 and overrides(task, "forward") and is_cross_entropy(task_function, named, x, y, classes):
            return "forward"
    return None


def is_cross_entropy(task_function: TaskFunction, named: dict[str, Tensor], x: Tensor, y: Tensor, classes: int) -> bool:
    """Return whether a task's loss of inputs x [B, ...] is the cross-entropy of its forward, for these labels y [B] and
    for others.

    Each is called after the module's own hooks on batches. ``named`` are its trained parameters.
    """
    if y.dim() != 1:
        return False
    try:
        for labels in (y, (y + 1) % classes, torch.arange(len(y), device=y.device) % classes):
            logits, targets = task_function.predicted(named, Batch(x, labels), "forward")
            share_right(logits, targets)
            loss = task_function.fit(named, Batch(x, labels))
            if logits.dim() != 2 or not torch.isfinite(loss) or not equal_losses(loss, cross_entropy(logits, targets)):
                return False
    except Exception:  # a forward of another kind
        return False
    return True


def maps_correct(
    task_function: TaskFunction, task: L.LightningModule, findings: TaskFindings, x: Tensor, y: Tensor
) -> bool:
    """Return whether what tells the correct ones of examples x [B, ...], y [B, ...] can be mapped over devices."""
    if (by := findings.correct_by) is None:
        return True
    flat = task_function.layout.flat(trained_parameters(task))

    def correct(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task_function.example_correct(task_function.layout.split(flat), Batch(x, y), by)

    try:  # without a round, which lanes do not know
        with (
            torch.no_grad(),
            task_function.evaluating(),
            mappable_attention(x.device),
            task_function.stand_in.at(*LANES),
        ):
            torch.vmap(correct, randomness="different")(*(torch.stack([part, part]) for part in (flat, x, y)))
    except Exception:  # torch.func has many, and a module's own code others
        return False
    return True


def names_logged(task_function: TaskFunction, x: Tensor, y: Tensor) -> dict[str, tuple[str, ...]] | None:
    """Return the names under which a module's validation_step and test_step log of x [D, ...] and y [D, ...], by split;
    None where they ask for a Trainer.

    Raises:
        UserError: for a step that fails on a few examples, and on many, as a score does that needs all classes.
    """
    names, named = {}, trained_parameters(task_function.model)
    splits = [split for split in STAGES if task_function.steps is not None and task_function.steps.has(split)]
    with drawing_apart(x.device), task_function.stand_in.at(0, 0, 0):
        for split in splits:
            try:
                names[split] = tuple(task_function.logged(named, split, *evenly_chosen(x, y, EXAMPLES)))
            except NeedsExecutor:
                return None
            except UserError:
                names[split] = tuple(task_function.logged(named, split, *evenly_chosen(x, y, MOST_EXAMPLES)))
    return names


def evenly_chosen(x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return at most so many of the examples x [D, ...], y [D, ...], at equal distances."""
    rows = torch.linspace(0, len(x) - 1, min(count, len(x)), device=x.device).round().long()
    return x[rows], y[rows]


def names_told(task_function: TaskFunction, task: L.LightningModule, x: Tensor, y: Tensor) -> tuple[str, ...]:
    """Return the names of the numbers that a training_step logs of x [B, ...] and y [B, ...], but for torchmetrics,
    which are muted where it is mapped."""
    if task_function.tells_losses:
        return ()
    torch.default_generator.manual_seed(0)
    named, b = parts_of_model(task_function, task)
    with torch.no_grad(), in_modes_of(task_function.module, task):
        return task_function.training_logs({**named, **own_buffers(task_function, b)}, Batch(x, y))


def equal_losses(loss: Tensor, other_loss: Tensor) -> bool:
    """Return whether two losses [] are equal to rounding, or neither is finite."""
    if not torch.isfinite(loss):
        return not torch.isfinite(other_loss)
    return bool((loss - other_loss).abs() <= ROUNDING.get(loss.dtype, 1e-2) * (1 + loss.abs()))


def meet(
    task_function: TaskFunction,
    x: Tensor,
    y: Tensor,
    classes: int,
    form: Callable[[Tensor, Tensor], Any] | None = None,
) -> None:
    """Find out by some examples how a task can be trained, and what it logs.

    Args:
        task_function: of the task; gets the findings.
        x: [D, ...] inputs.
        y: [D, ...] labels.
        classes: number of labels; 0 where they are no classes.
        form: function of x and y that makes the batch for the task's own steps; None: a pair.

    Raises:
        UserError: if one of its steps, or its example_losses, fails on them, or training_step returns no loss.
    """
    task_function.form = form or as_pair
    if not task_function.shipped:
        task_function.findings = look(task_function, *evenly_chosen(x, y, EXAMPLES), classes)
    if task_function.steps is not None:
        task_function.findings = task_function.findings._replace(logs=names_logged(task_function, x, y))
