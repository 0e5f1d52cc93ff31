"""Which settings differ on devices, told from the methods themselves: an executor sees nothing of the server's part.

``trainer`` and ``threads`` go through a fit one job at a time, as ``sequential`` does, with the same functions of the
algorithm. Two settings whose devices run the same functions in the same modes are one and the same to them.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import CodeType, FunctionType
from typing import Any

from flstudy.algorithms import Algorithm
from flstudy.execution import executor, sequential, trainer


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def asked() -> set[str]:
    """Names of an algorithm's attributes that the executors use."""
    used = {
        name
        for module in (executor, sequential, trainer)
        for code in codes(compile(inspect.getsource(module), module.__name__, "exec"))
        for name in code.co_names
    }
    return {name for name in used & set(dir(Algorithm)) if not name.startswith("_")}


def device_side(algorithm: Algorithm) -> set[Any]:
    """What the device's part of a setting consists of: all of its functions, as one item, and one item for each mode
    of a field that they or the executors read (a name, a switch, whether there is a number, whether it is zero)."""
    functions: set[FunctionType] = set()
    names, waiting = set[str](), sorted(asked())
    own = {field.name for field in fields(algorithm)}

    def follow(found: Any) -> None:
        function = inspect.unwrap(getattr(found, "fget", None) or getattr(found, "func", None) or found)
        if not isinstance(function, FunctionType) or function in functions:
            return
        if not function.__module__.startswith("flstudy.algorithms"):
            return
        functions.add(function)
        for code in codes(function.__code__):
            waiting.extend(code.co_names)
            for name in code.co_names:
                follow(function.__globals__.get(name))

    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            for cls in type(algorithm).__mro__:
                follow(vars(cls).get(name))
    return {frozenset(functions)} | {(name, mode(getattr(algorithm, name))) for name in names & own}


def mode(value: Any) -> Any:
    """A value, as far as it chooses what is done and not how much of it."""
    return value if value is None or isinstance(value, bool | str) else bool(value)


def covering(cases: Mapping[str, Algorithm]) -> list[str]:
    """As few of the cases as show every device's part and every mode at least once: those first that show most."""
    sides = {name: device_side(algorithm) for name, algorithm in cases.items()}
    missing, chosen = set().union(*sides.values()), []
    while missing:
        best = max(sides, key=lambda name: len(sides[name] & missing))
        chosen.append(best)
        missing -= sides[best]
    return chosen
