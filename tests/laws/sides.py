"""What settings of methods differ in, told from the methods themselves, and the covering array that laws are tried on.

A device's side is what the executors call, a server's what a round calls. ``trainer`` and ``threads`` go through a fit
one job at a time, as ``sequential`` does, with the same functions of the algorithm. Two settings whose devices run the
same functions in the same modes are one and the same to an executor, which sees nothing of the server's side.
"""

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields
from types import CodeType, FunctionType, ModuleType
from typing import Any

from flstudy.algorithms import Algorithm
from flstudy.execution import executor, sequential, trainer
from flstudy.federation import blocks, evaluation
from flstudy.federation.play_round import play_round

IN_TURN = ("threads", "trainer")  # which are held to `sequential` by turns


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def asked(*modules: ModuleType) -> set[str]:
    """Names of an algorithm's attributes that some modules use."""
    used = {
        name
        for module in modules
        for code in codes(compile(inspect.getsource(module), module.__name__, "exec"))
        for name in code.co_names
    }
    return {name for name in used & set(dir(Algorithm)) if not name.startswith("_")}


DEVICE = asked(executor, sequential, trainer)
SERVER = asked(inspect.getmodule(play_round), blocks, evaluation) - DEVICE


def side(algorithm: Algorithm, begin: Iterable[str]) -> set[Hashable]:
    """What lies behind some attributes of a setting: all functions, as one item, and one item for each mode of a field
    that they or whoever calls them read (a name, a switch, whether there is a number, whether it is zero)."""
    functions: set[FunctionType] = set()
    names, waiting = set[str](), sorted(begin)
    settings = {field.name for field in fields(algorithm)}

    def follow(part: Any) -> None:
        function = inspect.unwrap(getattr(part, "fget", None) or getattr(part, "func", None) or part)
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
    return {frozenset(functions)} | {(name, mode(getattr(algorithm, name))) for name in names & settings}


def mode(value: Any) -> Any:
    """A value, as far as it chooses what is done and not how much of it."""
    return value if value is None or isinstance(value, bool | str) else bool(value)


def device_side(algorithm: Algorithm) -> set[Hashable]:
    """What the executors see of a setting."""
    return side(algorithm, DEVICE)


def both_sides(algorithm: Algorithm) -> set[Hashable]:
    """What devices and the server do under a setting, and that they do it together."""
    device, server = device_side(algorithm), side(algorithm, SERVER)
    return device | server | {("together", functions_of(device), functions_of(server))}


def functions_of(parts: set[Hashable]) -> Hashable:
    """The item of a side that is all of its functions."""
    return next(part for part in parts if isinstance(part, frozenset))


def fewest(sides: Mapping[Any, set[Hashable]]) -> list[Any]:
    """As few of the keys as show every part at least once: those first that show most."""
    missing, chosen = set().union(*sides.values()), []
    while missing:
        best = max(sides, key=lambda key: len(sides[key] & missing))
        chosen.append(best)
        missing -= sides[best]
    return chosen


def covering(cases: Mapping[str, Algorithm], parts: Callable[[Algorithm], set[Hashable]] = device_side) -> list[str]:
    """As few of the cases as show every part and every mode at least once."""
    return fewest({name: parts(algorithm) for name, algorithm in cases.items()})


@functools.cache
def _rows(cases: tuple[tuple[str, Algorithm], ...]) -> list[tuple[str, str]]:
    rows = {}
    for number, (name, algorithm) in enumerate(cases):
        parts = both_sides(algorithm)
        device, server = functions_of(device_side(algorithm)), functions_of(side(algorithm, SERVER))
        for kind, carried_out in (("lanes", "vectorized"), ("in turn", IN_TURN[number % len(IN_TURN)])):
            rows[name, carried_out] = parts | {(kind, device), (kind, server)}
    return fewest(rows)


def covering_array(cases: Mapping[str, Algorithm]) -> list[tuple[str, str]]:
    """As few (case, executor) as show every two of: what a device does, what the server does, jobs in lanes or in turn;
    and every mode of both sides."""
    return _rows(tuple(cases.items()))
