"""Checks of a config's values against each other and against the objects that are built of them."""

import math
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from flstudy.config.sections import ConfigError
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.tasks import TaskFunction

if TYPE_CHECKING:
    from flstudy.config.config import Config


def check(config: "Config", objects: Namespace) -> None:
    """What no single value's type can say.

    Raises:
        ConfigError: one sentence with key, value and domain.
    """
    for name, value in {"rounds": config.rounds, "evaluate_every": config.values.evaluate_every}.items():
        if value < 1:
            raise ConfigError(f"{name} must be ≥ 1, got {value}")
    if not config.seeds or len(set(config.seeds)) != len(config.seeds) or min(config.seeds) < 0:
        raise ConfigError(f"seeds must be one or more different integers ≥ 0, got {config.seeds}")
    for section, name in (
        (config.study, "trials"),
        (config.study, "concurrent"),
        (config.run_section, "checkpoint_every"),
    ):
        value = getattr(section, name)
        if value is not None and value < 1:
            raise ConfigError(f"{type(section).__name__.lower()}.{name} must be ≥ 1, got {value}")
    if not config.study.snapshot_s >= 0:
        raise ConfigError(f"study.snapshot_s must be ≥ 0, got {config.study.snapshot_s}")
    for name in ("cpu", "gpu"):
        value = getattr(config.study.resources, name)
        if value < 0 or not math.isfinite(value):
            raise ConfigError(f"study.resources.{name} must be ≥ 0, got {value}")
    drift = objects.population.drift
    if drift is not None:
        try:
            drift.check(objects.population.clients, config.rounds)
            drift.tables(objects.population.dataset.shape, objects.population.dataset.classes)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if objects.population.availability is not None:
        try:
            objects.population.availability.check(objects.population.clients, config.rounds)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    if objects.get("controller") is not None:
        try:
            objects.controller.check(objects.population.attendance(config.rounds)[1] + 1)
        except ValueError as error:
            raise ConfigError(f"controller: {error}") from error
    try:
        objects.algorithm.meets(1 if drift is None else drift.concepts)
    except ValueError as error:
        raise ConfigError(f"algorithm: {error}") from error
    try:
        check_privacy(config, objects)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        TaskFunction(objects.task).serves(objects.algorithm)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_privacy(config: "Config", objects: Namespace) -> None:
    """Raise ValueError if a private run cannot be, or if a study's trials would end early."""
    privacy, controllers = objects.get("privacy"), () if objects.get("controller") is None else (objects.controller,)
    aggregator = PrivateAggregator(privacy, objects.algorithm, controllers, config.seeds)
    aggregator.foresee(objects.population, config.rounds)
    if config.command != "tune" or privacy is None or privacy.target_epsilon is None or privacy.solve:
        return
    aggregator.start(objects.population, config.rounds, None)
    if not aggregator.allows(config.rounds - 1):
        raise ValueError(
            f"privacy.target_epsilon = {privacy.target_epsilon:g} would end trials before round {config.rounds} (ε = "
            f"{aggregator.epsilon(config.rounds):.4g}), and a study compares whole runs: set privacy.solve in place of "
            "privacy.noise, or lower rounds"
        )


def check_work(objects: Namespace) -> None:
    """Raise ConfigError for a warm-up that no device of a settled population ever ends."""
    population, warmup = objects.population, getattr(objects.algorithm, "warmup", 0)
    largest = max(len(device["train"]) for devices in population.members for device in devices)
    steps = population.plan.longest(largest)
    if warmup > steps:
        raise ConfigError(
            f"algorithm.warmup must be <= {steps}, the most steps that a device takes in a round, got {warmup}: its "
            "learning rate would never be reached; lower it, or lengthen the work (population.epochs or steps)"
        )
