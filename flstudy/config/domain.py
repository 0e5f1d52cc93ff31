"""The values that a search may give a key, which is all that `study.search` says of it.

Domains of a key, with the bounds of Ray Tune's functions of the same names:

    loguniform: [low, high]      floats, uniform in the logarithm, 0 < low < high
    uniform:    [low, high]      floats
    quniform:   [low, high, q]   low, low + q, low + 2q, ... up to and including high
    randint:    [low, high]      integers low .. high - 1 (the upper bound is excluded)
    lograndint: [low, high]      the same, uniform in the logarithm, low >= 1
    choice:     [a, b, ...]      any values: numbers, names, class names, lists
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from flstudy.config.errors import ConfigError

if TYPE_CHECKING:
    import optuna

BOUNDS = {"loguniform": 2, "uniform": 2, "quniform": 3, "randint": 2, "lograndint": 2}
_KINDS = sorted([*BOUNDS, "choice"])
INTEGER = ("randint", "lograndint")


@dataclass(frozen=True)
class Domain:
    """The values of one key: ``bounds`` as written in the config, or ``options`` of a choice."""

    kind: str
    bounds: tuple[float, ...] = ()
    options: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, where: str, written: Any) -> Self:
        """Return a domain from ``{loguniform: [1.0e-5, 0.1]}``; ConfigError says where it stands and what is wrong with
        it."""
        if not isinstance(written, Mapping) or len(written) != 1:
            raise ConfigError(
                f"{where} must be one of the distributions {', '.join(_KINDS)}, got {written!r}: "
                f"write for example {{loguniform: [1.0e-5, 0.1]}}, or set the key in the config to keep it fixed"
            )
        kind, bounds = next(iter(written.items()))
        if kind not in _KINDS:
            near = get_close_matches(str(kind), _KINDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
            raise ConfigError(f"{where}: the distribution must be one of {', '.join(_KINDS)}, got {kind!r}: {hint}")
        if kind == "choice":
            return cls(kind, options=_options(where, bounds))
        return cls(kind, bounds=_bounds(where, kind, bounds))

    def __str__(self) -> str:
        """Return the domain as a config writes it."""
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in self.options or self.bounds]
        return f"{{{self.kind}: [{', '.join(values)}]}}"

    def contains(self, value: Any) -> bool:
        """Return whether a value can be drawn."""
        if self.kind == "choice":
            return any(type(option) is type(value) and option == value for option in self.options)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
        low, high = self.extremes()
        if not low <= value <= high:
            return False
        if self.kind == "quniform":
            steps = (value - self.bounds[0]) / self.bounds[2]
            return math.isclose(steps, round(steps), abs_tol=1e-6)
        return self.kind not in INTEGER or float(value).is_integer()

    def joined(self, other: "Domain") -> "Domain":
        """Return the smallest domain of this one's kind that holds both; this one where only one is a choice."""
        if self.kind == "choice" and other.kind == "choice":
            more = [option for option in self.options if not other.contains(option)]
            return Domain("choice", options=(*other.options, *more))
        if "choice" in (self.kind, other.kind):
            return self
        ends = (min(self.bounds[0], other.bounds[0]), max(self.bounds[1], other.bounds[1]))
        return Domain(self.kind, (*ends, *self.bounds[2:]))

    def extremes(self) -> Sequence[Any]:
        """Return the smallest and the largest value that can be suggested, or all options of a choice."""
        if self.kind == "choice":
            return self.options
        low, high = self.bounds[:2]
        if self.kind in INTEGER:
            return int(low), int(high) - 1
        if self.kind == "quniform":  # end on the grid, as Optuna would with a warning
            q = self.bounds[2]
            return low, round(low + math.floor((high - low) / q + 1e-9) * q, 12)  # 3 * 0.3 is 0.9 here
        return low, high

    def values(self, points: int) -> list[Any]:
        """Return all options, all steps of a quniform, or ``points`` values of a range at equal distances, ends
        included."""
        low, high = self.extremes()[0], self.extremes()[-1]
        if self.kind == "choice":
            return list(self.options)
        if self.kind == "quniform":
            steps = round((high - low) / self.bounds[2])
            return [round(low + step * self.bounds[2], 12) for step in range(steps + 1)]
        shares = [step / (points - 1) for step in range(points)] if points > 1 else [0.5]
        log = self.kind.startswith("log")
        values = [low * (high / low) ** share if log else low + (high - low) * share for share in shares]
        if self.kind in INTEGER:
            return sorted({round(value) for value in values})
        return [min(max(value, low), high) for value in values]

    def nearest(self, value: float) -> Any:
        """Return the value of a numeric domain that is nearest to a number."""
        low, high = self.extremes()
        value = min(max(value, low), high)
        if self.kind == "quniform":
            return round(low + round((value - low) / self.bounds[2]) * self.bounds[2], 12)
        return round(value) if self.kind in INTEGER else value

    def draw(self, rng: random.Random) -> Any:
        """Draw a value of a numeric domain."""
        low, high = self.extremes()
        if self.kind.startswith("log"):
            return self.nearest(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.nearest(rng.uniform(low, high))

    def suggest(self, trial: "optuna.Trial", key: str) -> Any:
        """Ask Optuna for a key's value in a trial."""
        if self.kind == "choice":
            # Optuna's categories are scalars; a list or a mapping goes by its text.
            texts = {self.parameter(option): option for option in self.options}
            return texts[trial.suggest_categorical(key, list(texts))]
        low, high = self.extremes()
        if self.kind in INTEGER:
            return trial.suggest_int(key, low, high, log=self.kind == "lograndint")
        if self.kind == "quniform":
            return round(trial.suggest_float(key, low, high, step=self.bounds[2]), 12)
        return trial.suggest_float(key, low, high, log=self.kind == "loguniform")

    def distribution(self) -> "optuna.distributions.BaseDistribution":
        """Return the Optuna distribution that `suggest` asks for."""
        from optuna import distributions

        if self.kind == "choice":
            return distributions.CategoricalDistribution([self.parameter(option) for option in self.options])
        low, high = self.extremes()
        if self.kind in INTEGER:
            return distributions.IntDistribution(low, high, log=self.kind == "lograndint")
        if self.kind == "quniform":
            return distributions.FloatDistribution(low, high, step=self.bounds[2])
        return distributions.FloatDistribution(low, high, log=self.kind == "loguniform")

    @staticmethod
    def parameter(value: Any) -> Any:
        """Return a value as Optuna keeps it."""
        return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def _options(where: str, written: Any) -> tuple[Any, ...]:
    if isinstance(written, Mapping):  # classes by their names
        return tuple(written)
    if not isinstance(written, list | tuple):
        raise ConfigError(f"{where}: choice must be a list of values, got {written!r}: write {{choice: [a, b]}}")
    if not written:
        raise ConfigError(f"{where}: choice must have at least one value, got []: add values or remove the key")
    for i, value in enumerate(written):
        parameter = Domain.parameter(value)
        for earlier in written[:i]:
            if Domain.parameter(earlier) == parameter:  # Optuna would draw the first of them alone
                raise ConfigError(
                    f"{where}: choice must have values that a search tells apart, got {earlier!r} and {value!r}: "
                    "remove one"
                )
    return tuple(written)


def _bounds(where: str, kind: str, written: Any) -> tuple[float, ...]:
    """Return the checked numbers of a numeric distribution."""
    names = ["low", "high", "q"][: BOUNDS[kind]]
    shape = f"[{', '.join(names)}]"
    if not isinstance(written, list | tuple) or len(written) != len(names):
        raise ConfigError(f"{where}: {kind} must be {shape}, got {written!r}: give {len(names)} numbers")
    numbers = []
    for name, value in zip(names, written, strict=True):
        number = _number(value)
        if number is None or (kind in INTEGER and not number.is_integer()):
            wanted = "an integer" if kind in INTEGER else "a finite number"
            raise ConfigError(f"{where}: {kind} {name} must be {wanted}, got {value!r}: write {kind}: {shape}")
        numbers.append(number)
    low, high = numbers[:2]
    if low > high:
        raise ConfigError(f"{where}: {kind} must have low < high, got [{low:g}, {high:g}]: swap the two bounds")
    if low == high:
        raise ConfigError(
            f"{where}: {kind} must have low < high, got [{low:g}, {high:g}]: "
            f"widen it, or set the key in the config to keep it fixed"
        )
    if kind == "loguniform" and low <= 0:
        raise ConfigError(
            f"{where}: loguniform low must be > 0, got {low:g}: give a small positive bound such as 1.0e-6, or uniform"
        )
    if kind == "lograndint" and low < 1:
        raise ConfigError(f"{where}: lograndint low must be >= 1, got {low:g}: raise it to 1, or use randint")
    if kind == "quniform" and not 0 < numbers[2] <= high - low:
        raise ConfigError(
            f"{where}: quniform q must lie in (0, {high - low:g}], got {numbers[2]:g}: give a smaller step"
        )
    return tuple(numbers)


def _number(value: Any) -> float | None:
    """Return a finite float, also from the text '1e-3', which YAML 1.1 does not read as a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
