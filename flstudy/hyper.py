"""Hyper-parameters with domains, the one way for whatever a config can name: a wrong value is refused with its name and
domain when the object is made. Imports no torch, so that a config's first look needs none."""

import dataclasses
import math
import re
from typing import Any, Literal, get_args, get_origin

NOTATION = re.compile(r"^([\[(])\s*([^,]+),\s*([^\])]+)([\])])$")
"""Intervals such as "(0, inf)" or "[0, 1)"."""


def hyper(default: Any = dataclasses.MISSING, domain: str = "", **more: Any) -> Any:
    """A dataclass field with a domain in interval notation, such as ``"(0, inf)"`` or ``"[0, 1)"``.

    A number exactly at an allowed 0 switches its term off structurally: it stays a Python number when the others
    become 0-d tensors for a compiled step.

    Args:
        default: of the field; without one a value is required.
        domain: of numbers; None, where a field's type has it, is in every domain.
        more: further arguments of ``dataclasses.field``.
    """
    assert NOTATION.match(domain), domain
    return dataclasses.field(default=default, metadata={"domain": domain}, **more)


def within(value: float, domain: str) -> bool:
    """Whether a number lies in the interval."""
    match = NOTATION.match(domain)
    assert match is not None, domain
    low, high = float(match[2]), float(match[3])
    above = value >= low if match[1] == "[" else value > low
    below = value <= high if match[4] == "]" else value < high
    return above and below and not math.isnan(value)


def check(parameters: Any) -> None:
    """Raise ValueError for the first field of the dataclass that lies outside its domain or its Literal."""
    name = type(parameters).__name__
    for field in dataclasses.fields(parameters):
        value, domain = getattr(parameters, field.name), field.metadata.get("domain")
        if domain and isinstance(value, int | float) and not within(value, domain):
            raise ValueError(f"{name}: {field.name} must lie in {domain}, got {value}")
        choices = get_args(field.type) if get_origin(field.type) is Literal else ()
        if choices and value not in choices:
            raise ValueError(f"{name}: {field.name} must be one of {', '.join(map(str, choices))}, got {value!r}")
