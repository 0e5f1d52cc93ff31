"""What a checkpoint tells of a run beside its state, so that the trained model is had back without the script: the
task's own ``state_dict`` and hyper-parameters where Lightning looks for them, and how the other parts were made.

A checkpoint is data: classes are looked up among those that are imported already (flstudy's own are imported), as
Lightning does, and nothing but numbers and plain containers is read from it.
"""

import dataclasses
import importlib
import pickle
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from flstudy.execution.row_segments import Segment, read_segments
from flstudy.hyper import Configurable

PLAIN = (bool, int, float, str, type(None), Tensor)
OWN = tuple(f"flstudy.{room}." for room in ("algorithms", "controllers", "metrics", "privacy", "tasks"))


def recipe(part: Any) -> Any:
    """A plain value of a part of a run: what a config can name as its class path and fields, containers alike.

    Raises:
        TypeError: for what is neither.
    """
    if isinstance(part, PLAIN):
        return part
    if is_setting(type(part)):
        fields = {field.name: recipe(getattr(part, field.name)) for field in dataclasses.fields(part) if field.init}
        return {"class_path": class_path(part), "init_args": fields}
    if isinstance(part, Mapping):
        return {str(name): recipe(value) for name, value in part.items()}
    if isinstance(part, list | tuple) and not hasattr(part, "_fields"):
        return type(part)(recipe(value) for value in part)
    raise TypeError(f"{type(part).__name__} is no plain value")


def recipe_or_none(part: Any) -> Any:
    """The same; None for what cannot be told."""
    try:
        return recipe(part)
    except TypeError:
        return None


def rebuilt(plain: Any) -> Any:
    """The part of which `recipe` made a plain value; ValueError where its class is not there."""
    if isinstance(plain, Mapping):
        if set(plain) == {"class_path", "init_args"}:
            found = known_class(plain["class_path"])
            if not is_setting(found):  # a checkpoint calls nothing else
                raise ValueError(f"{plain['class_path']} is nothing that a config can name")
            return found(**rebuilt(plain["init_args"]))
        return {name: rebuilt(value) for name, value in plain.items()}
    return type(plain)(map(rebuilt, plain)) if isinstance(plain, list | tuple) else plain


def is_setting(cls: type[Any]) -> bool:
    """Whether a class holds settings and nothing else: a dataclass that a config can name, or one within such."""
    return dataclasses.is_dataclass(cls) and (issubclass(cls, Configurable) or f"{cls.__module__}.".startswith(OWN))


def class_path(part: Any) -> str:
    """Where a part's class is found."""
    return f"{type(part).__module__}.{type(part).__qualname__}"


def known_class(path: str, base: type[Any] = object) -> type[Any]:
    """The imported class of that path below a base class; of flstudy's also one that is not imported.

    Raises:
        ValueError: where there is none.
    """
    module, _, name = path.rpartition(".")
    if f"{module}.".startswith(OWN):
        importlib.import_module(module)
    found = getattr(sys.modules.get(module), name, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{path} is no class that is imported here: import it first")
    return found


def hyper_parameters(task: L.LightningModule) -> dict[str, Any]:
    """What ``save_hyperparameters`` saved of a task, or the arguments that one of flstudy's was made with, as far as
    they are plain values."""
    given = dict(task.hparams) or vars(task).get("init_args", {})
    plain = {name: recipe_or_none(value) for name, value in given.items()}
    return {name: value for name, value in plain.items() if value is not None or given[name] is None}


def task_entries(task: L.LightningModule, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A checkpoint's entries by which ``Net.load_from_checkpoint`` makes a task with trained parameters.

    Args:
        task: gives what is not trained, and the precision.
        tensors: the trained parameters and buffers by name.
    """
    state = {name: value.detach().cpu() for name, value in task.state_dict().items() if isinstance(value, Tensor)}
    names = {id(part): name for name, part in (*task.named_parameters(), *task.named_buffers())}
    every = *task.named_parameters(remove_duplicate=False), *task.named_buffers(remove_duplicate=False)
    for name, part in every:  # tied ones have several names
        if names[id(part)] in tensors and name in state:
            state[name] = tensors[names[id(part)]].detach().to("cpu", part.dtype, copy=True)
    entries: dict[str, Any] = {"state_dict": state}
    if given := hyper_parameters(task):
        entries[L.LightningModule.CHECKPOINT_HYPER_PARAMS_KEY] = given
        if dict(task.hparams) and hasattr(task, "_hparams_name"):
            entries[L.LightningModule.CHECKPOINT_HYPER_PARAMS_NAME] = task._hparams_name
    return entries


def of_first_replica(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a coordinator wrote, cut down to the models of its first replica: nothing goes on from it."""
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
    """The content of a file that ``torch.save`` wrote, numbers and plain containers only.

    Raises:
        ValueError: one that names the file, where it is damaged or missing.
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
        raise ValueError(f"there is no checkpoint {str(path)!r}: give the path of a file that exists") from error
    except pickle.UnpicklingError:
        reason = "it holds other things than numbers, which are not loaded"
    except Exception as error:  # a damaged pickle can raise anything
        words = " ".join(str(error).split()) or type(error).__name__
        reason = words if len(words) <= 80 else f"{words[:77]}..."
    raise ValueError(f"{path} is damaged ({reason})")


def check_rows_beside(content: Any, folder: Path) -> None:
    """Raise ValueError where rows that lie beside a checkpoint are damaged or not there."""
    saved = content.get("flstudy") if isinstance(content, Mapping) else None
    segments = saved["bank"].get("segments", ()) if isinstance(saved, Mapping) else ()
    for _ in read_segments(folder, [Segment(name, rows, tuple(checksums)) for name, rows, checksums in segments]):
        pass


def state_of_run(content: Any, path: Any = "this checkpoint") -> dict[str, Any]:
    """What a coordinator wrote into a checkpoint.

    Raises:
        ValueError: for a file that no coordinator wrote.
    """
    saved = content.get("flstudy") if isinstance(content, Mapping) else None
    if saved is None:
        raise ValueError(f"{path} was not written by a flstudy Coordinator")
    return dict(saved)


def task_from(path: Any, content: Mapping[str, Any], **how: Any) -> L.LightningModule:
    """The task of a checkpoint, made by its class's own ``load_from_checkpoint``.

    Raises:
        ValueError: where it cannot be made, asking for ``task=``.
    """
    made = content["flstudy"].get("made") or {}
    named = made.get("task")
    if named is None:
        raise ValueError(f"{path} was written by an earlier flstudy, which kept no task: give task=")
    try:
        found = known_class(named, L.LightningModule)
    except (ValueError, ImportError) as error:
        raise ValueError(f"task: {error}, or give task=, to load {path}") from error
    try:
        task: L.LightningModule = found.load_from_checkpoint(path, map_location="cpu", weights_only=True, **how)
    except Exception as error:  # a constructor raises what it likes
        raise ValueError(
            f"{named} cannot be made from {path} ({' '.join(str(error).split())[:80]}): give task=, or let its "
            "__init__ call self.save_hyperparameters()"
        ) from error
    return task


def refuse_other_task(
    task: L.LightningModule, trained: Mapping[str, tuple[int, ...]], state: Mapping[str, Any]
) -> None:
    """Raise ValueError where a checkpoint's ``state_dict`` does not hold the tensors that a task trains.

    Args:
        task: as it is here.
        trained: names and shapes of its trained parameters.
        state: the checkpoint's.
    """
    if "clock" in state and "clock" not in trained:
        return  # an earlier flstudy's, which holds no names
    for name, shape in trained.items():
        if name not in state:
            told = f"holds no {name}"
        elif tuple(state[name].shape) != shape:
            told = f"holds {name} as {list(state[name].shape)} instead of {list(shape)}"
        else:
            continue
        raise ValueError(
            f"the checkpoint is of another task than this {type(task).__name__}: it {told}; give that task"
        )


def told_arguments(path: Any, saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A coordinator's arguments, as a checkpoint tells them but for those that are given.

    Raises:
        ValueError: for a part that has to be given.
    """
    made = saved.get("made") or {"parts": {}, "unknown": ["algorithm"]}
    for name in made["unknown"]:
        if name not in given:
            raise ValueError(f"{path} does not tell how its {name} was made: give {name}=")
    told = {name: part for name, part in made["parts"].items() if name not in given and part is not None}
    try:
        return {"seeds": saved["seeds"], **{name: rebuilt(part) for name, part in told.items()}, **given}
    except (ValueError, ImportError, TypeError) as error:
        raise ValueError(f"{path}: {error}, or give that part as an argument") from error
