"""Classes that a config can name by their short names. A room imports its own modules when it is imported itself, so
that a new method, data set or drift is one more file. Imports the standard library only."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any


def named(base: type) -> dict[str, type[Any]]:
    """Return the concrete subclasses of ``base`` by name, users' included; a user's class goes by its path where it has
    the name of one of flstudy's."""
    classes = [cls for cls in descendants(base) if not inspect.isabstract(cls)]
    ours = {cls.__name__: cls for cls in classes if cls.__module__.split(".")[0] == "flstudy"}
    theirs = [cls for cls in classes if cls not in ours.values()]
    users = {cls.__name__ if cls.__name__ not in ours else f"{cls.__module__}.{cls.__name__}": cls for cls in theirs}
    return dict(sorted((ours | users).items()))


def descendants(base: type) -> Iterator[type[Any]]:
    """Yield all subclasses of ``base``, except for those that a run has derived from another for its own use."""
    children: list[type[Any]] = base.__subclasses__()
    for child in children:
        if vars(child).get("derived"):
            continue
        yield child
        yield from descendants(child)


def import_modules(package: str, path: Iterable[str]) -> None:
    """Import all modules of a package, so that the classes in them are known."""
    for module in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(module.name)
