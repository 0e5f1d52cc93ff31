"""Hyper-parameters with domains, the one way for whatever a config can name: a wrong value is refused with its name and
domain when the object is made. A domain is declared where the value is:

    tau: float = hyper(1e-3, "(0, 1e12]")                      a field; ``check(self)`` in ``__post_init__``
    hidden: Annotated[int, "[1, 1e5]"] = 64                    an argument of an ``__init__`` under ``@checked``

A domain is an interval; it holds for a number, and for every number of a list. Its ends are finite: a real beyond 1e12
has a square that float32 does not hold, and counts stay below what a machine could. Values that a ``Literal`` does not
name are refused as well. Imports no torch, so that a config's first look needs none.
"""

import dataclasses
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from flstudy.user_error import UserError

NOTATION = re.compile(r"^([\[(])\s*([^,]+),\s*([^\])]+)([\])])$")
"""Intervals such as "(0, inf)" or "[0, 1)"."""
Arguments = ParamSpec("Arguments")
Built = TypeVar("Built")


FilePath = Annotated[str, Path]
"""Path of a file or a folder, or a URI; a relative path starts from the folder in which a run is started."""


class Declared(NamedTuple):
    """Allowed values of a field or an argument."""

    annotation: Any
    domain: str | None = None  # in interval notation
    choices: tuple[Any, ...] = ()  # what its Literal names; none: there is no Literal
    others: tuple[type, ...] = ()  # classes whose values are allowed beside the choices

    @classmethod
    def of(cls, annotation: Any, domain: str | None) -> "Declared":
        """Return the values that an annotation allows, with the domain."""
        parts = list(_alternatives(annotation))
        choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
        return cls(annotation, domain, choices, tuple(part for part in parts if isinstance(part, type)))

    def refuse_outside(self, owner: str, name: str, value: Any) -> None:
        """Raise UserError for a value outside the domain or the choices."""
        for item in _items(value):
            number = isinstance(item, Real)  # a 0-d tensor is none: it stands for a number that was checked
            if number and self.domain is not None and not within(item, self.domain):
                raise UserError(f"{owner}: {name} must lie in {self.domain}, got {value}")
            if self.choices and item not in self.choices and not isinstance(item, self.others):
                choices = ", ".join(map(str, self.choices))
                raise UserError(f"{owner}: {name} must be one of {choices}, got {item!r}")


class Configurable:
    """Base class of what a config can name: a frozen dataclass whose fields are checked when it is made."""

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    def __post_init__(self) -> None:
        check(self)


def hyper(default: Any = dataclasses.MISSING, domain: str = "", *, at_most: str = "", **more: Any) -> Any:
    """Return a dataclass field with a domain in interval notation, such as ``"(0, inf)"`` or ``"[0, 1)"``.

    A number exactly at an allowed 0 switches its term off structurally: it stays a Python number when the others
    become 0-d tensors for a compiled step.

    Args:
        default: of the field; without one a value is required.
        domain: of a number, or of every number of a list; None, where a field's type has it, is in every domain.
        at_most: key of a config whose number bounds it there, such as ``rounds``.
        more: further arguments of ``dataclasses.field``.
    """
    assert NOTATION.match(domain), domain
    return dataclasses.field(default=default, metadata={"domain": domain, "at_most": at_most}, **more)


def within(value: float, domain: str) -> bool:
    """Return whether a number lies in the interval."""
    match = NOTATION.match(domain)
    assert match is not None, domain
    low, high = float(match[2]), float(match[3])
    above = value >= low if match[1] == "[" else value > low
    below = value <= high if match[4] == "]" else value < high
    return above and below


def check(parameters: Any) -> None:
    """Raise UserError for the first field of a dataclass that lies outside its domain."""
    owner: Any = type(parameters)
    for name, field in declared(owner).items():
        field.refuse_outside(owner.__name__, name, getattr(parameters, name))


def checked(init: Callable[Concatenate[Built, Arguments], None]) -> Callable[Concatenate[Built, Arguments], None]:
    """Return a constructor that raises UserError for the first argument outside its domain; the object's ``init_args``
    keep its arguments by name."""

    @functools.wraps(init)
    def construct(self: Built, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        bound = inspect.signature(init).bind(self, *args, **kwargs).arguments
        for name, argument in _arguments(init).items():
            if name in bound:
                argument.refuse_outside(type(self).__name__, name, bound[name])
        init(self, *args, **kwargs)
        vars(self)["init_args"] = {name: value for name, value in bound.items() if value is not self}

    return construct


def keeps_own_arguments(built: Any) -> bool:
    """Return whether an object's ``init_args`` are of its own class's constructor, and not of one that this calls."""
    return hasattr(type(built).__init__, "__wrapped__")  # of `checked`


def init_arguments(setting: Any) -> dict[str, Any]:
    """Return the arguments by which an equal dataclass is made: its fields, but for those that it derives of others."""
    return {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting) if field.init}


def path_of_class(cls: Any) -> str:
    """Return the shortest path by which a class can be imported, such as torch.optim.SGD."""
    names = cls.__module__.split(".")
    packages = [".".join(names[:end]) for end in range(1, len(names))]
    place = next(
        (name for name in packages if getattr(sys.modules.get(name), cls.__name__, None) is cls), cls.__module__
    )
    return f"{place}.{cls.__qualname__}"


def makes_class(part: Any) -> bool:
    """Return whether a value makes an object of a class of named arguments and further ones, as a config's optimizer
    does."""
    return isinstance(part, functools.partial) and isinstance(part.func, type) and not part.args


def made_with(part: Any) -> dict[str, Any] | None:
    """Return the arguments that an object was made with, by name; None of one that keeps none."""
    if makes_class(part):
        return dict(part.keywords)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return init_arguments(part)
    if hparams := dict(getattr(part, "hparams", {})):
        return hparams
    passed = vars(part).get("init_args") if hasattr(part, "__dict__") else None  # kept by flstudy.hyper.checked
    if passed is None:
        return None
    parameters = inspect.signature(type(part).__init__).parameters.values()
    defaults = {argument.name: argument.default for argument in parameters if argument.default is not argument.empty}
    return {**defaults, **passed}


@functools.cache
def declared(cls: Any) -> dict[str, Declared]:
    """Return the fields of a dataclass, or the arguments of another class's constructor, in their order."""
    if not dataclasses.is_dataclass(cls):
        return _arguments(cls.__init__)
    return {field.name: Declared.of(field.type, field.metadata.get("domain")) for field in dataclasses.fields(cls)}


@functools.cache
def _arguments(init: Any) -> dict[str, Declared]:
    arguments = {}
    for argument in list(inspect.signature(init).parameters.values())[1:]:  # without self
        annotation, domain = argument.annotation, None
        if get_origin(annotation) is Annotated:
            annotation, domain = get_args(annotation)
            domain = domain if isinstance(domain, str) else None
        arguments[argument.name] = Declared.of(annotation, domain)
    return arguments


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the annotations of which a union or a list is made."""
    if get_origin(annotation) in (Union, types.UnionType, list, tuple, Sequence):
        for part in get_args(annotation):
            yield from _alternatives(part)
    else:
        yield annotation


def _items(value: Any) -> Iterator[Any]:
    """Yield a value, or the values in a list of them."""
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        for item in value:
            yield from _items(item)
    else:
        yield value
