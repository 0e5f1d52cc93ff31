"""Objects of a config's values: classes called with their arguments, as their annotations have them."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from flstudy.config.errors import ConfigError, shown
from flstudy.config.registry import LINKED, SECTIONS, import_class, locate
from flstudy.config.schema import config_schema, hints_of


def section(key: str, values: Mapping[str, Any]) -> Any:
    """The object of a section; None where it is off."""
    found = SECTIONS[key]
    return None if values is None else construct(locate(f"{found.module}.{found.name}"), values)


def chosen(key: str, value: Mapping[str, Any] | None, dataset: Any = None) -> Any:
    """The object of a class and its arguments; None of None.

    Args:
        key: at which it stands, or the argument, for messages.
        value: ``class_path`` and ``init_args``.
        dataset: where a task that asks for them finds its inputs' shape and the like.
    """
    if value is None:
        return None
    path, given = value["class_path"], value.get("init_args") or {}
    if "." in str(path):
        cls = import_class(key, str(path))
    elif "x-class" in (node := config_schema()["$defs"].get(str(path), {})):
        cls = locate(node["x-class"])
    else:
        raise ConfigError(f"{key} must name a class, got {shown(path)}: write the path of one of yours with its module")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{key}.init_args must hold keys and values, got {shown(given)}")
    known = inspect.signature(cls).parameters
    linked = {} if dataset is None else {name: getattr(dataset, name) for name in LINKED if name in known}
    return construct(cls, {**linked, **given})


def construct(cls: type[Any], arguments: Mapping[str, Any]) -> Any:
    """An object of a class, of plain values."""
    known = hints_of(cls, extras=False)
    return cls(**{name: made(name, value, known.get(name, Any)) for name, value in arguments.items()})


def made(name: str, value: Any, hint: Any) -> Any:
    """A plain value as an annotation has it: lists as tuples where it says so, mappings as sections and objects."""
    if isinstance(value, Mapping) and "class_path" in value:
        return chosen(name, value)
    hint = _arm(hint, value)
    inner = typing.get_args(hint)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return construct(hint, value)
        return {key: made(str(key), one, inner[1] if inner else Any) for key, one in value.items()}
    if isinstance(value, list):
        if typing.get_origin(hint) is not tuple:
            return [made(name, one, inner[0] if inner else Any) for one in value]
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(made(name, one, own) for one, own in zip(value, each, strict=True))
    return value


def _arm(hint: Any, value: Any) -> Any:
    """Of a union the part that a list or mapping belongs to."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    for arm in typing.get_args(hint):
        kind = typing.get_origin(arm) or arm
        if isinstance(value, Mapping) and (dataclasses.is_dataclass(arm) or kind is dict or kind is Mapping):
            return arm
        if isinstance(value, list) and typing.get_args(arm) and kind is not dict:
            return arm
    return Any
