"""Objects of a config's values: classes called with their arguments, as their annotations have them."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from flstudy.config.registry import LINKED, SECTIONS, locate
from flstudy.config.schema import config_schema

hints = functools.cache(typing.get_type_hints)


def section(key: str, values: Mapping[str, Any]) -> Any:
    """The object of a section; None where it is off."""
    found = SECTIONS[key]
    return None if values is None else construct(locate(f"{found.module}.{found.name}"), values)


def chosen(value: Mapping[str, Any] | None, dataset: Any = None) -> Any:
    """The object of a class and its arguments; None of None.

    Args:
        value: ``class_path`` and ``init_args``.
        dataset: where a task that asks for them finds its inputs' shape and the like.
    """
    if value is None:
        return None
    path = value["class_path"]
    cls = locate(path if "." in path else config_schema()["$defs"][path]["x-class"])
    known = inspect.signature(cls).parameters
    linked = {} if dataset is None else {name: getattr(dataset, name) for name in LINKED if name in known}
    return construct(cls, {**linked, **(value.get("init_args") or {})})


def construct(cls: type[Any], arguments: Mapping[str, Any]) -> Any:
    """An object of a class, of plain values."""
    known = hints(cls.__init__)
    return cls(**{name: made(value, known.get(name, Any)) for name, value in arguments.items()})


def made(value: Any, hint: Any) -> Any:
    """A plain value as an annotation has it: lists as tuples where it says so, mappings as sections and objects."""
    if isinstance(value, Mapping) and "class_path" in value:
        return chosen(value)
    hint = _arm(hint, value)
    inner = typing.get_args(hint)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return construct(hint, value)
        return {key: made(one, inner[1] if inner else Any) for key, one in value.items()}
    if isinstance(value, list):
        if typing.get_origin(hint) is not tuple:
            return [made(one, inner[0] if inner else Any) for one in value]
        each = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(made(one, own) for one, own in zip(value, each, strict=True))
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
