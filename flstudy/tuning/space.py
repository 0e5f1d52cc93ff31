"""The search space of a study: which config keys vary and over which values.

The space is conditional without saying so. Keys that other keys start with (``algorithm`` for ``algorithm.tau``) are
chosen first; of the others, a trial gets those that its choice has. So ``algorithm.lr`` is one parameter shared by all
algorithms, and ``algorithm.tau`` is not suggested with FedAvg.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from flstudy.config import ConfigError
from flstudy.tuning.domain import Domain

if TYPE_CHECKING:
    import optuna

    from flstudy.config import Config

HasKey = Callable[[Mapping[str, Any], str], bool]
"""(what the trial has chosen so far, key) -> whether the config so chosen has the key."""


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
                grown.append(({**chosen, key: option}, _override(config, {**chosen, key: option}, key)))
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
                    _override(config, {**owners[0][0], key: value}, key)
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


def _override(config: "Config", overrides: Mapping[str, Any], key: str) -> "Config":
    try:
        return config.with_overrides(overrides)
    except ConfigError as error:
        raise ConfigError(f"study.search.{key} must hold only values that the config takes: {error}") from error
