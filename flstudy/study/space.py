"""The search space of a study: which config keys vary and over which values.

Domains of a key, with the bounds of Ray Tune's functions of the same names:

    loguniform: [low, high]      floats, uniform in the logarithm, 0 < low < high
    uniform:    [low, high]      floats
    quniform:   [low, high, q]   low, low + q, low + 2q, ... up to and including high
    randint:    [low, high]      integers low .. high - 1 (the upper bound is excluded)
    lograndint: [low, high]      the same, uniform in the logarithm, low >= 1
    choice:     [a, b, ...]      any values: numbers, names, class names, lists

The space is conditional without saying so. Keys that other keys start with (``algorithm`` for ``algorithm.tau``) are
chosen first; of the others, a trial gets those that its choice has. So ``algorithm.lr`` is one parameter shared by all
algorithms, and ``algorithm.tau`` is not suggested with FedAvg.
"""

import contextlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from flstudy.config import ConfigError

if TYPE_CHECKING:
    import optuna

    from flstudy.config import Config

Point = dict[str, Any]
"""Values by key, as Optuna keeps them."""
HasKey = Callable[[Mapping[str, Any], str], bool]
"""(what the trial has chosen so far, key) -> whether the config so chosen has the key."""

_BOUNDS = {"loguniform": 2, "uniform": 2, "quniform": 3, "randint": 2, "lograndint": 2}
_KINDS = sorted([*_BOUNDS, "choice"])
_INTEGER = ("randint", "lograndint")


@dataclass(frozen=True)
class Domain:
    """The values of one key: ``bounds`` as written in the config, or ``options`` of a choice."""

    kind: str
    bounds: tuple[float, ...] = ()
    options: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, key: str, written: Any) -> Self:
        """A domain from ``{loguniform: [1.0e-5, 0.1]}``; ConfigError says what is wrong with it."""
        where = f"study.search.{key}"
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
        """As a config writes it."""
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in self.options or self.bounds]
        return f"{{{self.kind}: [{', '.join(values)}]}}"

    def contains(self, value: Any) -> bool:
        """Whether a value can be drawn."""
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
        return self.kind not in _INTEGER or float(value).is_integer()

    def extremes(self) -> Sequence[Any]:
        """The smallest and the largest value that can be suggested, or all options of a choice."""
        if self.kind == "choice":
            return self.options
        low, high = self.bounds[:2]
        if self.kind in _INTEGER:
            return int(low), int(high) - 1
        if self.kind == "quniform":  # what Optuna would do with a warning: end on the grid
            q = self.bounds[2]
            return low, round(low + math.floor((high - low) / q + 1e-9) * q, 12)  # 3 * 0.3 is 0.9 here
        return low, high

    def values(self, points: int) -> list[Any]:
        """All options, all steps of a quniform, or ``points`` values of a range at equal distances, ends included."""
        low, high = self.extremes()[0], self.extremes()[-1]
        if self.kind == "choice":
            return list(self.options)
        if self.kind == "quniform":
            steps = round((high - low) / self.bounds[2])
            return [round(low + step * self.bounds[2], 12) for step in range(steps + 1)]
        shares = [step / (points - 1) for step in range(points)] if points > 1 else [0.5]
        log = self.kind.startswith("log")
        found = [low * (high / low) ** share if log else low + (high - low) * share for share in shares]
        if self.kind in _INTEGER:
            return sorted({round(value) for value in found})
        return [min(max(value, low), high) for value in found]

    def nearest(self, value: float) -> Any:
        """The value of a numeric domain that is nearest to a number."""
        low, high = self.extremes()
        value = min(max(value, low), high)
        if self.kind == "quniform":
            return round(low + round((value - low) / self.bounds[2]) * self.bounds[2], 12)
        return round(value) if self.kind in _INTEGER else value

    def draw(self, rng: random.Random) -> Any:
        """A value of a numeric domain."""
        low, high = self.extremes()
        if self.kind.startswith("log"):
            return self.nearest(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.nearest(rng.uniform(low, high))

    def suggest(self, trial: "optuna.Trial", key: str) -> Any:
        """A key's value in a trial, asked of Optuna."""
        if self.kind == "choice":
            # Optuna's categories are scalars; a list or a mapping goes by its text.
            texts = {self.parameter(option): option for option in self.options}
            return texts[trial.suggest_categorical(key, list(texts))]
        low, high = self.extremes()
        if self.kind in _INTEGER:
            return trial.suggest_int(key, low, high, log=self.kind == "lograndint")
        if self.kind == "quniform":
            return round(trial.suggest_float(key, low, high, step=self.bounds[2]), 12)
        return trial.suggest_float(key, low, high, log=self.kind == "loguniform")

    def distribution(self) -> "optuna.distributions.BaseDistribution":
        """What `suggest` asks Optuna for."""
        from optuna import distributions

        if self.kind == "choice":
            return distributions.CategoricalDistribution([self.parameter(option) for option in self.options])
        low, high = self.extremes()
        if self.kind in _INTEGER:
            return distributions.IntDistribution(low, high, log=self.kind == "lograndint")
        if self.kind == "quniform":
            return distributions.FloatDistribution(low, high, step=self.bounds[2])
        return distributions.FloatDistribution(low, high, log=self.kind == "loguniform")

    @staticmethod
    def parameter(value: Any) -> Any:
        """A value as Optuna keeps it."""
        return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def _options(where: str, written: Any) -> tuple[Any, ...]:
    if not isinstance(written, list | tuple):
        raise ConfigError(f"{where}: choice must be a list of values, got {written!r}: write {{choice: [a, b]}}")
    if not written:
        raise ConfigError(f"{where}: choice must have at least one value, got []: add values or remove the key")
    for i, value in enumerate(written):
        if value in written[:i] and any(type(v) is type(value) and v == value for v in written[:i]):
            raise ConfigError(f"{where}: choice must have distinct values, got {value!r} twice: remove one")
    return tuple(written)


def _bounds(where: str, kind: str, written: Any) -> tuple[float, ...]:
    """The checked numbers of a numeric distribution."""
    names = ["low", "high", "q"][: _BOUNDS[kind]]
    shape = f"[{', '.join(names)}]"
    if not isinstance(written, list | tuple) or len(written) != len(names):
        raise ConfigError(f"{where}: {kind} must be {shape}, got {written!r}: give {len(names)} numbers")
    numbers = []
    for name, value in zip(names, written, strict=True):
        number = _number(value)
        if number is None or (kind in _INTEGER and not number.is_integer()):
            wanted = "an integer" if kind in _INTEGER else "a finite number"
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
    """A finite float, also of the text '1e-3', which YAML 1.1 does not read as a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Space:
    """Domains by config key."""

    domains: Mapping[str, Domain]
    _made: dict[int, tuple["Config", list[tuple[dict[str, Any], "Config"]]]] = field(
        default_factory=dict, compare=False, repr=False
    )  # candidates by the config's id, since composing them takes seconds; the config is kept, so that its id is

    @classmethod
    def parse(cls, search: Mapping[str, Any]) -> Self:
        """The space of ``study.search``; ConfigError names the first wrong key."""
        return cls({key: Domain.parse(key, written) for key, written in search.items()})

    @property
    def selectors(self) -> list[str]:
        """Keys that decide which other keys exist, shallow ones first."""
        keys = {key for key in self.domains if any(other.startswith(f"{key}.") for other in self.domains)}
        keys |= {"algorithm"} & set(self.domains)  # also where nothing else of the algorithm is searched
        return sorted(keys, key=lambda key: (key != "algorithm", key.count("."), key))

    def suggest(self, trial: "optuna.Trial", has_key: HasKey, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Overrides of one trial, asked of Optuna key by key but for those that are ``fixed``."""
        chosen: dict[str, Any] = dict(fixed or {})
        for key in self.selectors:
            if key not in chosen and has_key(chosen, key):
                chosen[key] = self.domains[key].suggest(trial, key)
        overrides = dict(chosen)
        for key, domain in self.domains.items():
            if key not in overrides and key not in self.selectors and has_key(chosen, key):
                overrides[key] = domain.suggest(trial, key)
        return overrides

    def candidates(self, config: "Config") -> list[tuple[dict[str, Any], "Config"]]:
        """Every combination of the selectors, and the config it makes; ConfigError for one that makes none."""
        if id(config) not in self._made:
            self._made[id(config)] = config, self._candidates(config)
        return self._made[id(config)][1]

    def _candidates(self, config: "Config") -> list[tuple[dict[str, Any], "Config"]]:
        found: list[tuple[dict[str, Any], Config]] = [({}, config)]
        for key in self.selectors:
            grown = []
            for (chosen, made), option in itertools.product(found, self.domains[key].extremes()):
                if not made.has_key(key):
                    if (chosen, made) not in grown:
                        grown.append((chosen, made))
                    continue
                with _naming(key):
                    grown.append(({**chosen, key: option}, config.variant({**chosen, key: option})))
            found = grown
        return found

    def validate(self, config: "Config") -> None:
        """Raise ConfigError for a key that no candidate has, or for an end of a domain that the config refuses."""
        candidates = self.candidates(config)
        for key, domain in self.domains.items():
            owners = [(chosen, made) for chosen, made in candidates if made.has_key(key)]
            if not owners:
                near = nearest_key(key, {name for _, made in candidates for name in made.flat()})
                hint = f"did you mean {near!r}?" if near else "see the keys with --print_config"
                tried = " nor any candidate of the search" if self.selectors else ""
                raise ConfigError(
                    f"study.search.{key} must name a key of the config, but neither {config.path}{tried} has it: {hint}"
                    if tried
                    else f"study.search.{key} must name a key of the config, but {config.path} has no such key: {hint}"
                )
            if key not in self.selectors:  # the candidates have tried those
                for value in domain.extremes():
                    with _naming(key):
                        owners[0][1].check_value(key, value)
        self._check_presets(config)

    def _check_presets(self, config: "Config") -> None:
        """Raise ConfigError for a preset that the search could not try: it would silently be drawn instead."""
        for name, values in config.study.presets.items():
            for key, value in values.items():
                domain = self.domains.get(key if "." in key else f"algorithm.{key}")
                if domain is not None and not domain.contains(value):
                    raise ConfigError(
                        f"study.presets.{name}.{key} must lie in study.search's {domain}, got {value!r}: "
                        "widen the search"
                    )

    def outside(self, config: "Config") -> list[str]:
        """A sentence for each searched key whose own value in an algorithm's first trial the domains do not hold; null,
        which switches something off, is none."""
        found = []
        for chosen, made in self.candidates(config):
            own, name = made.flat(), made.tags()["algorithm"]
            for key, domain in self.domains.items():
                if key not in chosen and own.get(key) is not None and not domain.contains(own[key]):
                    found.append(f"{name}'s own {key}, {own[key]}, lies outside study.search's {domain}: it is drawn")
        return found

    def grid(self, config: "Config", points: int) -> list[dict[str, Any]]:
        """Every combination of every candidate's keys, as Optuna keeps it; ranges give ``points`` values."""
        found = []
        for chosen, made in self.candidates(config):
            keys = [key for key in self.domains if key not in self.selectors and made.has_key(key)]
            for values in itertools.product(*(self.domains[key].values(points) for key in keys)):
                point = {**chosen, **dict(zip(keys, values, strict=True))}
                found.append({key: Domain.parameter(value) for key, value in point.items()})
        return found

    def defaults(self, config: "Config") -> list[dict[str, Any]]:
        """First points: one per candidate algorithm, with the config's own values wherever the domains hold them."""
        points, seen = [], set()
        for chosen, made in self.candidates(config):
            algorithm = Domain.parameter(chosen.get("algorithm"))
            if algorithm in seen:
                continue
            seen.add(algorithm)
            own = made.flat()
            point = {key: Domain.parameter(value) for key, value in chosen.items()}
            for key, domain in self.domains.items():
                if key not in point and made.has_key(key) and domain.contains(own.get(key)):
                    point[key] = Domain.parameter(own[key])
            points.append(point)
        return points


def keys_known(config: "Config") -> HasKey:
    """Whether a config with some classes chosen has a key. Composing one costs milliseconds, and there are only as many
    as combinations of class names: each is composed once."""
    made: dict[str, Config] = {}

    def has_key(chosen: Mapping[str, Any], key: str) -> bool:
        text = json.dumps(chosen, sort_keys=True, default=str)
        if text not in made:
            made[text] = config.with_overrides(chosen) if chosen else config
        return made[text].has_key(key)

    return has_key


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key that a misspelt one may mean: of the same parent if possible, and never the parent itself."""
    parent, _, name = key.rpartition(".")
    known = sorted(other for other in known if not key.startswith(f"{other}."))
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == parent}
    near = get_close_matches(name, siblings, 1)
    if near:
        return siblings[near[0]]
    far = get_close_matches(key, known, 1, cutoff=0.85)
    return far[0] if far else None


@contextlib.contextmanager
def _naming(key: str) -> Iterator[None]:
    """Refusals of a searched key's values that say whose they are."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"study.search.{key} must hold only values that the config takes: {error}") from error
