"""The goals of a study: one objective or several, and constraints on metrics."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flstudy.config import ConfigError, Objective
from flstudy.metrics.registry import METRICS

if TYPE_CHECKING:
    from flstudy.config import Config, StudySection

WORST = 1e9
"""Objective of a trial without one. Finite, because JSON, Optuna and TPE's densities need it so; TPE only ranks, so its
size does not matter."""


def objectives_of(study: "StudySection") -> list[Objective]:
    """Return all objectives, the one by which trials are ranked first."""
    return [study.objective, *study.objectives]


def arm_shares(trials: int | None, arms: int) -> list[float]:
    """Return the number of trials of each arm where all get the same; inf where only a budget ends the study."""
    if trials is None:
        return [math.inf] * arms
    return [trials // arms + (place < trials % arms) for place in range(arms)]


def worst_value(objective: Objective) -> float:
    """Return the value that a diverged or failed trial reports: accuracy 0, or 1e9 on the bad side of any other
    metric."""
    if not objective.higher:
        return WORST
    return 0.0 if objective.metric.endswith("accuracy") else -WORST


def objective_values(
    study: "StudySection", objective: float, metrics: Mapping[str, float], *, broken: bool
) -> tuple[float, ...]:
    """Return the values of all objectives, the first one as given.

    Another objective has its worst value where the trial has none, such as a recovery that never came.

    Args:
        study: the section.
        objective: value of the first objective.
        metrics: last value of each.
        broken: whether the trial failed or diverged.
    """
    values = [objective]
    for other in study.objectives:
        value = math.nan if broken else metrics.get(other.metric, math.nan)
        values.append(value if math.isfinite(value) else worst_value(other))
    return tuple(values)


def violations(study: "StudySection", metrics: Mapping[str, float]) -> list[float]:
    """Return the excess over each bound, in the metric's unit; <= 0 within it. A metric that was never measured is
    outside."""
    excesses = []
    for metric, bounds in study.constraints.items():
        value = metrics.get(metric, math.nan)
        for kind, bound in bounds.items():
            excess = value - bound if kind == "max" else bound - value
            excesses.append(excess if math.isfinite(value) else WORST)
    return excesses


def check_objectives(config: "Config") -> None:
    """Raise ConfigError for objectives, constraints, budgets and confirmations that cannot work."""
    study = config.study
    for place, goal in enumerate(objectives_of(study)):
        if goal.metric in [other.metric for other in objectives_of(study)[:place]]:
            raise ConfigError(f"study.objectives must name different metrics, got {goal.metric!r} twice: remove one")
    if study.objectives and study.scheduler is not None:
        raise ConfigError(
            f"study.scheduler must be null with several objectives, got {type(study.scheduler).__name__}: it would "
            "stop trials by the first one alone; leave it out, or put a bound on the others with study.constraints"
        )
    first = METRICS.get(study.objective.metric)
    if first is not None and first.measured == "run" and study.scheduler is not None:
        raise ConfigError(
            f"study.scheduler must be null for the objective {study.objective.metric!r}, which only a whole run tells, "
            f"got {type(study.scheduler).__name__}: leave it out"
        )
    if study.sampler is not None and study.sampler.plain_only and (study.objectives or study.constraints):
        raise ConfigError(
            "study.sampler must be Tpe, GaussianProcess, Nsga2 or RandomSearch for several objectives or constraints, "
            f"got {type(study.sampler).__name__}, which knows neither: choose one of these"
        )
    for metric, bounds in study.constraints.items():
        if bounds.get("min", -math.inf) > bounds.get("max", math.inf):
            raise ConfigError(
                f"study.constraints.{metric} must have min <= max, got {bounds['min']:g} > {bounds['max']:g}: swap them"
            )
    _check_budget(config)
    counts = {len(domain.get("choice", ())) for key, domain in study.search.items() if key == "algorithm"}
    algorithms = counts.pop() if counts else 1
    if study.allocation == "equal" and study.trials is not None and study.trials < algorithms:
        raise ConfigError(
            f"study.trials must be >= {algorithms}, the number of algorithms, got {study.trials}: raise it, name fewer "
            "algorithms, or set study.allocation: free"
        )


def _check_budget(config: "Config") -> None:
    study = config.study
    if study.trials is None and study.budget.rounds is None and study.budget.hours is None:
        raise ConfigError(
            "study.trials may be null only with study.budget.rounds or study.budget.hours: give one of the three"
        )
    if study.budget.rounds is not None and study.budget.rounds < config.rounds:
        raise ConfigError(
            f"study.budget.rounds must be >= {config.rounds}, the rounds of one trial, got {study.budget.rounds}: "
            "raise it"
        )
