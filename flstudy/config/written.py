"""Configs made of a script's objects: the class paths and arguments that a YAML file would hold in their place."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import lightning as L
import yaml
from torch import Tensor

from flstudy.config.composition import with_edits
from flstudy.config.config import Config
from flstudy.config.errors import ConfigError, shown
from flstudy.config.reading import dotted
from flstudy.config.registry import LINKED, ROOTS
from flstudy.federation.checkpoint import class_path, recipe, task_hyper_parameters
from flstudy.population import InMemory, Population

LOADED = "a study's workers load it themselves: give a Dataset, one of flstudy's or a class of yours in a module"


def config_of(parts: Mapping[str, Any], settings: Mapping[str, Any], name: str, command: str = "tune") -> Config:
    """Return a checked config made of objects.

    Args:
        parts: by key, ``task``, ``population``, ``algorithm`` and further ones; a name or a mapping stays as it is.
        settings: further keys, nested or dotted; objects may be values here too.
        name: in place of the config file's; a study and its folder take it.
        command: the config's purpose, ``run`` or ``tune``.

    Raises:
        ConfigError: for a part that a worker could not make again, and as `flstudy.config.load`.
    """
    content = {key: plain_part(key, part) for key, part in parts.items()}
    changes = {key: plain_part(key, value) for key, value in dotted(settings).items()}
    text = yaml.safe_dump(with_edits(content, changes.items()), sort_keys=False)
    return Config(f"{name}.yaml", text, (), {}, command).checked()


def plain_part(key: str, part: Any) -> Any:
    """Return the plain values from which a config builds a part again; ConfigError, naming the key, where it cannot."""
    if isinstance(part, Mapping):
        return {str(name): plain_part(f"{key}.{name}", value) for name, value in part.items()}
    if isinstance(part, InMemory):
        raise ConfigError(f"{key} must not hold its examples, got {type(part).__name__}: {LOADED}")
    if isinstance(part, Population):
        return {name: plain_part(f"{key}.{name}", value) for name, value in vars(part)["init_args"].items()}
    if isinstance(part, L.LightningModule):
        arguments = {name: value for name, value in task_hyper_parameters(part).items() if name not in LINKED}
        return _placed(key, {"class_path": class_path(part), "init_args": arguments})
    try:
        plain = recipe(part)
        if key in ROOTS and dataclasses.is_dataclass(
            part
        ):  # defaults were not set, so that they must not hold for another class
            changed = {field.name for field in dataclasses.fields(part) if getattr(part, field.name) != _default(field)}
            plain["init_args"] = {name: value for name, value in plain["init_args"].items() if name in changed}
        return _placed(key, plain)
    except TypeError as error:
        raise ConfigError(f"{key} must be something that a config can name, got {shown(part)}: {LOADED}") from error


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _placed(key: str, plain: Any) -> Any:
    """Return plain values as YAML has them; ConfigError for tensors, and classes that cannot be imported elsewhere."""
    if isinstance(plain, Mapping):
        path = str(plain.get("class_path", ""))
        if path.startswith("__main__.") or "<locals>" in path:
            raise ConfigError(
                f"{key} must be of a class that workers can import, got {path.rpartition('.')[2]} of this script or "
                "notebook: move it into a file beside it and import it from there"
            )
        return {name: _placed(key, value) for name, value in plain.items()}
    if isinstance(plain, Tensor):
        raise ConfigError(f"{key} must not hold its examples, got a tensor: {LOADED}")
    return [_placed(key, value) for value in plain] if isinstance(plain, list | tuple) else plain
