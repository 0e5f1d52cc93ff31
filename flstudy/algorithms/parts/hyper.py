"""Hyper-parameters with domains: a wrong value is refused with its name and domain when the method is made."""

import dataclasses
from typing import Any, TypeVar

from torch import Tensor

from flstudy.algorithms.parts.interval import NOTATION, within

Parameters = TypeVar("Parameters")


def hyper(default: Any, domain: str) -> Any:
    """A dataclass field with a domain in interval notation, such as ``"(0, inf)"`` or ``"[0, 1)"``.

    A number exactly at an allowed 0 switches its term off structurally: it stays a Python number when the others
    become 0-d tensors for a compiled step.
    """
    assert NOTATION.match(domain), domain
    return dataclasses.field(default=default, metadata={"domain": domain})


def check(parameters: Any) -> None:
    """Raise ValueError for the first hyper-parameter of the dataclass that lies outside its domain."""
    for field in dataclasses.fields(parameters):
        domain = field.metadata.get("domain")
        value = getattr(parameters, field.name)
        if domain is None or value is None or not isinstance(value, int | float):
            continue
        if not within(value, domain):
            raise ValueError(f"{type(parameters).__name__}: {field.name} must lie in {domain}, got {value}")


def off(value: Any) -> bool:
    """Whether a term is switched off: its hyper-parameter is None or the Python number 0."""
    return value is None or (isinstance(value, int | float) and value == 0)


def traced(parameters: Parameters, like: Tensor) -> Parameters:
    """The same method with its real-valued hyper-parameters as 0-d tensors of ``like``'s kind, so that one compiled
    step serves all values. Those that are exactly 0 switch a term off and stay Python numbers."""
    fields = dataclasses.fields(parameters)  # type: ignore[arg-type]
    values = {field.name: getattr(parameters, field.name) for field in fields}
    tensors = {
        name: like.new_tensor(value) for name, value in values.items() if isinstance(value, float) and not off(value)
    }
    return dataclasses.replace(parameters, **tensors)  # type: ignore[type-var]
