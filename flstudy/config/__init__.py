"""Configs: YAML files and options, checked and built into objects. Names are imported when they are first used, so that
the schema finds a mistake without importing torch."""

from typing import TYPE_CHECKING, Any

from flstudy.config.errors import ConfigError, nearest

if TYPE_CHECKING:
    from flstudy.config.config import Config, StopRun, load
    from flstudy.config.sections import (
        Budget,
        Confirm,
        Failures,
        Objective,
        Resources,
        Run,
        Sampler,
        Scheduler,
        StudySection,
    )

__all__ = [
    "Budget",
    "Config",
    "ConfigError",
    "Confirm",
    "Failures",
    "Objective",
    "Resources",
    "Run",
    "Sampler",
    "Scheduler",
    "StopRun",
    "StudySection",
    "load",
    "nearest",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Config", "StopRun", "load"):
        from flstudy.config import config

        return getattr(config, name)
    from flstudy.config import sections

    return getattr(sections, name)
