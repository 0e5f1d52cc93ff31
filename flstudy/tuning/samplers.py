"""Samplers, which propose a study's trials: a class per sampler, with its settings and the Optuna sampler it builds.

Arguments of Optuna's whose defaults matter here are written out, since Optuna 5 changed defaults. TPE's deprecated
``consider_*``, ``prior_weight``, ``gamma`` and ``weights`` are left out, since naming them warns.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flstudy.config import ConfigError, Sampler
from flstudy.hyper import hyper
from flstudy.tuning.classes import build_user_object

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from flstudy.config import Config
    from flstudy.study.outline import ConfigOutline
    from flstudy.study.space import Point, Space

CONSTRAINTS = "constraints"
"""User attribute of an Optuna trial: the amounts by which it exceeds each bound."""
STATUS = "status"
"""User attribute of an Optuna trial: the status with which it ended."""
Bounds = Callable[["FrozenTrial"], Sequence[float]]
Sequel = Callable[[Sequence["FrozenTrial"]], "list[Point] | None"]
"""Function of an arm's trials that returns the points after its first ones; None as long as they are not known."""


class ArmPlan(NamedTuple):
    """Plan of an arm of a sweep, as far as is known before it begins."""

    algorithm: str | None
    first: int
    """Number of trials of step 1."""
    around: int
    """Number of points of the largest neighbourhood that step 2 may have to try."""
    share: float
    """Number of trials that the arm may have."""

    @property
    def second(self) -> int:
        """Largest number of trials of step 2."""
        return int(min(self.around, self.share - self.first))


class SearchSize(NamedTuple):
    """Number of trials that a search makes."""

    trials: int | None
    """Number of trials; None where only a budget ends the search."""
    exactly: bool
    """Whether the search makes no fewer, unless a budget ends it."""


def search_size(space: "Space", config: "Config | ConfigOutline") -> SearchSize | None:
    """Return the size of a search whose points are known before it begins: a grid's, or the most of a two-step sweep.

    Return None where the sampler goes on for as long as ``study.trials`` and the budget allow.
    """
    sampler = sampler_of(config)
    if type(sampler).first_points is Sampler.first_points:  # which only begin
        return None
    if plan := sampler.plan(space, config):
        return SearchSize(sum(arm.first + arm.second for arm in plan), exactly=False)
    points, only = sampler.first_points(space, config)
    return SearchSize(len(points), exactly=True) if only else None


def excesses(trial: "FrozenTrial") -> Sequence[float]:
    """Return the amounts by which a trial exceeds each of the study's bounds, for samplers that keep away from
    there."""
    return list(trial.user_attrs.get(CONSTRAINTS, ()))


def sampler_of(config: "Config | ConfigOutline") -> Sampler:
    """Return the study's sampler; TPE where none is named."""
    return config.study.sampler or Tpe()


def optuna_sampler(settings: Sampler, past: int = 0, *, constrained: bool = False) -> "BaseSampler":
    """Return the Optuna sampler of these settings.

    Args:
        settings: the study's.
        past: number of trials that another search proposed, which may have had this seed.
        constrained: whether the sampler keeps away from points that exceeded bounds, as far as its method can.
    """
    import optuna

    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return settings.build(settings.seed + 1_000_003 * past, excesses if constrained else None)


@dataclass(frozen=True, kw_only=True)
class Tpe(Sampler):
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011): for any space, conditional ones included."""

    citations: ClassVar[tuple[str, ...]] = ("bergstra2011",)

    startup_trials: int = hyper(8, "[0, 1e6]")
    """Random trials before the model is used."""
    candidates: int = hyper(24, "[1, 1e6]")
    """Candidates that the model compares for each suggestion."""
    multivariate: bool = False
    """Model parameters jointly."""

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        from optuna.samplers import TPESampler

        return TPESampler(
            n_startup_trials=self.startup_trials,
            n_ei_candidates=self.candidates,
            seed=seed,
            multivariate=self.multivariate,
            group=self.multivariate,  # a joint density needs the trials apart that share the same keys
            constant_liar=True,  # trials run side by side: do not propose where one is running already
            constraints_func=bounds,
        )


@dataclass(frozen=True, kw_only=True)
class RandomSearch(Sampler):
    """Random search (Bergstra & Bengio 2012) by independent draws: the baseline of every sampler. It is the fairest
    when many workers start at once: with ``allocation: equal`` all algorithms draw the same values for shared keys."""

    citations: ClassVar[tuple[str, ...]] = ("bergstra2012",)

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        """Build the sampler by the config's own seed, whatever ``seed`` is.

        ``seed`` differs between arms with different numbers of imported trials, and such arms would not draw the same
        values. Independent draws cannot keep away from ``bounds``.
        """
        from flstudy.tuning.optuna_classes import PairedDraws

        return PairedDraws(self.seed)


@dataclass(frozen=True, kw_only=True)
class GridSearch(RandomSearch):
    """Grid search: every combination once, in an order drawn by seed; choices as written, ranges at equal distances."""

    citations: ClassVar[tuple[str, ...]] = ()  # nobody's in particular

    points: int = hyper(3, "[1, 1e6]")
    """Number of values of a uniform, loguniform, randint or lograndint range, its ends included."""

    def first_points(self, space: "Space", config: "Config") -> tuple[list["Point"], bool]:
        """Return the whole grid."""
        points = space.grid(config, self.points)
        random.Random(self.seed).shuffle(points)  # workers that stop early should not have seen one corner only
        return points, True

    def check(self, space: "Space", config: "Config") -> None:
        """Refuse a grid that the study's trials do not cover."""
        count = len(space.grid(config, self.points))
        if config.study.trials is not None and count > config.study.trials:
            raise ConfigError(
                f"study.trials must be >= {count}, the points of the grid, got {config.study.trials}: raise it, lower "
                f"study.sampler.points (now {self.points}), or sample with RandomSearch"
            )


@dataclass(frozen=True, kw_only=True)
class CmaEs(Sampler):
    """CMA-ES, covariance matrix adaptation (Hansen & Ostermeier 2001): for numbers; choices are drawn at random."""

    citations: ClassVar[tuple[str, ...]] = ("hansen2001",)
    plain_only: ClassVar[bool] = True

    startup_trials: int = hyper(8, "[0, 1e6]")
    """Random trials before the model is used."""
    sigma: float | None = hyper(None, "(0, 1e12]")
    """Initial step relative to the ranges; null is a sixth of the narrowest one."""

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        from optuna.samplers import CmaEsSampler

        from flstudy.tuning.optuna_classes import PairedDraws

        try:
            import cmaes  # noqa: F401
        except ImportError as error:
            raise ConfigError("study.sampler: CmaEs needs the package cmaes: pip install cmaes") from error
        return CmaEsSampler(
            x0=None,
            sigma0=self.sigma,
            n_startup_trials=self.startup_trials,
            independent_sampler=PairedDraws(self.seed),
            warn_independent_sampling=False,
            seed=seed,
            consider_pruned_trials=False,
        )


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Sampler):
    """Bayesian optimisation with a Gaussian process (Snoek et al. 2012): for few trials of long runs; choices of
    classes are drawn at random."""

    citations: ClassVar[tuple[str, ...]] = ("snoek2012",)

    startup_trials: int = hyper(8, "[0, 1e6]")
    """Random trials before the model is used."""

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        from optuna.samplers import GPSampler

        from flstudy.tuning.optuna_classes import PairedDraws

        return GPSampler(
            seed=seed,
            independent_sampler=PairedDraws(self.seed),
            n_startup_trials=self.startup_trials,
            deterministic_objective=False,
            warn_independent_sampling=False,
            constraints_func=bounds,
        )


@dataclass(frozen=True, kw_only=True)
class Nsga2(Sampler):
    """NSGA-II, a genetic algorithm (Deb et al. 2002)."""

    citations: ClassVar[tuple[str, ...]] = ("deb2002",)

    population: int = hyper(20, "[2, 1e6]")
    """Trials of a generation."""

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(population_size=self.population, seed=seed, constraints_func=bounds)


@dataclass(frozen=True, kw_only=True)
class OptunaSampler(Sampler):
    """Sampler of Optuna's, or of the user's own, which a config names by the class path of an
    ``optuna.samplers.BaseSampler``."""

    citations: ClassVar[tuple[str, ...]] = ()

    class_path: str
    """Class path of the sampler."""
    init_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the sampler; ``seed`` is added where it takes one and they do not name it."""

    def build(self, seed: int, bounds: Bounds | None) -> "BaseSampler":
        from optuna.samplers import BaseSampler

        sampler: BaseSampler = build_user_object(
            "study.sampler", self.class_path, BaseSampler, self.init_args, {"seed": seed, "constraints_func": bounds}
        )
        return sampler
