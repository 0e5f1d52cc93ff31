"""The sections of a config that belong to no room of the engine: how a run is carried out, and the study.

The JSON Schema is made from these classes: a field's docstring is its sentence in editors and ``--help``.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from flstudy.config.errors import ConfigError
from flstudy.hyper import Configurable, hyper
from flstudy.run_settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Settings of a run: the keys at the top of a config."""

    rounds: int = hyper(100, "[1, 1e6]")
    """Federated rounds."""
    evaluate_every: int = hyper(1, "[1, 1e6]")
    """Rounds between evaluations; the last round is always evaluated."""
    initial: Literal["seeded", "given"] = "seeded"
    accelerator: str = "cpu"
    """Lightning's accelerator: cpu, gpu or auto."""
    devices: int = hyper(1, "[1, 1e4]")
    """Devices of a machine over which the lanes of a round are divided; on a CPU each is a Ray actor on one core."""
    num_nodes: int = hyper(1, "[1, 1e4]")
    """Machines of a Ray cluster over which the lanes are divided, each with so many devices; for flstudy run."""
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    """Lightning's precision."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Precision inside float32 products; high is TF32 on GPUs, medium bfloat16."""
    store: str | None = None
    """MLflow tracking URI; null is sqlite under mlflow_tracking/."""
    modules: str | None = None
    """Folder of your own modules, from which class paths are imported; null is the config's."""


@dataclass(frozen=True, kw_only=True)
class Objective(Configurable):
    """Objective of a study: a metric's mean over replicas in the last evaluation."""

    metric: str = "valid/accuracy"
    """Any metric of an evaluation or a round, such as valid/accuracy, valid/loss or traffic/up_bytes."""
    mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller value is better."""

    @property
    def higher(self) -> bool:
        """Return whether a larger value is better."""
        return self.mode == "max"

    @property
    def selection_metric(self) -> str:
        """Return the metric that chooses the best trial: this one, or its counterpart on validation data."""
        return "valid/" + self.metric.removeprefix("test/") if self.metric.startswith("test/") else self.metric

    def without_counterpart(self) -> ConfigError:
        """Return the error of a test score whose counterpart on validation data is not measured."""
        return ConfigError(
            f"study.objective.metric must be measured as {self.selection_metric}, too, since validation data choose "
            f"the best trial, got {self.metric!r}: search on valid/accuracy, or another metric of valid/"
        )


@dataclass(frozen=True, kw_only=True)
class Sampler(Configurable, ABC):
    """Sampler that proposes the configurations of a study."""

    plain_only: ClassVar[bool] = False
    """Whether the sampler supports neither several objectives nor constraints."""

    seed: int = hyper(0, "[0, 2e9]")
    """Seed of the suggestions."""

    @abstractmethod
    def build(self, seed: int, bounds: Any) -> Any:
        """Build the ``optuna.samplers.BaseSampler``.

        Args:
            seed: of the suggestions; another one than ``self.seed`` where another search's trials are known already.
            bounds: function from an Optuna trial to its excess over each constraint; None without constraints.
        """

    def check(self, space: Any, config: Any) -> None:
        """Raise ConfigError for a sampler that does not suit the search space or the rest of the config."""
        return

    def first_points(self, space: Any, config: Any) -> tuple[list[dict[str, Any]], bool]:
        """Return the points that are tried first, as Optuna keeps them, and whether there are no others: by default
        each algorithm's own values."""
        return space.defaults(config), False

    def sequel(self, space: Any, points: Any, *, higher: bool) -> Any:
        """Return the points that follow an arm's first ones, as a function of its Optuna trials; None where none
        follow."""
        return None

    def plan(self, space: Any, config: Any) -> list[Any]:
        """Return the trials of each arm, as far as they are known before the search begins; [] where none are."""
        return []


@dataclass(frozen=True, kw_only=True)
class Scheduler(Configurable, ABC):
    """Scheduler that stops trials that are behind."""

    exchanges: ClassVar[bool] = False
    """Whether trials go on from each other's state, so that all of them run from the start."""
    passes_state: ClassVar[bool] = False
    """Whether trials give their state to Ray when the scheduler decides."""

    @abstractmethod
    def build(self, config: Any, overrides: Any) -> Any:
        """Build the ``ray.tune.schedulers.TrialScheduler`` of the trials that are compared with each other.

        Args:
            config: the study's.
            overrides: of the first of them.
        """

    @abstractmethod
    def rungs(self, rounds: int) -> list[float]:
        """Return the rounds at which the scheduler decides: at the first report at or after each."""

    def check(self, config: Any) -> None:
        """Raise ConfigError for a scheduler that does not suit the rest of the config."""
        from flstudy.config.values import refuse_above

        for part in fields(self):  # type: ignore[arg-type]
            if bound := part.metadata.get("at_most"):
                refuse_above(f"study.scheduler.{part.name}", getattr(self, part.name), bound, getattr(config, bound))

    def recall(self, scheduler: Any, trial: Any, results: Any) -> None:
        """Replay to the scheduler of `build` a trial's results of an earlier start, rounds ascending."""
        for result in results:
            scheduler.on_trial_result(None, trial, result)


@dataclass(frozen=True, kw_only=True)
class Resources(Configurable):
    """Resources that one trial reserves."""

    cpu: float = hyper(1.0, "[0, 1e6]")
    """Cores, and so threads; several trials share the machine's."""
    gpu: float = hyper(0.0, "[0, 1e6]")
    """GPUs; a fraction lets trials share one."""
    memory: float = hyper(0.0, "[0, 1e15]")
    """Bytes of a node's memory that trials are counted against; 0 counts none."""
    accelerator_type: str | None = None
    """The kind of accelerator that the node must have, by Ray's name, such as A100 or T4."""
    custom: dict[str, float] = field(default_factory=dict)
    """Resources by names of your own, such as {large: 1}, which nodes offer by 'ray start --resources'."""


@dataclass(frozen=True, kw_only=True)
class Budget(Configurable):
    """Limits of a study beside its number of trials. When one is reached no trial starts, and those under way end."""

    rounds: int | None = hyper(None, "[1, 1e12]")
    """Federated rounds of all trials of the search together; null is no limit."""
    hours: float | None = hyper(None, "(0, 1e6]")
    """Hours from the study's start, those before a resume included; null is no limit."""


@dataclass(frozen=True, kw_only=True)
class Confirm(Configurable):
    """Confirmation after the search: the best trials are trained again on seeds that the search has not seen."""

    top: int = hyper(1, "[1, 1e6]")
    """Trials of each algorithm that are trained again; the best of them on the new seeds speaks for it."""
    seeds: int = hyper(0, "[0, 1e3]")
    """Number of new seeds; 0 confirms nothing."""


@dataclass(frozen=True, kw_only=True)
class Failures(Configurable):
    """Handling of trials that die, hang or raise."""

    retries: int = hyper(2, "[0, 1e6]")
    """Restarts, from its last snapshot, of a trial whose worker died or hung; one that raised is not restarted."""
    round_timeout_s: float | None = hyper(None, "(0, 1e6]")
    """Seconds without a finished round after which a trial counts as hung; compilation is part of the first round."""
    most: int | None = hyper(10, "[1, 1e6]")
    """Failed trials at which the study stops; null never does."""


@dataclass(frozen=True, kw_only=True)
class ArmSection(Configurable):
    """A variant of a method, which a study compares with others under a name of its own and with an equal budget."""

    class_path: str = ""
    """Class of the algorithm; left out, the arm's name."""
    init_args: dict[str, Any] = field(default_factory=dict)
    """Values that are fixed for this arm, whatever the config gives all arms."""
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Ranges of this arm, in place of those that all share, such as {server_lr: {loguniform: [1e-3, 0.1]}}. A key with
    a dot is one of the config."""
    presets: list[dict[str, Any]] = field(default_factory=list)
    """First trials of this arm, such as [{lr: 0.1, server_lr: 1.0}]: values of searched keys; other keys keep the arm's
    own values."""


@dataclass(frozen=True, kw_only=True)
class StudySection(Configurable):
    """A hyper-parameter study."""

    name: str | None = None
    """Name of the study's folder and MLflow run; null takes the config file's name."""
    trials: int | None = hyper(16, "[1, 1e6]")
    """Proposals of the search, of which equal ones are trained once; null is as many as the budget allows."""
    budget: Budget = field(default_factory=Budget)
    """Limits of the study beside its number of trials."""
    allocation: Literal["equal", "free"] = "equal"
    """equal: each algorithm has a search of its own with an equal number of trials; schedulers compare trials of one
    algorithm only. free: one search over all, which may leave an algorithm behind."""
    objective: Objective = field(default_factory=Objective)
    """Objective by which trials are ranked."""
    objectives: tuple[Objective, ...] = ()
    """Further objectives, such as {metric: traffic/bits, mode: min}: the study then looks for a Pareto front."""
    constraints: dict[str, dict[str, float]] = field(default_factory=dict)
    """Bounds on metrics, such as {traffic/bits: {max: 1.0e9}}: a trial outside them is never the best one."""
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Search space: config key to distribution, such as {algorithm.lr: {loguniform: [1e-3, 1]}}; a key that the
    chosen algorithm lacks is left out of its trials."""
    arms: dict[str, ArmSection] = field(default_factory=dict)
    """Variants that the study compares, by name, beside the classes of search.algorithm's choice, such as
    {Lion: {class_path: ./lion.py:FedLion, search: {server_lr: {loguniform: [1e-4, 0.1]}}}}."""
    choose_world: bool = False
    """Let the search vary data set, partition, drift, availability or number of devices. The world in which a method
    does best is then chosen with it."""
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values that belong to one algorithm or arm, such as {FedProx: {mu: 0.01}}. They hold wherever it is chosen, in
    place of what the config fixes for all, and are its first trial. An option overrides them. A key with a dot, such as
    privacy.clip, is one of the config."""
    sampler: Sampler | None = None
    """Sampler that proposes the trials (flstudy list samplers); null is Tpe."""
    scheduler: Scheduler | None = None
    """Early termination of trials that are behind (flstudy list schedulers); null runs all to the end."""
    resources: Resources = field(default_factory=Resources)
    """Resources that one trial reserves."""
    confirm: Confirm = field(default_factory=Confirm)
    """Whether the best trials are trained again, on new seeds."""
    failures: Failures = field(default_factory=Failures)
    """Handling of trials that die, hang or raise."""
    concurrent: int | None = hyper(None, "[1, 1e6]")
    """Trials at once; null runs as many as the resources allow."""
    folder: str = "studies"
    """Folder of study folders; by URI, such as s3://bucket/studies, in a bucket, from which any machine goes on."""
    snapshot_s: float = hyper(10.0, "[0, 1e6]")
    """Seconds between the snapshots from which a resumed study goes on with its running trials."""
    register: str | None = None
    """Name under which the best trial's model is registered in MLflow; null registers none."""


@dataclass(frozen=True, kw_only=True)
class Run(Configurable):
    """Output of a single run."""

    name: str | None = None
    """Name of the run's folder; null takes the config file's name."""
    folder: str = "runs"
    """Folder of run folders: records, checkpoints and the config as it was run."""
    checkpoint_every: int = hyper(10, "[1, 1e6]")
    """Rounds between checkpoints."""
    check_finite: bool = True
    """End at a loss or parameter that is not finite; false goes on."""
    resume: bool = False
    """Go on from the run folder's last checkpoint."""
    track: bool = True
    """Log to MLflow."""
