"""The search space of a study as its config says it, for plots and importances."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flstudy.reporting.load import StudyResults, Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Domain:
    """The values of one searched key: a range, or the options of a choice."""

    key: str
    kind: str  # loguniform, uniform, quniform, randint, lograndint or choice
    low: float = math.nan
    high: float = math.nan  # included
    step: float | None = None
    options: tuple[Any, ...] = ()  # texts and numbers; a list or mapping goes by its JSON

    @property
    def log(self) -> bool:
        return self.kind.startswith("log")

    @property
    def label(self) -> str:
        """The key without the part that an algorithm's own keys share."""
        return self.key.removeprefix("algorithm.")

    def place(self, value: Any) -> float:
        """Where a value lies between the ends of the domain, in [0, 1]; NaN for one that is not in it."""
        if self.kind == "choice":
            at = [index for index, option in enumerate(self.options) if option == scalar(value)]
            return at[0] / max(len(self.options) - 1, 1) if at else math.nan
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return math.nan
        low, high, value = (math.log(v) if self.log else float(v) for v in (self.low, self.high, value))
        return (value - low) / (high - low) if high > low else 0.5

    def distribution(self) -> "BaseDistribution":
        """The domain as Optuna knows it."""
        from optuna import distributions

        if self.kind == "choice":
            return distributions.CategoricalDistribution(self.options)
        if self.kind in ("randint", "lograndint"):
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def domains(results: StudyResults) -> dict[str, Domain]:
    """Domain by searched key, without the choice of the algorithm itself; keys that cannot be read are left out."""
    search = (results.config.get("study") or {}).get("search") or {}
    found = {key: _domain(key, written) for key, written in search.items() if key != "algorithm"}
    return {key: domain for key, domain in found.items() if domain is not None}


def keys_of(trials: tuple[Trial, ...], known: Mapping[str, Domain]) -> list[str]:
    """The searched keys that vary among some trials, in the order of the config."""
    return [key for key in known if len({str(t.overrides[key]) for t in trials if key in t.overrides}) > 1]


def scalar(value: Any) -> Any:
    """A value as Optuna keeps it."""
    return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def _domain(key: str, written: Any) -> Domain | None:
    if not isinstance(written, Mapping) or len(written) != 1:
        return None
    kind, bounds = next(iter(written.items()))
    if not isinstance(bounds, list | tuple) or not bounds:
        return None
    if kind == "choice":
        return Domain(key, kind, options=tuple(scalar(option) for option in bounds))
    try:
        low, high, *rest = (float(bound) for bound in bounds)  # YAML reads 1e-3 as text
    except (TypeError, ValueError):
        return None
    if kind in ("randint", "lograndint"):
        return Domain(key, kind, low, high - 1)  # its upper bound is excluded
    if kind == "quniform" and rest:
        high = float(np.round(low + math.floor((high - low) / rest[0] + 1e-9) * rest[0], 12))
        return Domain(key, kind, low, high, step=rest[0])
    return Domain(key, kind, low, high) if kind in ("uniform", "loguniform") else None
