"""Two-step sweeps (FedAda², Lee et al. 2024, App. H.2): first a symmetric grid, where server and devices take the
same values, then the asymmetric neighbourhood of each algorithm's best.

Both steps are functions of the config and of the first step's results, so a resumed study goes on from its list of
trials alone.
"""

import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flstudy.config import ConfigError
from flstudy.config.domain import Domain
from flstudy.hyper import hyper
from flstudy.study import Status
from flstudy.study.objectives import arm_shares
from flstudy.study.space import Point, Space, nearest_key
from flstudy.tuning.samplers import CONSTRAINTS, STATUS, ArmPlan, RandomSearch, Sequel

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from flstudy.config import Config


@dataclass(frozen=True, kw_only=True)
class TwoStep(RandomSearch):
    """Two-step sweep (FedAda², Lee et al. 2024, App. H.2). A symmetric grid, where server and devices share their
    values, comes first, then the asymmetric grid around each algorithm's best. Every searched key is a choice."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    tie: list[list[str]] = field(default_factory=list)
    """Keys that have the same value in step 1, such as [[algorithm.server_lr, algorithm.lr], [algorithm.tau,
    algorithm.eps]]. An algorithm that lacks one of them sweeps the others."""
    first: dict[str, list[Any]] = field(default_factory=dict)
    """Values of a key in step 1, some of its choice. A key that is not named takes all values of its choice."""
    radius: int = hyper(1, "[1, 1e6]")
    """Step 2 tries every combination of values up to this many steps of its grid away from the best of step 1. It
    begins with the nearest ones, and goes as far as study.trials allows."""

    # ---- the two steps -----------------------------------------------------------------------------------------------

    def first_points(self, space: Space, config: "Config") -> tuple[list[Point], bool]:
        """Return the points of step 1 and True: the symmetric grid, where tied keys have the same value.

        A key whose partner the chosen algorithm lacks varies by itself.
        """
        grid = []
        for chosen, variant in space.candidates(config):
            arm_space = space.of_arm(chosen.get("algorithm"))
            keys = [key for key in arm_space.domains if key not in space.selectors and variant.has_key(key)]
            groups = self._groups(keys)
            for values in itertools.product(*(self._values(arm_space, group[0]) for group in groups)):
                point = {key: Domain.parameter(value) for key, value in chosen.items()}
                for group, value in zip(groups, values, strict=True):
                    point |= {key: _as_written(arm_space.domains[key], value) for key in group}
                grid.append(point)
        random.Random(self.seed).shuffle(grid)  # workers that stop early should not have seen one corner only
        return grid, True

    def second_step(self, space: Space, best: Mapping[str, Any], done: Sequence[Mapping[str, Any]]) -> list[Point]:
        """Return the grid around a point, nearest points (fewest steps in sum) first.

        Every numeric key goes up to ``radius`` steps away; other keys keep their values.

        Args:
            space: with the grids.
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
            near = range(max(0, place - self.radius), min(len(grid), place + self.radius + 1))
            axes.append([(grid[other], abs(other - place)) for other in near])
        neighbours = []
        for values in itertools.product(*axes):
            point = dict(zip(best, (value for value, _ in values), strict=True))
            if point != best and point not in done:
                neighbours.append((sum(steps for _, steps in values), point))
        random.Random(self.seed).shuffle(neighbours)
        return [point for _, point in sorted(neighbours, key=lambda pair: pair[0])]

    def sequel(self, space: Space, points: Sequence[Point], *, higher: bool) -> Sequel | None:
        """Return the function from an arm's Optuna trials to its points of step 2, which are known after step 1."""
        return functools.partial(self._around_best, space, tuple(points), higher)

    def _around_best(
        self, space: Space, points: Sequence[Point], higher: bool, trials: Sequence["FrozenTrial"]
    ) -> list[Point] | None:
        """Return the points of step 2; None as long as a trial of step 1 is under way, [] where none of step 1 has a
        value.

        Args:
            space: with the grids.
            points: of step 1.
            higher: whether higher values are better.
            trials: all of the arm, of which those of step 2 do not count here.
        """
        from optuna.trial import TrialState

        of_first_step = [trial for trial in trials if trial.params in points]
        if any(not trial.state.is_finished() for trial in of_first_step):
            return None
        sign, ranked = 1 if higher else -1, []
        for trial in of_first_step:
            outside = max(trial.user_attrs.get(CONSTRAINTS, ()), default=0.0) > 0.0
            broken = trial.user_attrs.get(STATUS) == Status.DIVERGED
            if trial.state is TrialState.COMPLETE and not broken and not outside:
                ranked.append((float("inf"), sign * trial.values[0], -trial.user_attrs["trial"], trial.params))
            elif trial.state is TrialState.PRUNED and trial.last_step is not None:
                value = trial.intermediate_values[trial.last_step]
                ranked.append((trial.last_step, sign * value, -trial.user_attrs["trial"], trial.params))
        if not ranked:
            return []
        best = max(ranked, key=lambda entry: entry[:3])[3]
        return self.second_step(space, {key: best[key] for key in sorted(best)}, points)

    def plan(self, space: Space, config: "Config") -> list[ArmPlan]:
        """Return the plan of each arm, as far as it is known before the search begins."""
        names = list(space.domains["algorithm"].extremes()) if "algorithm" in space.domains else [None]
        points, arms = self.first_points(space, config)[0], []
        for name, share in zip(names, arm_shares(config.study.trials, len(names)), strict=True):
            arm_points = [point for point in points if name is None or point["algorithm"] == Domain.parameter(name)]
            around = max(len(self.second_step(space.of_arm(name), point, arm_points)) for point in arm_points)
            arms.append(ArmPlan(name, len(arm_points), around, share))
        return arms

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, space: Space, config: "Config") -> None:
        """Refuse a sweep that cannot be made, before anything runs."""
        study, where = config.study, "study.sampler"
        if study.allocation != "equal":
            raise ConfigError(
                f"study.allocation must be equal with TwoStep, got {study.allocation!r}: the second step is around "
                "each algorithm's own best"
            )
        for key, domain in [pair for name in (None, *space.arm_domains) for pair in space.of(name).items()]:
            if domain.kind != "choice":
                raise ConfigError(
                    f"study.search.{key} must be a choice with TwoStep, got {domain.kind}: list its grid, such as "
                    "{choice: [0.001, 0.01, 0.1]}"
                )
        self._check_first(space)
        self._check_tie(space)
        arms = self.plan(space, config)
        if not any(arm.around for arm in arms):
            raise ConfigError(
                f"{where} leaves step 2 nothing to try, since step 1 is the whole grid: name keys that go together in "
                f"step 1 in {where}.tie, such as [[algorithm.server_lr, algorithm.lr]], or fewer values in "
                f"{where}.first"
            )
        for arm in arms:
            if arm.share < arm.first + (arm.around > 0):
                least = len(arms) * max(other.first + (other.around > 0) for other in arms)
                raise ConfigError(
                    f"study.trials must be >= {least} with TwoStep, got {study.trials}: step 1 of "
                    f"{arm.algorithm or 'the sweep'} takes {arm.first} of its share of {arm.share}, and step 2 "
                    f"one at least; raise it, or name fewer values in {where}.first"
                )

    def _check_tie(self, space: Space) -> None:
        where, seen = "study.sampler.tie", set[str]()
        for group in self.tie:
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
            grids = {key: sorted(self._values(space, key)) for key in group}
            for key, grid in grids.items():
                if grid != grids[group[0]]:
                    raise ConfigError(
                        f"{where}: {key} must take the values of {group[0]} in step 1, {grids[group[0]]}, got {grid}: "
                        "give both one choice, or study.sampler.first"
                    )

    def _check_first(self, space: Space) -> None:
        for key, values in self.first.items():
            where = f"study.sampler.first.{key}"
            if key not in space.domains or key in space.selectors:
                near = nearest_key(key, space.domains)
                hint = f"did you mean {near!r}?" if near and near != key else "leave it out"
                raise ConfigError(f"{where} must name a value searched for, got {key!r}: {hint}")
            options = list(space.domains[key].options)
            if not isinstance(values, list) or not values:
                raise ConfigError(
                    f"{where} must be a list of values of study.search.{key}, got {values!r}: name at least one"
                )
            for value in values:
                if value not in options:
                    raise ConfigError(
                        f"{where} must hold values of study.search.{key}, {options}, got {value!r}: add it there"
                    )

    # ---- grids -------------------------------------------------------------------------------------------------------

    def _groups(self, keys: Sequence[str]) -> list[list[str]]:
        """Return the keys that have the same value in step 1, each in one group; in the order of their first ones."""
        groups: list[list[str]] = []
        for key in keys:
            tied = next((group for group in self.tie if key in group), [key])
            group = [other for other in tied if other in keys]
            if group not in groups:
                groups.append(group)
        return groups

    def _values(self, space: Space, key: str) -> list[Any]:
        """Return the values of a key in step 1, as its domain writes them."""
        domain = space.domains[key]
        return [value for value in domain.options if value in self.first.get(key, domain.options)]


def _grid(domain: Domain) -> list[Any] | None:
    """Return the numbers of a choice in order; None where it has anything else."""
    if domain.kind != "choice" or any(isinstance(v, bool) or not isinstance(v, int | float) for v in domain.options):
        return None
    return sorted(domain.options)


def _as_written(domain: Domain, value: Any) -> Any:
    """Return a tied value as this key's choice writes it: 1 or 1.0."""
    return Domain.parameter(next(option for option in domain.options if option == value))
