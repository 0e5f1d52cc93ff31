"""Metrics of a federation that a LightningModule's own ``validation_step`` and ``test_step`` log.

A step is called on every available device's own data, with the model that the device uses; the hooks around epochs and
batches are called, too, and torchmetrics begin anew on each device. A metric keeps the name under which it was logged,
unless both steps log it: then it is ``valid/NAME`` and ``test/NAME``. Its value is the mean over devices, weighted by
their examples of the split; ``NAME_spread`` is the standard deviation over devices. A value that is not finite is
undefined on its device, as a score is that needs all classes: it is left out, and ``NAME_devices`` is the number of
devices whose values count. A step that takes a
``dataloader_idx`` is given 0, which is the device's own data: there are no other loaders.

A value that ``training_step`` logs is a metric of each round: the mean over the examples of all steps of all
participants. It is ``train/NAME`` where a step for evaluation logs the same name. A torchmetric in ``training_step`` is
left out, since it cannot be mapped over devices. Two measures of one name are refused.
"""

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flstudy.algorithms import Batch, Round
from flstudy.execution import ClientBank
from flstudy.execution.devices import forked_random
from flstudy.federation.asked_devices import AskedDevices
from flstudy.metrics.registry import METRICS, of_server
from flstudy.population.datasets.base import Dataset
from flstudy.population.datasets.in_memory import InMemory
from flstudy.population.streams import torch_seed
from flstudy.tasks import TaskFunction
from flstudy.tasks.module_steps import STAGES
from flstudy.tasks.probing import meet
from flstudy.user_error import UserError

MADE_UP = 6  # examples, where a data set is not loaded


class Logged(NamedTuple):
    """Logged number of one device."""

    name: str
    replica: int
    device: int
    value: Tensor  # []
    weight: int


def module_metrics(
    asked_devices: AskedDevices,
    server: Any,
    bank: ClientBank | None,
    this_round: Round,
    round: int,
    splits: Sequence[str],
) -> dict[str, list[float]]:
    """Return the metrics that a task's own evaluation steps log for some splits, by name, a value per replica.

    A logged metric weights devices by their numbers of examples. For a task whose loss is of whole batches only, the
    result also holds ``valid/loss`` and ``test/loss``, in which every device counts the same.

    Args:
        asked_devices: the devices to measure, and their examples.
        server: the server's state, leaves [S, ...].
        bank: rows of client state, from which each device's own model is made; None: the server's models are measured.
        this_round: the round as algorithms see it.
        round: the round's number, from 1.
        splits: ``valid``, ``test`` or both.

    Raises:
        UserError: for two metrics of one name, or a step that fails.
    """
    task_function = asked_devices.evaluator.task_function
    steps = task_function.steps
    logging = [split for split in splits if steps is not None and steps.has(split)]
    loss_of_batch = not task_function.per_example and task_function.has_loss
    if not logging and not loss_of_batch:
        return {}
    asked_devices.logged = {}
    logged, losses = list[Logged](), list[Logged]()
    attached = task_function.attached_to(asked_devices.trainer, round - 1)
    with torch.no_grad(), attached, task_function.evaluating():
        for replica, device, model, concept in devices(asked_devices, server, bank, this_round, round):
            for split in splits:
                x, y = examples(asked_devices, replica, device, split, round, concept)
                seed = torch_seed(asked_devices.population.seeds[replica], f"{split} {device} {round}")
                with forked_random(asked_devices.device, seed):
                    if loss_of_batch:
                        loss = task_function.fit(model, Batch(x, y))
                        losses.append(Logged(f"{split}/loss", replica, device, loss.double(), 1))
                    if split in logging:
                        numbers = task_function.logged(model, split, x, y)
                        logged += [
                            Logged(f"{split}:{name}", replica, device, value, len(y)) for name, value in numbers.items()
                        ]
    replicas = len(server.x)
    keys = {split: [entry.name for entry in logged if entry.name.startswith(f"{split}:")] for split in logging}
    names = shown_names({split: [name.partition(":")[2] for name in names] for split, names in keys.items()})
    own_name = of_server if bank is None and asked_devices.algorithm.personalized else str
    of_losses = {name: line.mean for name, line in over_logged(losses, replicas).items()}
    asked_devices.logged |= {own_name(name): [entry for entry in losses if entry.name == name] for name in of_losses}
    metrics = dict[str, list[float]]()
    for key, line in over_logged(logged, replicas, left_out=math.isnan).items():
        split, _, name = key.partition(":")
        shown = names[split, name]
        of_devices = {shown: line.mean, f"{shown}_spread": line.spread, f"{shown}_devices": line.devices}
        metrics = with_logged(metrics, of_devices, task_function)
        metric = own_name(shown)
        asked_devices.logged[metric] = [entry for entry in logged if entry.name == key]
        if line.undefined is not None and metric not in asked_devices.undefined:
            asked_devices.undefined.add(metric)
            warnings.warn(undefined_on(asked_devices, metric, split, *line.undefined, round), stacklevel=2)
    return with_logged(of_losses, metrics, task_function)


def with_logged(
    metrics: Mapping[str, list[float]], logged: Mapping[str, list[float]], task_function: TaskFunction
) -> dict[str, list[float]]:
    """Return the metrics together with those that a task's own steps have logged.

    Raises:
        UserError: for two of one name, where only a run tells under which names the task logs.
    """
    refuse_second(metrics, logged, task_function)
    return {**metrics, **logged}


def refuse_second(measured: Collection[str], logged: Iterable[str], task_function: TaskFunction) -> None:
    """Raise UserError for a name that a task's own steps have logged, and that is among those ``measured``."""
    if twice := [name for name in logged if name in measured]:
        task = type(task_function.module).__name__
        raise UserError(f"task: {twice[0]} is measured already, and logged by {task}: log it under another name")


def devices(
    asked_devices: AskedDevices, server: Any, bank: ClientBank | None, this_round: Round, round: int
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield replica, device, model [n] and concept [] for every available device of a round (from 1), or of its panel.

    The model is the device's own, made from its row in the ``bank``. Without a ``bank`` it is the server's.
    """
    algorithm = asked_devices.algorithm
    asked, x = asked_devices.asked(round), asked_devices.models(server)
    choice = None
    if x.shape[1] > 1 and bank is None:
        choice = asked_devices.choice(server, this_round, round, asked)
    deployed = torch.vmap(torch.vmap(algorithm.deployed, in_dims=(None, 0)))
    numbers = asked.devices
    for place in range(numbers.shape[1]):
        if not asked.available[:, place].any():
            continue
        if bank is not None:
            clients = numbers[:, place : place + 1]
            plain = server.x if server.x.dim() == 2 else server.x[:, 0]
            models = deployed(server, bank.read(algorithm, clients, plain))[:, 0]
        elif choice is None:
            models = x[:, 0]
        else:
            models = torch.stack([of[m] for of, m in zip(x, choice[:, place].tolist(), strict=True)])
        for replica in range(len(x)):
            if asked.available[replica, place]:
                yield replica, int(numbers[replica, place]), models[replica], asked.concepts[replica, place]


def examples(
    asked_devices: AskedDevices, replica: int, device: int, split: Any, round: int, concept: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the inputs [V, ...] and labels [V, ...] of a device's split in a round (from 1), under a concept [].

    A panel may ask about some of the examples only.
    """
    held, devices = asked_devices.population.device_data, np.array([device])
    rows, _ = held.flat(replica, devices, split, round, asked_devices.examples_per_device(round))
    return asked_devices.evaluator.store.gather(torch.from_numpy(rows).to(asked_devices.device), concept)


def shown_names(logs: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    """Return the metric names of what each split logs: the name itself, or split/name where several splits have it."""
    every = [(split, name) for split, names in logs.items() for name in dict.fromkeys(names)]
    several = {name for split, name in every if any(name in names for other, names in logs.items() if other != split)}
    return {(split, name): f"{split}/{name}" if name in several else name for split, name in every}


def training_metrics(task_function: TaskFunction, logged: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the metrics that ``training_step`` logged in a round, a value per replica, of sums and example counts [S,
    J, 2]."""
    if not logged:
        return {}
    sums = torch.stack([values.double().sum(1) for values in logged.values()])
    names = shown_training_names(task_function, tuple(logged))
    return {
        names[name]: [total / count if count else math.nan for total, count in line]
        for name, line in zip(logged, sums.tolist(), strict=True)
        if name in names and any(count for _, count in line)
    }


def shown_training_names(task_function: TaskFunction, logged: Sequence[str]) -> dict[str, str]:
    """Return the metric names of what ``training_step`` logs."""
    others = {name for names in (task_function.findings.logs or {}).values() for name in names}
    return {name: f"train/{name}" if name in others else name for name in logged}


class OverDevices(NamedTuple):
    """Values of a logged name over devices, a value per replica."""

    mean: list[float]  # by their weights; NaN where no device has one
    spread: list[float]  # standard deviation, whatever their weights: FLASH (Panchal et al. 2023), eq. (3)
    devices: list[float]  # number of them
    undefined: tuple[int, int] | None  # the first replica and device whose value is left out


def over_logged(
    logged: Sequence[Logged], replicas: int, left_out: Callable[[float], bool] = lambda value: False
) -> dict[str, OverDevices]:
    """Return the means and deviations over devices of each logged name, without values that are left out. All numbers
    leave the device at once."""
    numbers = torch.stack([entry.value.double() for entry in logged]).tolist() if logged else []
    by_name: dict[str, list[list[tuple[float, int]]]] = {}
    undefined: dict[str, tuple[int, int]] = {}
    for entry, number in zip(logged, numbers, strict=True):
        lines = by_name.setdefault(entry.name, [[] for _ in range(replicas)])
        if left_out(number):
            undefined.setdefault(entry.name, (entry.replica, entry.device))
        else:
            lines[entry.replica].append((number, entry.weight))
    return {
        name: OverDevices(
            [weighted_mean(line) for line in lines],
            [plain_deviation(line) for line in lines],
            [float(len(line)) for line in lines],
            undefined.get(name),
        )
        for name, lines in by_name.items()
    }


def undefined_on(asked_devices: AskedDevices, name: str, split: str, replica: int, device: int, round: int) -> str:
    """Return a sentence on a measure that is undefined on a device in a round (from 1). It tells the cause where all
    labels there are the same."""
    held = asked_devices.population.device_data
    most = asked_devices.examples_per_device(round)
    rows = held.flat(replica, np.array([device]), split, round, most)[0]  # type: ignore[arg-type]
    labels = asked_devices.evaluator.store.y[torch.from_numpy(rows)].unique(dim=0)
    cause = f", whose {len(rows)} examples all have label {labels[0].tolist()}" if len(labels) == 1 else ""
    seed = asked_devices.population.seeds[replica]
    return f"{name} is undefined on device {device} (seed {seed}){cause}: {name} is the mean of {name}_devices devices"


def weighted_mean(line: Sequence[tuple[float, int]]) -> float:
    """Return the mean of values with weights."""
    total = sum(weight for _, weight in line)
    return sum(value * weight for value, weight in line) / total if total else math.nan


def plain_deviation(line: Sequence[tuple[float, int]]) -> float:
    """Return the standard deviation of values, whatever their weights."""
    if not line:
        return math.nan
    mean = sum(value for value, _ in line) / len(line)
    return float((sum((value - mean) ** 2 for value, _ in line) / len(line)) ** 0.5)


# ---- before a run ------------------------------------------------------------------------------------------------


def foresee(task_function: TaskFunction, dataset: Dataset) -> None:
    """Try a task on a few examples before its data set is loaded: the data set's own where they are in memory.

    Otherwise the examples are random ones of the same shape and kind. An error on these proves nothing and is ignored,
    except for a training_step that returns no loss.

    Raises:
        UserError: for a training_step that returns no loss, or fails on the data set's own examples.
    """
    dtype = next(task_function.model.parameters()).dtype
    in_memory = dataset.examples if isinstance(dataset, InMemory) else None
    x, y = in_memory[:2] if in_memory is not None else made_up(dataset)
    x, y = (part.to(dtype) if part.is_floating_point() else part for part in (x, y))
    try:
        meet(task_function, x, y, dataset.classes, dataset.form)
    except ValueError as error:
        if in_memory is not None or "must return the loss" in str(error):
            raise


def made_up(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return made-up inputs [B, ...] and labels [B] of the kind that a data set has; B is `MADE_UP`."""
    shape, generator = (MADE_UP, *dataset.shape), torch.Generator().manual_seed(0)
    if dataset.tokens:
        x = torch.randint(1, max(2, dataset.tokens), shape, generator=generator)
    else:
        x = torch.rand(shape, generator=generator)
    if dataset.classes:
        return x, torch.arange(MADE_UP) % dataset.classes
    return x, torch.rand(MADE_UP, generator=generator)


def promised(task_function: TaskFunction, measured: Collection[str]) -> list[str]:
    """Return the names of the metrics that a task's own steps are known to log, in training too.

    Raises:
        UserError: for one that the run has ``measured`` already, that two logged names make, or that no file takes.
    """
    task = type(task_function.module).__name__
    ours = "measured by flstudy"
    origins = dict.fromkeys(measured, ours)
    own_metrics = list[tuple[str, str]]()
    for name, metric in shown_training_names(task_function, task_function.findings.training_logs or ()).items():
        also = "" if metric == name else ", as another step does"
        own_metrics.append((metric, f"logged as {name!r} by {task}.training_step{also}"))
    for (split, name), metric in shown_names(task_function.findings.logs or {}).items():
        logged = f"logged as {name!r} by {task}.{STAGES[split]}_step"
        of_devices = {metric: "", f"{metric}_spread": "the deviation of what is ", f"{metric}_devices": "the count of "}
        own_metrics += [(part, f"{what}{logged}") for part, what in of_devices.items()]
        own_metrics += [
            (of_server(part), f"{what}{logged}, of the server's model") for part, what in of_devices.items()
        ]
    for metric, origin in own_metrics:
        if metric in origins:
            which = "it" if origins[metric] == ours else "one of them"
            raise UserError(f"task: {metric} is {origins[metric]}, and {origin}: log {which} under another name")
        origins[metric] = origin
        try:
            metric.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"task: {metric!r} is {origin}, and no file takes it: log it under another name") from error
    return [metric for metric, _ in own_metrics]


def cannot_know(task_function: TaskFunction, metric: str) -> bool:
    """Return whether only a run tells if a task's own steps log a metric."""
    unknown = task_function.steps is not None and task_function.findings.logs is None
    may_log = metric not in METRICS or metric.startswith(("train/", "valid/", "test/"))
    return may_log and (unknown or task_function.findings.training_logs is None)
