"""Hyper-parameters of a run, flat, by the names of a config's keys, for Lightning's loggers and MLflow's trials."""

import dataclasses
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from flstudy.federation.federated_run import FederatedRun
from flstudy.hyper import made_with, makes_class, path_of_class
from flstudy.population import Population
from flstudy.run_settings import RunSettings

SECTIONS = ("wireless", "regret", "privacy", "evaluation")
"""Parts that are of one class, which no config names."""
LONGEST = 500  # characters of a list: that of a user's own may name the owner of every example


def hyper_parameters(run: FederatedRun, population: Population) -> dict[str, Any]:
    """Return dotted names and plain values of all parts of a run: a class by its name, below it what it was made with.

    A task's are those that its ``save_hyperparameters`` saved, or the arguments of one of flstudy's. What is no plain
    value, such as a tensor, is told by its class. Of several controllers the second is ``controller.2``.

    Args:
        run: the run.
        population: its devices and their data.
    """
    settings = {field.name: getattr(run.settings, field.name) for field in dataclasses.fields(RunSettings)}
    controllers: dict[str, Any] = {
        f"controller.{n}" if n > 1 else "controller": part for n, part in enumerate(run.controllers, 1)
    }
    population_arguments = made_with(population) or {}
    parts = {
        "task": run.task,
        # Of data set and partition the settings, not the examples.
        "population": {**population_arguments, "dataset": population.dataset, "partition": population.partition},
        "algorithm": run.algorithm,
        **settings,
        **(controllers or {"controller": None}),
        "schedule": run.schedule,
        "measure": run.measure,
        "wireless": run.round_metrics.wireless,
        "regret": run.round_metrics.regret,
        "privacy": run.aggregator.privacy,
        "evaluation": run.panel,
    }
    return dict(pair for name, part in parts.items() for pair in _flat(name, part))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a part under its name, and its arguments below it."""
    if value is None or isinstance(value, bool | Real | str):
        yield name, value
    elif isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part)
    elif (
        isinstance(value, list | tuple | Mapping)
        and len(str(listed := _plain(value))) <= LONGEST
        and listed is not None
    ):
        yield name, listed
    else:
        if name not in SECTIONS:
            yield name, path_of_class(value.func) if makes_class(value) else _class_name(type(value))
        for key, part in (made_with(value) or {}).items():
            yield from _flat(f"{name}.{key}", part)


def _plain(value: Any) -> Any:
    """Return a list or mapping of plain values, tuples as lists and dataclasses as mappings; None of anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = made_with(value)
    if isinstance(value, Mapping):
        names, values = list(value), _plain(list(value.values()))
        return None if values is None else dict(zip(names, values, strict=True))
    if not isinstance(value, list | tuple):
        return None
    parts = [part if isinstance(part, bool | Real | str | None) else _plain(part) for part in value]
    return None if any(part is None and value[i] is not None for i, part in enumerate(parts)) else parts


def _class_name(cls: type) -> str:
    """Return a class of flstudy's or Python's by its name, another by its import path."""
    ours = cls.__module__.partition(".")[0] in ("flstudy", "builtins")
    return cls.__qualname__ if ours else f"{cls.__module__}.{cls.__qualname__}"
