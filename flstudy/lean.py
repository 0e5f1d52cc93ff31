"""Imports that wait until somebody needs them: of 5 s of computing before a run, 1 s and torch's own are left.

Lightning takes two classes from torchmetrics, whose package imports scipy, matplotlib, torchvision and more, and from
``torch._dynamo`` a class against which it tests objects and a mark for functions that are not to be compiled. The
command line, which starts often, does without (`import_lightning`): torchmetrics' package runs
when something else of it is asked for, torch's compiler when something is compiled. Nothing is hidden from who asks,
and a script that imports Lightning itself is not touched.

`opaque` marks functions for torch's compiler without importing it.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_PACKAGE, _COMPILER = "torchmetrics", "torch._dynamo"
_CLASSES = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}


Function = TypeVar("Function", bound=Callable[..., Any])


def import_lightning() -> None:
    """Import Lightning, unless it is there; whatever fails is imported in the ordinary way."""
    if "lightning" in sys.modules:
        return
    importlib.import_module("torch")
    try:
        with _package_on_demand(), _compiler_on_demand():
            importlib.import_module("lightning")
    except (ImportError, AttributeError):  # another version wants more
        for name in [name for name in sys.modules if name.partition(".")[0] in (_PACKAGE, "lightning")]:
            del sys.modules[name]
        importlib.import_module("lightning")


class _OnDemand(types.ModuleType):
    """A package of which single classes can be had before it has run."""

    def __getattr__(self, name: str) -> Any:
        running = vars(self).get("_running")
        if running is None and name == "_logger":  # of its own modules
            return logging.getLogger(_PACKAGE)
        if running is None and name in _CLASSES:
            importlib.import_module(f"{_PACKAGE}.utilities")  # these two import each other, in this order
            return getattr(importlib.import_module(_CLASSES[name]), name)
        if running is None and name == "__version__":
            return importlib.metadata.version(_PACKAGE)
        if running is not None or (name.startswith("__") and name != "__all__"):  # everybody who looks around asks
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        vars(self)["_running"] = True
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        try:
            spec.loader.exec_module(self)
        except BaseException:
            del vars(self)["_running"]
            raise
        return getattr(self, name)


@contextlib.contextmanager
def _package_on_demand() -> Iterator[None]:
    """torchmetrics as an `_OnDemand`, if it is not there yet; it stays so."""
    spec = None if _PACKAGE in sys.modules else importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _OnDemand
        sys.modules[_PACKAGE] = module
    yield


class _Compiled(type):
    """Of a class whose instances are those of another one, once that is there."""

    def __instancecheck__(cls, value: object) -> bool:
        real = getattr(sys.modules.get(_COMPILER), cls.__name__, None)
        return real is not None and isinstance(value, real)


def _disabled(function: Any, recursive: bool = True, **options: Any) -> Any:
    """``torch._dynamo.disable``: a function that is never compiled; as long as nothing is, the function."""
    real: Any = None

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        nonlocal real
        if real is None:
            disable = getattr(sys.modules.get(_COMPILER), "disable", None)
            if disable is None:
                return function(*arguments, **named)
            real = disable(function, recursive, **options)
        return real(*arguments, **named)

    return called


@contextlib.contextmanager
def _compiler_on_demand() -> Iterator[None]:
    """While Lightning is imported, a module in the place of torch's compiler that has the two names it takes."""
    if _COMPILER in sys.modules:
        yield
        return
    stand_in: Any = types.ModuleType(_COMPILER)
    stand_in.OptimizedModule, stand_in.disable = _Compiled("OptimizedModule", (), {}), _disabled
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]


_opaque: list[Callable[..., Any]] = []  # not marked yet


def opaque(function: Function) -> Function:
    """``torch.compiler.allow_in_graph``: a function that the compiler calls as it is. It hears of it when it comes."""
    _opaque.append(function)
    if _COMPILER in sys.modules:
        _mark()
    elif not any(isinstance(finder, _Announced) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Announced())
    return function


def _mark() -> None:
    import torch

    while _opaque:
        torch.compiler.allow_in_graph(_opaque.pop())


class _Announced(importlib.abc.MetaPathFinder):
    """Finds torch's compiler like everybody, and tells it of opaque functions once it has been imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _COMPILER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        run = loader.exec_module

        def run_and_mark(module: types.ModuleType) -> None:
            run(module)
            _mark()
            sys.meta_path.remove(self)

        loader.exec_module = run_and_mark
        return spec
