"""Optuna's samplers by the settings of ``study.sampler``.

Every argument is written out, since Optuna 5 changed defaults. Left out are only TPE's ``consider_*``,
``prior_weight``, ``gamma``, ``weights`` and all ``warn_independent_sampling``s: the former are deprecated and naming
them warns; that conditional keys are drawn independently is in our own docstrings.
"""

import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flstudy.config import CmaEs, ConfigError, GaussianProcess, GridSearch, Nsga2, RandomSearch, Sampler, Tpe, TwoStep
from flstudy.tuning.twostep import check_two_step, first_step

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from flstudy.config import Config
    from flstudy.study.space import Space

CONSTRAINTS = "constraints"
"""User attribute of a trial: by how much it exceeds each bound."""


def _constraints(trial: "FrozenTrial") -> Sequence[float]:
    return list(trial.user_attrs.get(CONSTRAINTS, ()))


def make_sampler(settings: Sampler, after: int = 0, *, constrained: bool = False) -> "BaseSampler":
    """The sampler of these settings, for a study that goes on ``after`` so many trials; one that is ``constrained``
    keeps away from where bounds were exceeded, as far as its method can.

    Raises:
        ConfigError: for one that is not of this package, or whose own package is missing.
    """
    import optuna

    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    samplers = optuna.samplers
    seed = settings.seed + 1_000_003 * after  # a resumed study must not draw its first trials again
    bounds = _constraints if constrained else None
    if isinstance(settings, Tpe):
        return samplers.TPESampler(
            n_startup_trials=settings.startup_trials,
            n_ei_candidates=settings.candidates,
            seed=seed,
            multivariate=settings.multivariate,
            group=settings.multivariate,  # a joint density needs the trials apart that share the same keys
            constant_liar=True,  # trials run side by side: do not propose where one is running already
            constraints_func=bounds,
        )
    if isinstance(settings, RandomSearch | GridSearch | TwoStep):  # a grid's points are enqueued
        return samplers.RandomSampler(seed=seed)
    independent = samplers.RandomSampler(seed=seed)
    if isinstance(settings, CmaEs):
        try:
            import cmaes  # noqa: F401
        except ImportError as error:
            raise ConfigError("study.sampler: CmaEs needs the package cmaes: pip install cmaes") from error
        return samplers.CmaEsSampler(
            x0=None,
            sigma0=settings.sigma,
            n_startup_trials=settings.startup_trials,
            independent_sampler=independent,
            warn_independent_sampling=False,
            seed=seed,
            consider_pruned_trials=False,
        )
    if isinstance(settings, GaussianProcess):
        return samplers.GPSampler(
            seed=seed,
            independent_sampler=independent,
            n_startup_trials=settings.startup_trials,
            deterministic_objective=False,
            constraints_func=bounds,
        )
    if isinstance(settings, Nsga2):
        return samplers.NSGAIISampler(population_size=settings.population, seed=seed, constraints_func=bounds)
    raise ConfigError(
        f"study.sampler must be one of flstudy's, got {type(settings).__name__}: see flstudy list samplers"
    )


def first_points(space: "Space", config: "Config") -> tuple[list[dict[str, Any]], bool]:
    """What is tried first, as Optuna keeps it, and whether that is all: a grid, or each algorithm's own values."""
    settings = config.study.sampler
    if isinstance(settings, TwoStep):
        return first_step(space, config, settings), True
    if not isinstance(settings, GridSearch):
        return space.defaults(config), False
    points = space.grid(config, settings.points)
    random.Random(settings.seed).shuffle(points)  # workers that stop early should not have seen one corner only
    return points, True


def check_sampler(space: "Space", config: "Config") -> None:
    """Raise ConfigError for settings outside their domains, or a grid that the study's trials do not cover."""
    settings, where = config.study.sampler, "study.sampler"
    for name, least in {"startup_trials": 0, "candidates": 1, "points": 1, "population": 2, "seed": 0}.items():
        value = getattr(settings, name, least)
        if value < least:
            raise ConfigError(f"{where}.{name} must be >= {least}, got {value}")
    if getattr(settings, "sigma", None) is not None and not settings.sigma > 0:  # type: ignore[attr-defined]
        raise ConfigError(f"{where}.sigma must be > 0, got {settings.sigma:g}")  # type: ignore[attr-defined]
    if isinstance(settings, GridSearch):
        count = len(space.grid(config, settings.points))
        if config.study.trials is not None and count > config.study.trials:
            raise ConfigError(
                f"study.trials must be >= {count}, the points of the grid, got {config.study.trials}: raise it, lower "
                f"{where}.points (now {settings.points}), or sample with RandomSearch"
            )
    if isinstance(settings, TwoStep):
        check_two_step(space, config)
    make_sampler(settings)
