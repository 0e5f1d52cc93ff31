"""Keys that name classes and sections that are classes, as strings: nothing is imported to read them. Class paths that
a config names are imported only by `import_class`."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.config.errors import ConfigError, describe_error, shown


class Root(NamedTuple):
    """A key that names a class.

    Attributes:
        module: the room that exports the classes.
        base: their base class, in the same room.
        kind: the word for them in ``flstudy list``; '' where flstudy ships none.
        doc: description of the key, for a key that is no documented field of a class.
        default: the class if the key is left out; '' if the key is required, None if it is then null.
        others: import path of the base class that users' classes must have; '' stands for ``base``.
        linked: arguments that the run gives, and no config.
    """

    module: str
    base: str
    kind: str
    doc: str = ""
    default: str | None = None
    others: str = ""
    linked: tuple[str, ...] = ()

    def accepts(self) -> type[Any]:
        """Return the base class of the classes that the key may name."""
        return locate(self.others or f"{self.module}.{self.base}")


LINKED = ("shape", "classes", "tokens")
"""Arguments of a task that its data set fills in."""

ROOTS = {
    "task": Root(
        *(
            "flstudy.tasks",
            "Task",
            "tasks",
            "The model and its loss: one of flstudy's, or your LightningModule's path.",
        ),
        default="",
        others="lightning.LightningModule",
        linked=LINKED,
    ),
    "population.dataset": Root("flstudy.population", "Dataset", "datasets", default=""),
    "population.partition": Root("flstudy.population", "Partition", "partitions"),
    "population.drift": Root("flstudy.population", "Drift", "drifts"),
    "population.drift.change": Root("flstudy.population", "Change", "changes", default="LabelSwap"),
    "population.availability": Root("flstudy.population", "Availability", "availabilities"),
    "population.selection": Root("flstudy.population", "Selection", "selections"),
    "population.data_stream": Root("flstudy.population", "DataStream", "data-streams"),
    "algorithm": Root("flstudy.algorithms", "Algorithm", "algorithms", "The federated optimizer.", default=""),
    "algorithm.optimizer": Root("torch.optim", "Optimizer", "", default="", linked=("params",)),
    "algorithm.lr_scheduler": Root("torch.optim.lr_scheduler", "LRScheduler", "", linked=("optimizer",)),
    "controller": Root("flstudy.controllers", "Controller", "controllers", "Control between rounds; null: none."),
    "schedule": Root(
        *("flstudy.controllers", "Schedule", "schedules"),
        "Schedule of the devices' learning rate within a session; null: constant.",
    ),
    "measure": Root(
        *("flstudy.metrics.measure", "Measure", "measures"),
        "Further statistics over devices in evaluations; null: means and deviations only.",
    ),
    "study.sampler": Root("flstudy.tuning", "Sampler", "samplers", default="Tpe"),
    "study.scheduler": Root("flstudy.tuning", "Scheduler", "schedulers"),
}


class SectionClass(NamedTuple):
    """A part of a config that is one class; a null section is off."""

    module: str
    name: str
    doc: str = ""
    null: bool = False


SECTIONS = {  # by key; of '' the keys stand at the top
    "": SectionClass("flstudy.config.sections", "Settings"),
    "population": SectionClass(
        "flstudy.population", "Population", "The devices and their data, with drift and availability."
    ),
    "wireless": SectionClass("flstudy.metrics.wireless", "Wireless", "A radio cell whose costs are logged.", True),
    "recovery": SectionClass("flstudy.metrics.drift", "Recovery", "Criterion of recovery from a drift."),
    "regret": SectionClass("flstudy.metrics.dynamic_regret", "Regret", "Logging of dynamic regret.", True),
    "privacy": SectionClass("flstudy.privacy", "Privacy", "Clipping and noise between devices and server.", True),
    "evaluation": SectionClass("flstudy.metrics.panel", "Panel", "Devices that are evaluated; null: all.", True),
    "run": SectionClass("flstudy.config.sections", "Run", "Output of a single run."),
    "study": SectionClass("flstudy.config.sections", "StudySection", "The search for hyper-parameters."),
}

TOP = ("task", "population", "algorithm", "", "controller", "schedule", "measure", *list(SECTIONS)[2:])
"""The parts of a config in their order."""

IMPORT_ONLY = "FLSTUDY_IMPORT_ONLY"
"""Environment variable: the packages and modules, by commas, from which configs may name classes; unset: any."""


OWN_FILE = re.compile(r"^(?:\./)?((?:\w+/)*[^\W\d]\w*)\.py:(\w+)$")
"""A class in a file beside the config or below its folder: ./mylab.py:Hospitals."""


def by_module(value: Any) -> Any:
    """Return a value in which classes of files beside the config are named by their modules, by which they can be
    imported."""
    if isinstance(value, Mapping):
        return {key: by_module(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(by_module(part) for part in value)
    match = OWN_FILE.match(value) if isinstance(value, str) else None
    return f"{match[1].replace('/', '.')}.{match[2]}" if match else value


def check_files(value: Any, folder: Path) -> None:
    """Raise ConfigError for a class in a file that is not there, or whose module's name is another's; nothing is
    imported.

    Args:
        value: of a config, as it is written.
        folder: of the config.
    """
    for written in texts_in(value):
        match = OWN_FILE.match(written)
        if match is None:
            continue
        file, name = folder.resolve() / f"{match[1]}.py", match[1].replace("/", ".")
        if not file.is_file():
            raise ConfigError(
                f"there is no file {match[1]}.py for {shown(written)}: put it beside the config, in {folder}"
            )
        first = name.partition(".")[0]
        others = PathFinder.find_spec(first, [place for place in sys.path if Path(place).resolve() != folder.resolve()])
        other_file = getattr(sys.modules.get(name), "__file__", None) or (others and others.origin)
        if first in sys.stdlib_module_names or (other_file and Path(other_file).resolve() != file):
            raise ConfigError(f"{shown(written)} must have a name of its own, but another module is {first}: rename it")


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts among a value's parts."""
    if isinstance(value, str):
        yield value
    for part in [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from texts_in(part)


def may_name_class(text: str) -> bool:
    """Return whether a text may be the dotted path of a class that is not flstudy's."""
    first, _, rest = text.partition(".")
    return bool(rest) and first != "flstudy" and all(name.isidentifier() for name in text.split("."))


def add_to_path(folder: str, values: Any) -> None:
    """Let the classes in a folder's files be imported, after all packages, where a config's values may name one; else
    no file of the folder may be taken for a module."""
    if folder not in sys.path and any(map(may_name_class, texts_in(by_module(values)))):
        sys.path.append(folder)


def named_modules(value: Any) -> Iterator[str]:
    """Yield the modules of classes that a config's values name by dotted paths and that have been imported."""
    for path in texts_in(value):
        module, _, name = path.rpartition(".")
        if isinstance(getattr(sys.modules.get(module), name, None), type):
            yield module


def locate(path: str) -> Any:
    """Return the object of a dotted path that flstudy names.

    Raises:
        ImportError: there is no such module, or it does not have the name.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise ImportError(f"{module} has no {name}") from error


def import_class(key: str, path: str) -> type[Any]:
    """Return the class of a dotted path that a config names; all imports on a config's behalf are made here.

    Raises:
        ConfigError: `IMPORT_ONLY` does not allow it, and then nothing was imported; importing it failed, whatever the
            module raised; or it is no class.
    """
    allowed = os.environ.get(IMPORT_ONLY)
    prefixes = tuple(f"{module.strip()}." for module in (allowed or "").split(",") if module.strip())
    if allowed is not None and not path.startswith(prefixes):
        raise ConfigError(
            f"{key} must name a class from what {IMPORT_ONLY} allows ({shown(allowed)}), got {shown(path)}: add its "
            "package there if you trust it"
        )
    if "/" in path or ":" in path:
        raise ConfigError(f"{key} must name a class as module.Class, or ./file.py:Class beside the config, got {path}")
    try:
        located = locate(path)
    except (Exception, SystemExit) as error:
        reason = describe_error(error)
        raise ConfigError(f"{key} must name a class that can be imported, got {path}: {reason}") from error
    if not isinstance(located, type):
        raise ConfigError(f"{key} must name a class, got {path}, which is a {type(located).__name__}")
    return located
