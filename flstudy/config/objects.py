"""Objects built from a config's values: classes called with arguments that are converted to their annotations."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flstudy.config.errors import ConfigError, shown
from flstudy.config.registry import LINKED, SECTIONS, import_class, locate
from flstudy.config.schema import config_schema, hints_of
from flstudy.config.sections import ArmSection

TABLE = dict[str, dict[str, Any]]
"""Annotation of a study's search and presets, whose classes stay plain values until a trial is made of them."""


def build_section(key: str, values: Mapping[str, Any]) -> Any:
    """Build the object of a section; None where it is off."""
    section_class = SECTIONS[key]
    return None if values is None else construct(locate(f"{section_class.module}.{section_class.name}"), values)


def build_object(key: str, value: Mapping[str, Any] | None, dataset: Any = None) -> Any:
    """Build the object of a class and its arguments; None for None.

    Args:
        key: its key, or the argument's name, for messages.
        value: ``class_path`` and ``init_args``.
        dataset: gives a task those of the `LINKED` arguments that it takes, such as the shape of inputs.
    """
    if value is None:
        return None
    cls, arguments = class_and_arguments(key, value, dataset)
    return construct(cls, arguments)


def class_and_arguments(key: str, value: Mapping[str, Any], dataset: Any = None) -> tuple[Any, dict[str, Any]]:
    """Return the class and the arguments of a value as `build_object` takes it, those that the data set gives
    included."""
    path, arguments = value["class_path"], value.get("init_args") or {}
    if "." in str(path):
        cls = import_class(key, str(path))
    elif "x-class" in (node := config_schema()["$defs"].get(str(path), {})):
        cls = locate(node["x-class"])
    else:
        raise ConfigError(f"{key} must name a class, got {shown(path)}: write the path of one of yours with its module")
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{key}.init_args must hold keys and values, got {shown(arguments)}")
    parameters = inspect.signature(cls).parameters
    linked = {} if dataset is None else {name: getattr(dataset, name) for name in LINKED if name in parameters}
    if linked.get("classes") == 0 and cls.__module__.startswith("flstudy."):
        raise ConfigError(
            f"{key}: {cls.__name__} needs classes, but the labels of {type(dataset).__name__} are real numbers, which "
            "means regression: make them integers or names, or give a module of yours"
        )
    return cls, {**linked, **arguments}


def construct(cls: type[Any], arguments: Mapping[str, Any]) -> Any:
    """Build an object of a class from plain values."""
    return cls(**converted(cls, arguments))


def converted(cls: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert plain values to the annotations of a class's arguments."""
    hints = hints_of(cls, extras=False)
    return {name: convert(name, value, hints.get(name, Any)) for name, value in arguments.items()}


def convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a plain value to an annotation: lists to tuples where it says so, mappings to sections and objects."""
    if isinstance(value, Mapping) and "class_path" in value and makes_later(hint):
        cls, arguments = class_and_arguments(name, value)
        return partial(cls, **converted(cls, arguments))
    hint = _arm(hint, value)
    inner = typing.get_args(hint)
    if hint is ArmSection:
        return ArmSection(**value)
    if hint == TABLE:
        return dict(value)
    if isinstance(value, Mapping) and "class_path" in value:
        return build_object(name, value)
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return construct(hint, value)
        return {key: convert(str(key), part, inner[1] if inner else Any) for key, part in value.items()}
    if isinstance(value, list):
        if typing.get_origin(hint) is not tuple:
            return [convert(name, element, inner[0] if inner else Any) for element in value]
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(convert(name, element, kind) for element, kind in zip(value, kinds, strict=True))
    return value


def makes_later(hint: Any) -> bool:
    """Return whether an annotation is of a function that makes an object, such as Lightning's OptimizerCallable."""
    return any(typing.get_origin(part) is Callable for part in (hint, *typing.get_args(hint)))


def _arm(hint: Any, value: Any) -> Any:
    """Return the part of a union to which a list or mapping belongs; any other annotation unchanged."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    for arm in typing.get_args(hint):
        kind = typing.get_origin(arm) or arm
        if isinstance(value, Mapping) and (dataclasses.is_dataclass(arm) or kind is dict or kind is Mapping):
            return arm
        if isinstance(value, list) and typing.get_args(arm) and kind is not dict:
            return arm
    return Any
