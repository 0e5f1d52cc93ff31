"""The search space of a study: which config keys vary, and over which domains (`flstudy.config.domain`).

The options of a key whose values are classes are names: a study's arms, or the names in `choice`.

The space is conditional by its keys alone. Keys that other keys start with (``algorithm`` for ``algorithm.tau``) are
chosen first; of the others, a trial gets those that its choice has. So ``algorithm.lr`` is one parameter shared by all
algorithms, and ``algorithm.tau`` is not suggested with FedAvg.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self

from flstudy.config import ConfigError
from flstudy.config.domain import Domain
from flstudy.config.reading import SEARCH
from flstudy.config.values import arm_key

if TYPE_CHECKING:
    import optuna

    from flstudy.config import Config

Point = dict[str, Any]
"""Values by key, as Optuna keeps them."""
HasKey = Callable[[Mapping[str, Any], str], bool]
"""(what the trial has chosen so far, key) -> whether the config so chosen has the key."""


@dataclass(frozen=True)
class Space:
    """Search space: domains by config key, shared by all arms or of one arm."""

    domains: Mapping[str, Domain]
    """Domains that all arms share."""
    arm_domains: Mapping[str, Mapping[str, Domain]] = field(default_factory=dict)
    """Domains of single arms, by the arm's name; they replace shared ones."""
    _candidates_by_config: dict[int, tuple["Config", list[tuple[dict[str, Any], "Config"]]]] = field(
        default_factory=dict, compare=False, repr=False
    )  # cache by the config's id; an entry keeps its config alive, so that no other object can get the id

    @classmethod
    def parse(cls, search: Mapping[str, Any], arms: Mapping[str, Any] | None = None) -> Self:
        """Return the space of ``study.search`` and the arms' own ranges; ConfigError names the first wrong key.

        Args:
            search: key to distribution.
            arms: name to `ArmSection`, or to its plain values.
        """
        arm_domains = {}
        for name, arm in (arms or {}).items():
            ranges = arm.get("search") or {} if isinstance(arm, Mapping) else arm.search
            if ranges:
                arm_domains[name] = {
                    arm_key(key): Domain.parse(f"study.arms.{name}.search.{key}", written)
                    for key, written in ranges.items()
                }
        return cls({key: Domain.parse(f"{SEARCH}.{key}", written) for key, written in search.items()}, arm_domains)

    @classmethod
    def of_study(cls, section: Any) -> Self:
        """Return the space of a study section, or of its plain values."""
        if isinstance(section, Mapping):
            return cls.parse(section.get("search") or {}, section.get("arms"))
        return cls.parse(section.search, section.arms)

    def of(self, arm: Any) -> dict[str, Domain]:
        """Return the domains of an arm's trials, by its name."""
        return {**self.domains, **(self.arm_domains.get(arm, {}) if isinstance(arm, str) else {})}

    def of_arm(self, arm: Any) -> "Space":
        """Return the space of an arm's trials alone."""
        return Space(self.of(arm))

    def widest(self) -> dict[str, Domain]:
        """Return one domain for each key: for numbers the range that holds those of all arms, for a choice all
        options."""
        joined = dict(self.domains)
        for domains in self.arm_domains.values():
            for key, domain in domains.items():
                joined[key] = domain.joined(joined[key]) if key in joined else domain
        return joined

    @property
    def selectors(self) -> list[str]:
        """Keys that decide which other keys exist, shallow ones first."""
        every = self.widest()
        keys = {key for key in self.domains if any(other.startswith(f"{key}.") for other in every)}
        keys |= {"algorithm"} & set(self.domains)  # also where nothing else of the algorithm is searched
        return sorted(keys, key=lambda key: (key != "algorithm", key.count("."), key))

    def suggest(self, trial: "optuna.Trial", has_key: HasKey, fixed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the overrides of one trial, asked of Optuna key by key, except for those that are ``fixed``."""
        chosen: dict[str, Any] = dict(fixed or {})
        for key in self.selectors:
            if key not in chosen and has_key(chosen, key):
                chosen[key] = self.domains[key].suggest(trial, key)
        overrides = dict(chosen)
        for key, domain in self.of(chosen.get("algorithm")).items():
            if key not in overrides and key not in self.selectors and has_key(chosen, key):
                overrides[key] = domain.suggest(trial, key)
        return overrides

    def candidates(self, config: "Config") -> list[tuple[dict[str, Any], "Config"]]:
        """Return every combination of the selectors, and its config; ConfigError for an invalid one."""
        if id(config) not in self._candidates_by_config:
            self._candidates_by_config[id(config)] = config, self._candidates(config)
        return self._candidates_by_config[id(config)][1]

    def _candidates(self, config: "Config") -> list[tuple[dict[str, Any], "Config"]]:
        candidates: list[tuple[dict[str, Any], Config]] = [({}, config)]
        for key in self.selectors:
            grown = []
            for (chosen, variant), option in itertools.product(candidates, self.domains[key].extremes()):
                if not variant.has_key(key):
                    if (chosen, variant) not in grown:
                        grown.append((chosen, variant))
                    continue
                with _name_in_errors(key):
                    grown.append(({**chosen, key: option}, config.variant({**chosen, key: option})))
            candidates = grown
        return candidates

    def validate(self, config: "Config") -> None:
        """Raise ConfigError for an empty space, a key that no candidate has, or an end of a domain that the config
        refuses."""
        if not self.domains:
            raise ConfigError(
                f"{config.path} has nothing to search: give study.search, such as {{algorithm.lr: {{loguniform: "
                "[1e-3, 1]}}"
            )
        candidates = self.candidates(config)
        if self.arm_domains and config.study.allocation != "equal":
            arm = next(iter(self.arm_domains))
            raise ConfigError(
                f"study.allocation must be equal where arms have ranges of their own, as {arm} has, "
                f"got {config.study.allocation}: one search over all has one range for a key"
            )
        for key in self.widest():
            owners = [(chosen, variant) for chosen, variant in candidates if variant.has_key(key)]
            if not owners:
                near = nearest_key(key, {name for _, variant in candidates for name in variant.flat()})
                hint = f"did you mean {near!r}?" if near else "see the keys with --print_config"
                tried = " nor any candidate of the search" if self.selectors else ""
                raise ConfigError(
                    f"study.search.{key} must name a key of the config, but neither {config.path}{tried} has it: {hint}"
                    if tried
                    else f"study.search.{key} must name a key of the config, but {config.path} has no such key: {hint}"
                )
            if key in self.selectors:  # the candidates have tried those
                continue
            seen: list[Domain] = []
            for chosen, variant in owners:
                domain = self.of(chosen.get("algorithm")).get(key)
                if domain is None or domain in seen:
                    continue
                seen.append(domain)
                for value in domain.extremes():
                    with _name_in_errors(key):
                        variant.check_value(key, value)
        self._check_presets(config)

    def _check_presets(self, config: "Config") -> None:
        """Raise ConfigError for a preset that the search could not try: it would silently be drawn instead."""
        places = [(f"study.presets.{name}", name, values) for name, values in config.study.presets.items()]
        for name, arm in config.study.arms.items():
            places += [(f"study.arms.{name}.presets[{i}]", name, values) for i, values in enumerate(arm.presets)]
        for where, name, values in places:
            for key, value in values.items():
                domain = self.of(name).get(arm_key(key))
                if domain is not None and not domain.contains(value):
                    raise ConfigError(
                        f"{where}.{key} must lie in study.search's {domain}, got {value!r}: widen the search"
                    )

    def outside_remarks(self, config: "Config") -> list[str]:
        """Return a sentence for each searched key whose own value in an algorithm's first trial lies outside the
        domains; null, which switches something off, is not reported."""
        lines = []
        for chosen, variant in self.candidates(config):
            flat, name = variant.flat(), variant.method
            for key, domain in self.of(name).items():
                if key not in chosen and flat.get(key) is not None and not domain.contains(flat[key]):
                    lines.append(f"{name}'s own {key}, {flat[key]}, lies outside study.search's {domain}: it is drawn")
        return lines

    def grid(self, config: "Config", points: int) -> list[dict[str, Any]]:
        """Return every combination of every candidate's keys, as Optuna keeps it, with ``points`` values of a range."""
        grid = []
        for chosen, variant in self.candidates(config):
            domains = self.of(chosen.get("algorithm"))
            keys = [key for key in domains if key not in self.selectors and variant.has_key(key)]
            for values in itertools.product(*(domains[key].values(points) for key in keys)):
                point = {**chosen, **dict(zip(keys, values, strict=True))}
                grid.append({key: Domain.parameter(value) for key, value in point.items()})
        return grid

    def defaults(self, config: "Config") -> list[dict[str, Any]]:
        """Return the first points: one per candidate algorithm, with the config's own values wherever the domains hold
        them, or one for each of its arm's presets."""
        points, seen = [], set()
        for chosen, variant in self.candidates(config):
            algorithm = Domain.parameter(chosen.get("algorithm"))
            if algorithm in seen:
                continue
            seen.add(algorithm)
            values, arm = variant.flat(), config.study.arms.get(chosen.get("algorithm", ""))
            point = {key: Domain.parameter(value) for key, value in chosen.items()}
            for key, domain in self.of(chosen.get("algorithm")).items():
                if key not in point and variant.has_key(key) and domain.contains(values.get(key)):
                    point[key] = Domain.parameter(values[key])
            presets = arm.presets if arm is not None and arm.presets else [{}]
            points += [
                point | {arm_key(key): Domain.parameter(value) for key, value in preset.items()} for preset in presets
            ]
        return points


def key_checker(config: "Config") -> HasKey:
    """Return a function that tells whether a config with some classes chosen has a key. Composing a config costs
    milliseconds, and there are only as many as combinations of class names: each is composed once."""
    configs: dict[str, Config] = {}

    def has_key(chosen: Mapping[str, Any], key: str) -> bool:
        text = json.dumps(chosen, sort_keys=True, default=str)
        if text not in configs:
            configs[text] = config.with_overrides(chosen) if chosen else config
        return configs[text].has_key(key)

    return has_key


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """Return the known key that a misspelt one may mean: of the same parent if possible, and never the parent
    itself."""
    parent, _, name = key.rpartition(".")
    candidates = sorted(other for other in keys if not key.startswith(f"{other}."))
    siblings = {other.rpartition(".")[2]: other for other in candidates if other.rpartition(".")[0] == parent}
    near = get_close_matches(name, siblings, 1)
    if near:
        return siblings[near[0]]
    far = get_close_matches(key, candidates, 1, cutoff=0.85)
    return far[0] if far else None


@contextlib.contextmanager
def _name_in_errors(key: str) -> Iterator[None]:
    """Prefix ConfigErrors with the searched key."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"study.search.{key} must hold only values that the config takes: {error}") from error
