"""Entries of a checkpoint beside a run's state, by which the trained model is loaded without the script: the task's own
``state_dict`` and hyper-parameters where Lightning looks for them, and how the other parts were made.

A checkpoint is data: classes are looked up among those that are imported already (flstudy's own are imported), as
Lightning does, and nothing but numbers and plain containers is read from it.
"""

import contextlib
import dataclasses
import importlib
import inspect
import pickle
import sys
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.data import AttributeDict
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flstudy.execution.row_segments import Segment, read_segments
from flstudy.hyper import Configurable, init_arguments, makes_class, path_of_class
from flstudy.run_settings import RunSettings
from flstudy.user_error import UserError

CLASS, NAMESPACE, NOT_KEPT = "flstudy.class", "flstudy.namespace", "flstudy.not_kept"
"""Keys by which a mapping of one entry stands for an argument that is no plain value (`argument_recipe`)."""
PLAIN = (bool, int, float, str, type(None), Tensor)
OWN = tuple(f"flstudy.{room}." for room in ("algorithms", "controllers", "metrics", "privacy", "tasks"))


def recipe(part: Any) -> Any:
    """Return the plain value of a part of a run: a configurable object as its class path and fields, containers alike.

    Raises:
        TypeError: for a value that is neither.
    """
    if isinstance(part, PLAIN):
        return part
    if is_setting(type(part)):
        fields = {name: recipe(value) for name, value in init_arguments(part).items()}
        return {"class_path": class_path(part), "init_args": fields}
    if makes_class(part):
        return {"class_path": path_of_class(part.func), "init_args": recipe(part.keywords)}
    if isinstance(part, Mapping):
        return {str(name): recipe(value) for name, value in part.items()}
    if isinstance(part, list | tuple) and not hasattr(part, "_fields"):
        return type(part)(recipe(value) for value in part)
    raise TypeError(f"{type(part).__name__} is no plain value")


def recipe_or_none(part: Any) -> Any:
    """Return the `recipe` of a part; None where it has none."""
    try:
        return recipe(part)
    except TypeError:
        return None


def rebuilt(plain: Any) -> Any:
    """Return the part that `recipe` made a plain value of; UserError where its class is not there."""
    if isinstance(plain, Mapping):
        if set(plain) == {"class_path", "init_args"}:
            resolved_class = known_class(plain["class_path"])
            if issubclass(resolved_class, Optimizer | LRScheduler):  # which are made where the parameters are
                return partial(resolved_class, **rebuilt(plain["init_args"]))
            if not is_setting(resolved_class):  # a checkpoint calls nothing else
                raise UserError(f"{plain['class_path']} is nothing that a config can name")
            return resolved_class(**rebuilt(plain["init_args"]))
        return {name: rebuilt(value) for name, value in plain.items()}
    return type(plain)(map(rebuilt, plain)) if isinstance(plain, list | tuple) else plain


def is_setting(cls: type[Any]) -> bool:
    """Return whether a class holds settings and nothing else: a dataclass that a config can name, or one within
    such."""
    return dataclasses.is_dataclass(cls) and (issubclass(cls, Configurable) or f"{cls.__module__}.".startswith(OWN))


def class_path(part: Any) -> str:
    """Return the import path of a part's class."""
    return f"{type(part).__module__}.{type(part).__qualname__}"


def known_class(path: str, base: type[Any] = object) -> type[Any]:
    """Return the class at an import path, whose module must be imported already, or be in one of the rooms in `OWN`.

    Raises:
        UserError: where there is no such class, or it is no subclass of ``base``.
        ImportError: for a path in `OWN` that names no module.
    """
    module, _, name = path.rpartition(".")
    if f"{module}.".startswith(OWN):
        importlib.import_module(module)
    resolved_class = getattr(sys.modules.get(module), name, None)
    if not isinstance(resolved_class, type) or not issubclass(resolved_class, base):
        raise UserError(f"{path} is no class that is imported here: import it first")
    return resolved_class


def task_arguments(task: L.LightningModule) -> dict[str, Any]:
    """Return the arguments that ``save_hyperparameters`` saved of a task, or those of one of flstudy's."""
    return dict(task.hparams) or vars(task).get("init_args", {})


def argument_recipe(argument: Any) -> Any:
    """Return a plain value that stands for a task's argument in a checkpoint.

    It is the `recipe` if there is one, the import path of a class, or the values of a Namespace. For any other argument
    it is the name of its type, so that loading fails instead of silently using a default.
    """
    plain = recipe_or_none(argument)
    if plain is not None or argument is None:
        return plain
    if isinstance(argument, type):
        return {CLASS: f"{argument.__module__}.{argument.__qualname__}"}
    values = recipe_or_none(vars(argument)) if isinstance(argument, Namespace) else None
    return {NOT_KEPT: type(argument).__name__} if values is None else {NAMESPACE: values}


def rebuilt_arguments(path: Any, task_class: type[L.LightningModule], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task that its checkpoint holds as mappings (`argument_recipe`), as objects again.

    Where the task takes all its arguments as one, the result is that one argument.

    Raises:
        UserError: for an argument of which the checkpoint holds the type only.
    """
    saved: Mapping[str, Any] = content.get(L.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY, {})
    arguments: dict[str, Any] = {name: value for name, value in saved.items() if isinstance(value, Mapping)}
    for name, value in arguments.items():
        if NOT_KEPT in value:
            raise UserError(
                f"{path} does not hold the argument {name} of {task_class.__name__}, since a {value[NOT_KEPT]} is no "
                f"plain value: give task={task_class.__name__}(...), made with it"
            )
        if CLASS in value:
            arguments[name] = known_class(value[CLASS])
        elif NAMESPACE in value:
            arguments[name] = Namespace(**value[NAMESPACE])
        else:
            with contextlib.suppress(UserError):  # a mapping of the user's own
                arguments[name] = rebuilt(value)
    name = content.get(L.LightningModule.CHECKPOINT_HYPER_PARAMS_NAME) or ""
    if arguments and name in inspect.signature(task_class).parameters:  # all of them are one argument of its
        return {name: AttributeDict({**saved, **arguments})}
    return arguments


def task_hyper_parameters(task: L.LightningModule) -> dict[str, Any]:
    """Return the `task_arguments` that are plain values."""
    arguments = task_arguments(task)
    plain = {name: recipe_or_none(value) for name, value in arguments.items()}
    return {name: value for name, value in plain.items() if value is not None or arguments[name] is None}


def task_entries(task: L.LightningModule, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a checkpoint's entries by which ``Net.load_from_checkpoint`` makes a task with trained parameters.

    Args:
        task: gives what is not trained, and the precision.
        tensors: the trained parameters and buffers by name, shaped as in the task.
    """
    state = {name: value.detach().cpu() for name, value in task.state_dict().items() if isinstance(value, Tensor)}
    names = {id(part): name for name, part in (*task.named_parameters(), *task.named_buffers())}
    every = *task.named_parameters(remove_duplicate=False), *task.named_buffers(remove_duplicate=False)
    for name, part in every:  # tied ones have several names
        if names[id(part)] in tensors and name in state:
            state[name] = tensors[names[id(part)]].detach().to("cpu", part.dtype, copy=True)
    entries: dict[str, Any] = {"state_dict": state}
    if arguments := task_arguments(task):
        parameters = inspect.signature(type(task)).parameters
        usual = {name for name, value in arguments.items() if name in parameters and value is parameters[name].default}
        plain = {name: argument_recipe(value) for name, value in arguments.items()}
        plain = {name: value for name, value in plain.items() if name not in usual or not isinstance(value, Mapping)}
        entries[L.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY] = plain
        if dict(task.hparams) and hasattr(task, "_hparams_name"):
            entries[L.LightningModule.CHECKPOINT_HYPER_PARAMS_NAME] = task._hparams_name
    return entries


def of_first_replica(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a coordinator's state, cut down to the models of its first replica: no run goes on from it."""
    number, metrics, events = saved["record"]
    return {
        **saved,
        "seeds": saved["seeds"][:1],
        "server": [leaf[:1].cpu().clone() for leaf in saved["server"]],
        "bank": {"slot": torch.full_like(saved["bank"]["slot"][:1], -1), "rows": []},
        "control": [],
        "privacy": {},
        "record": [number, {name: values[:1] for name, values in metrics.items()}, events],
    }


def read_file(path: str | Path, map_location: Any = "cpu", *, mapped: bool = False) -> Any:
    """Return the content of a file that ``torch.save`` wrote, numbers and plain containers only.

    Raises:
        UserError: one that names the file, where it is damaged or missing.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()  # torch itself compares no checksums
        if bad is None:
            content = torch.load(path, map_location=map_location, weights_only=True, mmap=mapped or None)
            check_rows_beside(content, Path(path).parent)
            return content
        reason = f"checksum of {bad}"
    except FileNotFoundError as error:
        raise UserError(f"there is no checkpoint {str(path)!r}: give the path of a file that exists") from error
    except pickle.UnpicklingError:
        reason = "it holds other things than numbers, which are not loaded"
    except Exception as error:  # a damaged pickle can raise anything
        words = " ".join(str(error).split()) or type(error).__name__
        reason = words if len(words) <= 80 else f"{words[:77]}..."
    raise UserError(f"{path} is damaged ({reason})")


def check_rows_beside(content: Any, folder: Path) -> None:
    """Raise UserError where rows that lie beside a checkpoint are damaged or not there."""
    saved = content.get("flstudy") if isinstance(content, Mapping) else None
    segments = saved["bank"].get("segments", ()) if isinstance(saved, Mapping) else ()
    for _ in read_segments(folder, [Segment(name, rows, tuple(checksums)) for name, rows, checksums in segments]):
        pass


def state_of_run(content: Any, path: Any = "this checkpoint") -> dict[str, Any]:
    """Return the state that a coordinator wrote into a checkpoint.

    Raises:
        UserError: for a file that no coordinator wrote.
    """
    saved = content.get("flstudy") if isinstance(content, Mapping) else None
    if saved is None:
        raise UserError(f"{path} was not written by a flstudy Coordinator")
    return dict(saved)


def task_from(path: Any, content: Mapping[str, Any], **how: Any) -> L.LightningModule:
    """Return the task of a checkpoint, made by its class's own ``load_from_checkpoint``.

    Raises:
        UserError: where it cannot be made, asking for ``task=``.
    """
    named = (content["flstudy"].get("made") or {}).get("task")
    if named is None:
        raise UserError(f"{path} was written by an earlier flstudy, which kept no task: give task=")
    try:
        task_class = known_class(named, L.LightningModule)
    except (ValueError, ImportError) as error:
        raise UserError(f"task: {error}, or give task=, to load {path}") from error
    how |= {"map_location": "cpu", "weights_only": True, **rebuilt_arguments(path, task_class, content)}
    try:
        task: L.LightningModule = task_class.load_from_checkpoint(path, **how)
    except Exception as error:  # a constructor raises what it likes
        saves = L.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY in content
        raise UserError(
            f"{named} cannot be made from {path} ({' '.join(str(error).split())[:80]}): give task="
            + ("" if saves else ", or let its __init__ call self.save_hyperparameters()")
        ) from error
    return task


def begin_with(task: L.LightningModule, buffers: Mapping[str, Tensor]) -> None:
    """Copy the buffers with which a run began into its task, since a new start must not begin with trained ones.

    Buffers that the task lacks, or has in another shape, are skipped.
    """
    present = dict(task.named_buffers())
    for name, first in buffers.items():
        if name in present and present[name].shape == first.shape:
            present[name].copy_(first)


def refuse_other_task(
    task: L.LightningModule, trained: Mapping[str, tuple[int, ...]], state: Mapping[str, Any]
) -> None:
    """Raise UserError where a checkpoint's ``state_dict`` does not hold the tensors that a task trains.

    Args:
        task: as it is here.
        trained: names and shapes of its trained parameters.
        state: the checkpoint's.
    """
    if "clock" in state and "clock" not in trained:
        return  # an earlier flstudy's, which holds no names
    for name, shape in trained.items():
        if name not in state:
            why = f"holds no {name}"
        elif tuple(state[name].shape) != shape:
            why = f"holds {name} as {list(state[name].shape)} instead of {list(shape)}"
        else:
            continue
        raise UserError(f"the checkpoint is of another task than this {type(task).__name__}: it {why}; give that task")


def run_arguments(path: Any, content: Mapping[str, Any], parts: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Return a run's arguments: its parts from a checkpoint, its task with the buffers with which the run began.

    Args:
        path: of the checkpoint.
        content: the checkpoint's.
        parts: arguments that replace the checkpoint's; fields of the settings stand by their names.
        how: the task is loaded, as in its own ``load_from_checkpoint``.

    Raises:
        UserError: for a part that has to be given.
    """
    saved = state_of_run(content, path)
    replaced = {"task": parts["task"] if "task" in parts else task_from(path, content, **how), **parts}
    begin_with(replaced["task"], saved.get("first_buffers", {}))
    recipes = saved.get("made") or {"parts": {}, "unknown": ["algorithm"]}
    for name in recipes["unknown"]:
        if name not in replaced:
            raise UserError(f"{path} does not tell how its {name} was made: give {name}=")
    saved_parts = {name: part for name, part in recipes["parts"].items() if name not in replaced and part is not None}
    try:
        arguments = {"seeds": saved["seeds"], **{name: rebuilt(part) for name, part in saved_parts.items()}, **replaced}
    except (ValueError, ImportError, TypeError) as error:
        raise UserError(f"{path}: {error}, or give that part as an argument") from error
    names = [field.name for field in dataclasses.fields(RunSettings) if field.name in arguments]
    settings = RunSettings(**{name: arguments.pop(name) for name in names})
    return {"settings": settings, **arguments}
