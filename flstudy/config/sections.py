"""The sections of a config that are not an algorithm, a population or a task. Plain data, quick to import."""

from dataclasses import dataclass, field
from typing import Any, Literal


class ConfigError(ValueError):
    """What a user wrote cannot be run; the message is one sentence with key, value, domain and next step."""


@dataclass(kw_only=True)
class Objective:
    """What a study optimises: the last evaluation's mean over replicas."""

    metric: str = "valid/accuracy"
    """Any metric of an evaluation or a round, such as valid/accuracy, valid/loss or traffic/up_bytes."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""


@dataclass(kw_only=True)
class Tpe:
    """Optuna's tree-structured Parzen estimator."""

    startup_trials: int = 8
    """Random trials before the model is used."""
    candidates: int = 24
    """Candidates that the model compares for each suggestion."""
    multivariate: bool = False
    """Model parameters jointly."""
    seed: int = 0
    """Of the suggestions."""


@dataclass(kw_only=True)
class Asha:
    """Asynchronous successive halving (Li et al. 2020): stops the trials that are behind at each rung."""

    grace_rounds: int = 10
    """Rounds that every trial gets."""
    reduction_factor: float = 3.0
    """One in so many goes on at each rung."""
    brackets: int = 1
    """Number of brackets with different grace."""


@dataclass(kw_only=True)
class Resources:
    """What one trial reserves."""

    cpu: float = 1.0
    """Cores, and so threads; several trials share the machine's."""
    gpu: float = 0.0
    """GPUs; a fraction lets trials share one."""


@dataclass(kw_only=True)
class Study:
    """A hyper-parameter study."""

    name: str | None = None
    """Of the study's folder and MLflow run; null takes the config file's name."""
    trials: int = 16
    """Configurations to try."""
    objective: Objective = field(default_factory=Objective)
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Search space: config key to distribution, such as {algorithm.lr: {loguniform: [1e-3, 1]}}; a key that the
    chosen algorithm lacks is left out of its trials."""
    sampler: Tpe = field(default_factory=Tpe)
    scheduler: Asha | None = None
    """Early termination of trials that are behind; null runs all to the end."""
    resources: Resources = field(default_factory=Resources)
    concurrent: int | None = None
    """Trials at once; null runs as many as the resources allow."""
    folder: str = "studies"
    """Where study folders go."""


@dataclass(kw_only=True)
class Run:
    """Where a single run leaves its results."""

    name: str | None = None
    """Of the run's folder; null takes the config file's name."""
    folder: str = "runs"
    """Where run folders go: records, checkpoints and the config as it was run."""
    checkpoint_every: int = 10
    """Rounds between checkpoints."""
    resume: bool = False
    """Go on from the run folder's last checkpoint."""
    track: bool = True
    """Log to MLflow."""
