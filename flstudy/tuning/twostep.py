"""Sweeps in two steps (FedAda², Lee et al. 2024, App. H.2): first a symmetric grid, where server and devices take the
same values, then the asymmetric neighbourhood of each algorithm's best.

Both steps are functions of the config and of the first step's results, so a resumed study goes on from its list of
trials alone.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flstudy.config import ConfigError, TwoStep
from flstudy.study.objectives import arm_shares
from flstudy.study.space import Domain, Space, nearest_key

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from flstudy.config import Config

Point = dict[str, Any]
"""Values by key, as Optuna keeps them."""
STATUS = "status"
"""User attribute of an Optuna trial: how it ended."""


class Steps(NamedTuple):
    """What an arm of the search does, as far as is known before it begins."""

    algorithm: str | None
    first: int
    """Trials of step 1."""
    around: int
    """Points of the largest neighbourhood that step 2 may have to try."""
    share: float
    """Trials that the arm may have."""

    @property
    def second(self) -> int:
        """Trials of step 2 at most."""
        return int(min(self.around, self.share - self.first))


def first_step(space: Space, config: "Config", settings: TwoStep) -> list[Point]:
    """The symmetric grid: every combination of values where tied keys have the same one; a key whose partner the
    chosen algorithm lacks goes by itself."""
    found = []
    for chosen, made in space.candidates(config):
        keys = [key for key in space.domains if key not in space.selectors and made.has_key(key)]
        groups = _groups(keys, settings.tie)
        for values in itertools.product(*(_first(space, settings, group[0]) for group in groups)):
            point = {key: Domain.parameter(value) for key, value in chosen.items()}
            for group, value in zip(groups, values, strict=True):
                point |= {key: _own(space.domains[key], value) for key in group}
            found.append(point)
    random.Random(settings.seed).shuffle(found)  # workers that stop early should not have seen one corner only
    return found


def second_step(
    space: Space, settings: TwoStep, best: Mapping[str, Any], done: Sequence[Mapping[str, Any]]
) -> list[Point]:
    """The grid around a point: every numeric key up to ``radius`` steps away, each by itself, nearest points first
    (fewest steps in sum); other keys keep their values.

    Args:
        space: with the grids.
        settings: the sampler's.
        best: the point, of one arm's keys.
        done: points that are not to be tried again.
    """
    axes = []
    for key, value in best.items():
        grid = None if key in space.selectors or key not in space.domains else _grid(space.domains[key])
        if grid is None:
            axes.append([(value, 0)])
            continue
        place = grid.index(value)
        near = range(max(0, place - settings.radius), min(len(grid), place + settings.radius + 1))
        axes.append([(grid[other], abs(other - place)) for other in near])
    found = []
    for values in itertools.product(*axes):
        point = dict(zip(best, (value for value, _ in values), strict=True))
        if point != best and point not in done:
            found.append((sum(steps for _, steps in values), point))
    random.Random(settings.seed).shuffle(found)
    return [point for _, point in sorted(found, key=lambda pair: pair[0])]


def sequel(
    space: Space, settings: TwoStep, first: Sequence[Point], trials: Sequence["FrozenTrial"], *, most: bool
) -> list[Point] | None:
    """An arm's second step; None as long as a trial of its first one is under way, [] where none of them came out.

    Args:
        space: with the grids.
        settings: the sampler's.
        first: the arm's first step.
        trials: of the arm, those of its second step included, which say nothing here.
        most: whether more of the objective is better.
    """
    from optuna.trial import TrialState

    own = [trial for trial in trials if trial.params in first]
    if any(not trial.state.is_finished() for trial in own):
        return None
    sign, ranked = 1 if most else -1, []
    for trial in own:
        outside = max(trial.user_attrs.get("constraints", ()), default=0.0) > 0.0
        if trial.state is TrialState.COMPLETE and trial.user_attrs.get(STATUS) != "diverged" and not outside:
            ranked.append((float("inf"), sign * trial.values[0], -trial.user_attrs["trial"], trial.params))
        elif trial.state is TrialState.PRUNED and trial.last_step is not None:
            value = trial.intermediate_values[trial.last_step]
            ranked.append((trial.last_step, sign * value, -trial.user_attrs["trial"], trial.params))
    if not ranked:
        return []
    best = max(ranked, key=lambda entry: entry[:3])[3]
    return second_step(space, settings, {key: best[key] for key in sorted(best)}, first)


def steps_of(space: Space, config: "Config") -> list[Steps]:
    """What each arm does, of a study with a sweep in two steps; [] of any other."""
    settings, study = config.study.sampler, config.study
    if not isinstance(settings, TwoStep):
        return []
    names = list(space.domains["algorithm"].extremes()) if "algorithm" in space.domains else [None]
    points, found = first_step(space, config, settings), []
    for name, share in zip(names, arm_shares(study.trials, len(names)), strict=True):
        own = [point for point in points if name is None or point["algorithm"] == Domain.parameter(name)]
        around = max(len(second_step(space, settings, point, own)) for point in own)
        short = name.get("class_path", "") if isinstance(name, Mapping) else name
        found.append(Steps(None if short is None else str(short).rpartition(".")[2], len(own), around, share))
    return found


def told(steps: Sequence[Steps]) -> str:
    """A plan as a line for the terminal."""
    first, second = sum(step.first for step in steps), sum(step.second for step in steps)
    each = ", ".join(f"{step.algorithm} {step.first} + {step.second}" for step in steps if step.algorithm is not None)
    return f"step 1: {first} trials, step 2: up to {second}" + (f" ({each})" if each else "")


def check_two_step(space: Space, config: "Config") -> None:
    """Raise ConfigError for a sweep that cannot be made, before anything runs."""
    settings, study, where = config.study.sampler, config.study, "study.sampler"
    assert isinstance(settings, TwoStep)
    if settings.radius < 1:
        raise ConfigError(f"{where}.radius must be >= 1, got {settings.radius}: 1 tries the next values of the grid")
    if study.allocation != "equal":
        raise ConfigError(
            f"study.allocation must be equal with TwoStep, got {study.allocation!r}: the second step is around each "
            "algorithm's own best"
        )
    for key, domain in space.domains.items():
        if domain.kind != "choice":
            raise ConfigError(
                f"study.search.{key} must be a choice with TwoStep, got {domain.kind}: list its grid, such as "
                "{choice: [0.001, 0.01, 0.1]}"
            )
    for key, values in settings.first.items():
        _check_first(space, key, values)
    _check_tie(space, settings)
    arms = steps_of(space, config)
    if not any(steps.around for steps in arms):
        raise ConfigError(
            f"{where} leaves step 2 nothing to try, since step 1 is the whole grid: name keys that go together in step "
            f"1 in {where}.tie, such as [[algorithm.server_lr, algorithm.lr]], or fewer values in {where}.first"
        )
    for steps in arms:
        if steps.share < steps.first + (steps.around > 0):
            least = len(arms) * max(arm.first + (arm.around > 0) for arm in arms)
            raise ConfigError(
                f"study.trials must be >= {least} with TwoStep, got {study.trials}: step 1 of "
                f"{steps.algorithm or 'the sweep'} takes {steps.first} of its share of {steps.share}, and step 2 "
                f"one at least; raise it, or name fewer values in {where}.first"
            )


def _check_tie(space: Space, settings: TwoStep) -> None:
    where, seen = "study.sampler.tie", set[str]()
    for group in settings.tie:
        if len(group) < 2:
            raise ConfigError(f"{where} must hold lists of two keys or more, got {group}: leave it out")
        for key in group:
            if key not in space.domains:
                near = nearest_key(key, space.domains)
                hint = f"did you mean {near!r}?" if near else "search it over the same values, or leave it out"
                raise ConfigError(f"{where} must name keys of study.search, got {key!r}: {hint}")
            if key in seen:
                raise ConfigError(
                    f"{where} must name a key once, got {key!r} twice: join the two lists, or leave it out"
                )
            seen.add(key)
            if _grid(space.domains[key]) is None:
                raise ConfigError(
                    f"{where} must name keys with grids of numbers, got {key!r} with "
                    f"{list(space.domains[key].options)}: leave it out"
                )
        grids = {key: sorted(_first(space, settings, key)) for key in group}
        for key, grid in grids.items():
            if grid != grids[group[0]]:
                raise ConfigError(
                    f"{where}: {key} must take the values of {group[0]} in step 1, {grids[group[0]]}, got {grid}: give "
                    "both the same choice, or what they share in study.sampler.first"
                )


def _check_first(space: Space, key: str, values: Sequence[Any]) -> None:
    where = f"study.sampler.first.{key}"
    if key not in space.domains or key in space.selectors:
        near = nearest_key(key, space.domains)
        hint = f"did you mean {near!r}?" if near and near != key else "leave it out"
        raise ConfigError(f"{where} must name a value searched for, got {key!r}: {hint}")
    options = list(space.domains[key].options)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where} must be a list of values of study.search.{key}, got {values!r}: name at least one")
    for value in values:
        if value not in options:
            raise ConfigError(f"{where} must hold values of study.search.{key}, {options}, got {value!r}: add it there")


def _groups(keys: Sequence[str], tie: Sequence[Sequence[str]]) -> list[list[str]]:
    """Keys that have the same value in step 1, each in one group; in the order of their first ones."""
    found: list[list[str]] = []
    for key in keys:
        tied = next((group for group in tie if key in group), [key])
        group = [other for other in tied if other in keys]
        if group not in found:
            found.append(group)
    return found


def _first(space: Space, settings: TwoStep, key: str) -> list[Any]:
    """The values of a key in step 1; of those that are written in two ways the domain's own."""
    domain = space.domains[key]
    return [value for value in domain.options if value in settings.first.get(key, domain.options)]


def _grid(domain: Domain) -> list[Any] | None:
    """The numbers of a choice in order; None where it has anything else."""
    if domain.kind != "choice" or any(isinstance(v, bool) or not isinstance(v, int | float) for v in domain.options):
        return None
    return sorted(domain.options)


def _own(domain: Domain, value: Any) -> Any:
    """A tied value as this key's choice writes it: 1 or 1.0."""
    return Domain.parameter(next(option for option in domain.options if option == value))
