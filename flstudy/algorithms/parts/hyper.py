"""Hyper-parameters of a method inside a compiled step: numbers become tensors, and terms that are off stay off."""

import dataclasses
from typing import Any, TypeVar

from torch import Tensor

Parameters = TypeVar("Parameters")


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
