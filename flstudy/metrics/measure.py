"""Measures of an evaluation's devices beside means and deviations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flstudy.hyper import Configurable, hyper
from flstudy.metrics.registry import of_server
from flstudy.user_error import UserError


class Measure(Configurable, ABC):
    """Metrics of the devices that an evaluation meets, for each split by itself."""

    measures: ClassVar[tuple[str, ...]] = ()
    """Names of its metrics: ``worst_accuracy`` is logged as ``valid/worst_accuracy`` and ``test/worst_accuracy``."""

    @abstractmethod
    def __call__(self, devices: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the metrics [] of one replica and split.

        Args:
            devices: by name, such as ``accuracy`` and ``loss``, a value [N] of each device that is there.
        """


@dataclass(frozen=True, kw_only=True)
class WorstDevices(Measure):
    """Accuracy of the devices that the model serves worst, a measure of fairness (q-FFL, Li et al. 2020)."""

    citations: ClassVar[tuple[str, ...]] = ("li2020fair",)
    measures: ClassVar[tuple[str, ...]] = ("worst_accuracy",)

    share: float = hyper(0.1, "(0, 1]")
    """Share of the devices, one at least."""

    def __call__(self, devices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        accuracy = devices["accuracy"].sort().values
        return {"worst_accuracy": accuracy[: max(1, math.floor(self.share * len(accuracy) + 0.5))].mean()}


def measured_names(measure: Measure | None) -> list[str]:
    """Return the names under which runs log a measure."""
    names = [] if measure is None else [f"{split}/{name}" for split in ("valid", "test") for name in measure.measures]
    return [*names, *map(of_server, names)]


def values_of(measure: Measure, columns: Sequence[Any]) -> dict[str, list[float]]:
    """Return a measure's metrics, a value per replica.

    Args:
        measure: the class of metrics.
        columns: ``name``, ``values`` [S, N] and ``available`` [S, N] of the metrics of single devices; those without
            ``available`` are not everybody's, and left out.

    Raises:
        UserError: where the measure asks for a metric that the task lacks, or returns one that it does not name.
    """
    kind = type(measure).__name__
    splits: dict[str, dict[str, tuple[Tensor, Any]]] = {}
    for name, values, available, *_ in columns:
        split, _, short = name.partition("/")
        if values is not None and available is not None:
            splits.setdefault(split, {})[short] = (values.detach().cpu().double(), torch.as_tensor(available))
    metrics: dict[str, list[float]] = {}
    for split, tables in splits.items():
        replicas = len(next(iter(tables.values()))[0])
        for s in range(replicas):
            devices = {short: values[s][available[s]] for short, (values, available) in tables.items()}
            try:
                measured = measure(devices)
            except KeyError as error:
                raise UserError(
                    f"measure: {kind} asks for the devices' {error}, but this task tells {', '.join(devices)}: "
                    "take another measure, or let the task tell it"
                ) from error
            if set(measured) != set(measure.measures):
                wrong = ", ".join(map(str, measured))
                raise UserError(
                    f"measure: {kind} names {', '.join(measure.measures)} as its measures, but tells {wrong}"
                )
            for name, value in measured.items():
                metrics.setdefault(f"{split}/{name}", []).append(float(value))
    return metrics
