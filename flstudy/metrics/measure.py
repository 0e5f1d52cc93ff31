"""What an evaluation tells of the devices beside means and deviations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flstudy.hyper import Configurable, hyper


class Measure(Configurable, ABC):
    """Metrics of the devices that an evaluation meets, for each split by itself."""

    measures: ClassVar[tuple[str, ...]] = ()
    """Names of what it tells: ``worst_accuracy`` is logged as ``valid/worst_accuracy`` and ``test/worst_accuracy``."""

    @abstractmethod
    def __call__(self, devices: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The metrics [] of one replica and split.

        Args:
            devices: by name, such as ``accuracy`` and ``loss``, a value [N] of each device that is there.
        """


@dataclass(frozen=True, kw_only=True)
class WorstDevices(Measure):
    """Accuracy of those whom the model serves worst, by which fair methods are judged (Li et al. 2020, q-FFL)."""

    citations: ClassVar[tuple[str, ...]] = ("li2020fair",)
    measures: ClassVar[tuple[str, ...]] = ("worst_accuracy",)

    share: float = hyper(0.1, "(0, 1]")
    """Of the devices, one at least."""

    def __call__(self, devices: Mapping[str, Tensor]) -> dict[str, Tensor]:
        accuracy = devices["accuracy"].sort().values
        return {"worst_accuracy": accuracy[: max(1, math.floor(self.share * len(accuracy) + 0.5))].mean()}


def measured_names(measure: Measure | None) -> list[str]:
    """Names under which runs log a measure."""
    return [] if measure is None else [f"{split}/{name}" for split in ("valid", "test") for name in measure.measures]


def values_of(measure: Measure, columns: Sequence[Any]) -> dict[str, list[float]]:
    """A measure's metrics, a value per replica.

    Args:
        measure: the class of metrics.
        columns: ``name``, ``values`` [S, N] and ``there`` [S, N] of the metrics of single devices; those without
            ``there`` are not everybody's, and left out.

    Raises:
        ValueError: where the measure asks for what the task does not tell, or tells what it does not name.
    """
    kind = type(measure).__name__
    splits: dict[str, dict[str, tuple[Tensor, Any]]] = {}
    for name, values, there, *_ in columns:
        split, _, short = name.partition("/")
        if values is not None and there is not None:
            splits.setdefault(split, {})[short] = (values.detach().cpu().double(), torch.as_tensor(there))
    found: dict[str, list[float]] = {}
    for split, tables in splits.items():
        replicas = len(next(iter(tables.values()))[0])
        for s in range(replicas):
            devices = {short: values[s][there[s]] for short, (values, there) in tables.items()}
            try:
                told = measure(devices)
            except KeyError as error:
                raise ValueError(
                    f"measure: {kind} asks for the devices' {error}, but this task tells {', '.join(devices)}: "
                    "take another measure, or let the task tell it"
                ) from error
            if set(told) != set(measure.measures):
                wrong = ", ".join(map(str, told))
                raise ValueError(
                    f"measure: {kind} names {', '.join(measure.measures)} as its measures, but tells {wrong}"
                )
            for name, value in told.items():
                found.setdefault(f"{split}/{name}", []).append(float(value))
    return found
