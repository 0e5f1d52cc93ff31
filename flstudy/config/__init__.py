"""Configs: YAML files and options, parsed, checked and built into objects. Names load when they are asked for: the
sections are plain data, the parser needs torch."""

from typing import TYPE_CHECKING, Any

from flstudy.config.sections import (
    Asha,
    Budget,
    CmaEs,
    ConfigError,
    Confirm,
    Failures,
    GaussianProcess,
    GridSearch,
    HyperBand,
    MedianStopping,
    Nsga2,
    Objective,
    Pbt,
    RandomSearch,
    Resources,
    Run,
    Sampler,
    Scheduler,
    Study,
    Tpe,
    TwoStep,
)

if TYPE_CHECKING:
    from flstudy.config.config import Config, StopRun, load

__all__ = [
    "Asha",
    "Budget",
    "CmaEs",
    "Config",
    "ConfigError",
    "Confirm",
    "Failures",
    "GaussianProcess",
    "GridSearch",
    "HyperBand",
    "MedianStopping",
    "Nsga2",
    "Objective",
    "Pbt",
    "RandomSearch",
    "Resources",
    "Run",
    "Sampler",
    "Scheduler",
    "StopRun",
    "Study",
    "Tpe",
    "TwoStep",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("Config", "StopRun", "load"):
        from flstudy.config import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
