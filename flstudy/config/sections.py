"""The sections of a config that belong to no room of the engine: how a run is carried out, and the study.

The JSON Schema is made from these classes: a field's docstring is its sentence in editors and ``--help``.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from flstudy.config.errors import ConfigError
from flstudy.hyper import Configurable, hyper


@dataclass(frozen=True, kw_only=True)
class Settings(Configurable):
    """How a run is carried out: the keys at the top of a config."""

    rounds: int = hyper(100, "[1, 1e6]")
    """Federated rounds."""
    seeds: list[Annotated[int, "[0, 2e9]"]] = field(default_factory=lambda: [0])
    """One replica per seed, trained at once."""
    evaluate_every: int = hyper(1, "[1, 1e6]")
    """Rounds between evaluations."""
    initial: Literal["seeded", "given"] = "seeded"
    """Draw each replica's initial model from its seed, or start all from the task as it is built."""
    executor: Literal["vectorized", "threads", "sequential", "trainer", "auto"] = "vectorized"
    """How local fits are carried out; all agree. auto takes the fastest by a short measurement."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the vectorized steps; auto does if the rounds ahead pay for it."""
    local_optimizer: Literal["rule", "module", "module_reset"] = "rule"
    """What devices step by: the algorithm's rule, or the task's configure_optimizers (module_reset: its state begins
    anew in every round)."""
    buffers: Literal["average", "local", "freeze"] = "average"
    """What becomes of BatchNorm's statistics and the like: averaged, kept by devices with BatchNorm's weights
    (FedBN), or never changed."""
    max_lanes: int | None = hyper(None, "[1, 1e6]")
    """Most lanes at once; null is all of them."""
    bank_memory: int = hyper(2**32, "[0, 1e15]")
    """Most bytes of devices' states in memory; beyond it files in the folder for temporary files (TMPDIR) take them."""
    cohort_memory: int = hyper(2**32, "[0, 1e15]")
    """Most bytes of the models and states of devices that train at once; larger cohorts train in blocks, their uploads
    added up as they come."""
    accelerator: str = "cpu"
    """Lightning's accelerator: cpu, gpu or auto."""
    devices: int = hyper(1, "[1, 1e4]")
    """Devices of this machine over which the lanes of a round are divided; of a CPU each is a process on one core."""
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    """Lightning's precision."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Precision inside float32 products; high is TF32 on GPUs, medium bfloat16."""
    store: str | None = None
    """MLflow tracking URI; null is sqlite under mlflow_tracking/."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds or max(Counter(self.seeds).values()) > 1 or min(self.seeds) < 0:
            raise ConfigError(f"seeds must be one or more different integers ≥ 0, got {self.seeds}")


@dataclass(frozen=True, kw_only=True)
class Objective(Configurable):
    """What a study optimises: the last evaluation's mean over replicas."""

    metric: str = "valid/accuracy"
    """Any metric of an evaluation or a round, such as valid/accuracy, valid/loss or traffic/up_bytes."""
    mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        return self.mode == "max"


@dataclass(frozen=True, kw_only=True)
class Sampler(Configurable, ABC):
    """Proposes the configurations of a study."""

    plain_only: ClassVar[bool] = False
    """Whether it knows neither several objectives nor constraints."""

    seed: int = hyper(0, "[0, 2e9]")
    """Of the suggestions."""

    @abstractmethod
    def build(self, seed: int, bounds: Any) -> Any:
        """The ``optuna.samplers.BaseSampler``.

        Args:
            seed: of the suggestions; another one than ``self.seed`` where another search's trials are known already.
            bounds: from an Optuna trial to by how much it exceeds each constraint; None without constraints.
        """

    def check(self, space: Any, config: Any) -> None:
        """Raise ConfigError for what does not suit the search space or the rest of the config."""
        return

    def first_points(self, space: Any, config: Any) -> tuple[list[dict[str, Any]], bool]:
        """The points that are tried first, as Optuna keeps them, and whether they are all: by default each algorithm's
        own values."""
        return space.defaults(config), False

    def sequel(self, space: Any, points: Any, *, higher: bool) -> Any:
        """What follows an arm's first points, as a function of its Optuna trials; None where nothing does."""
        return None

    def plan(self, space: Any, config: Any) -> list[Any]:
        """What each arm does, as far as is known before it begins; [] where nothing is."""
        return []


@dataclass(frozen=True, kw_only=True)
class Scheduler(Configurable, ABC):
    """Stops trials that are behind."""

    exchanges: ClassVar[bool] = False
    """Whether trials go on from each other's state, so that all of them are there from the start."""
    passes_state: ClassVar[bool] = False
    """Whether trials give their state to Ray when the scheduler decides."""

    @abstractmethod
    def build(self, config: Any, overrides: Any) -> Any:
        """The ``ray.tune.schedulers.TrialScheduler`` of the trials that are compared with each other.

        Args:
            config: the study's.
            overrides: of the first of them.
        """

    @abstractmethod
    def rungs(self, rounds: int) -> list[float]:
        """Rounds at which it decides: at the first report at or after each."""

    def check(self, config: Any) -> None:
        """Raise ConfigError for what does not suit the rest of the config."""
        from flstudy.config.values import refuse_above

        for part in fields(self):  # type: ignore[arg-type]
            if bound := part.metadata.get("at_most"):
                refuse_above(f"study.scheduler.{part.name}", getattr(self, part.name), bound, getattr(config, bound))

    def recall(self, scheduler: Any, trial: Any, results: Any) -> None:
        """Tell what `build` made of the results that a trial reported in an earlier start, rounds ascending."""
        for result in results:
            scheduler.on_trial_result(None, trial, result)


@dataclass(frozen=True, kw_only=True)
class Resources(Configurable):
    """What one trial reserves."""

    cpu: float = hyper(1.0, "[0, 1e6]")
    """Cores, and so threads; several trials share the machine's."""
    gpu: float = hyper(0.0, "[0, 1e6]")
    """GPUs; a fraction lets trials share one."""


@dataclass(frozen=True, kw_only=True)
class Budget(Configurable):
    """What a study may spend beside its number of trials. When it is spent no trial starts, and those under way end."""

    rounds: int | None = hyper(None, "[1, 1e12]")
    """Federated rounds of all trials together; null is no limit."""
    hours: float | None = hyper(None, "(0, 1e6]")
    """Hours from the study's start, those before a resume included; null is no limit."""


@dataclass(frozen=True, kw_only=True)
class Confirm(Configurable):
    """After the search, the best trials are trained again on seeds that the search has not seen."""

    top: int = hyper(1, "[1, 1e6]")
    """Trials of each algorithm that are trained again; the best of them on the new seeds speaks for it."""
    seeds: int = hyper(0, "[0, 1e3]")
    """Number of new seeds; 0 confirms nothing."""


@dataclass(frozen=True, kw_only=True)
class Failures(Configurable):
    """What becomes of trials that do not end by themselves."""

    retries: int = hyper(2, "[0, 1e6]")
    """Times that a trial starts again, from its last snapshot, whose worker died or hung; one that raised does not."""
    round_timeout_s: float | None = hyper(None, "(0, 1e6]")
    """Seconds without a finished round after which a trial counts as hung; compilation is part of the first round."""
    most: int | None = hyper(10, "[1, 1e6]")
    """Failed trials at which the study stops; null never does."""


@dataclass(frozen=True, kw_only=True)
class StudySection(Configurable):
    """A hyper-parameter study."""

    name: str | None = None
    """Of the study's folder and MLflow run; null takes the config file's name."""
    trials: int | None = hyper(16, "[1, 1e6]")
    """Configurations to try; null is as many as the budget allows."""
    budget: Budget = field(default_factory=Budget)
    """What the study may spend beside its number of trials."""
    allocation: Literal["equal", "free"] = "equal"
    """equal: each algorithm has a search of its own, of as many trials as the others', and is stopped early by
    comparison with its own kind only; free: one search over all, which may leave an algorithm behind."""
    objective: Objective = field(default_factory=Objective)
    """What trials are ranked by."""
    objectives: tuple[Objective, ...] = ()
    """Further objectives, such as {metric: traffic/bits, mode: min}: the study then looks for a Pareto front."""
    constraints: dict[str, dict[str, float]] = field(default_factory=dict)
    """Bounds on metrics, such as {traffic/bits: {max: 1.0e9}}: a trial outside them is never the best one."""
    search: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Search space: config key to distribution, such as {algorithm.lr: {loguniform: [1e-3, 1]}}; a key that the
    chosen algorithm lacks is left out of its trials."""
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values that belong to one algorithm, such as {FedProx: {mu: 0.01}}: they hold wherever the config, or the search,
    chooses that algorithm and says nothing else, and are its first trial. A key with a dot, such
    as privacy.clip, is one of the config; there too the file's own algorithm keeps what the file says."""
    sampler: Sampler | None = None
    """What proposes the trials (flstudy list samplers); null is Tpe."""
    scheduler: Scheduler | None = None
    """Early termination of trials that are behind (flstudy list schedulers); null runs all to the end."""
    resources: Resources = field(default_factory=Resources)
    """What one trial reserves."""
    confirm: Confirm = field(default_factory=Confirm)
    """Whether the best trials are trained again, on new seeds."""
    failures: Failures = field(default_factory=Failures)
    """What becomes of trials that die, hang or raise."""
    concurrent: int | None = hyper(None, "[1, 1e6]")
    """Trials at once; null runs as many as the resources allow."""
    folder: str = "studies"
    """Where study folders go."""
    snapshot_s: float = hyper(10.0, "[0, 1e6]")
    """Seconds between the snapshots from which a resumed study goes on with its running trials."""
    register: str | None = None
    """Name under which the best trial's model is registered in MLflow; null registers none."""


@dataclass(frozen=True, kw_only=True)
class Run(Configurable):
    """Where a single run leaves its results."""

    name: str | None = None
    """Of the run's folder; null takes the config file's name."""
    folder: str = "runs"
    """Where run folders go: records, checkpoints and the config as it was run."""
    checkpoint_every: int = hyper(10, "[1, 1e6]")
    """Rounds between checkpoints."""
    resume: bool = False
    """Go on from the run folder's last checkpoint."""
    track: bool = True
    """Log to MLflow."""
