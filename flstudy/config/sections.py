"""The sections of a config that belong to no room of the engine: how a run is carried out, and the study.

The JSON Schema is made from these classes: a field's docstring is its sentence in editors and ``--help``.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from flstudy.config.errors import ConfigError
from flstudy.hyper import Configurable, hyper


@dataclass(frozen=True, kw_only=True)
class Settings(Configurable):
    """How a run is carried out: the keys at the top of a config."""

    rounds: int = hyper(100, "[1, inf)")
    """Federated rounds."""
    seeds: list[Annotated[int, "[0, inf)"]] = field(default_factory=lambda: [0])
    """One replica per seed, trained at once."""
    evaluate_every: int = hyper(1, "[1, inf)")
    """Rounds between evaluations."""
    initial: Literal["seeded", "given"] = "seeded"
    """Draw each replica's initial model from its seed, or start all from the task as it is built."""
    executor: Literal["vectorized", "threads", "sequential", "trainer", "auto"] = "vectorized"
    """How local fits are carried out; all agree. auto takes the fastest by a short measurement."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the vectorized steps; auto does if the rounds ahead pay for it."""
    max_lanes: int | None = hyper(None, "[1, inf)")
    """Most lanes at once; null is all of them."""
    accelerator: str = "cpu"
    """Lightning's accelerator: cpu, gpu or auto."""
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
class Sampler(Configurable):
    """Proposes the configurations of a study."""

    seed: int = hyper(0, "[0, inf)")
    """Of its draws."""


@dataclass(frozen=True, kw_only=True)
class Tpe(Sampler):
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011): for any space, conditional ones included."""

    citations: ClassVar[tuple[str, ...]] = ("bergstra2011",)

    startup_trials: int = hyper(8, "[0, inf)")
    """Random trials before the model is used."""
    candidates: int = hyper(24, "[1, inf)")
    """Candidates that the model compares for each suggestion."""
    multivariate: bool = False
    """Model parameters jointly."""


@dataclass(frozen=True, kw_only=True)
class RandomSearch(Sampler):
    """Independent draws: the baseline of every sampler, and the fairest when many workers start at once."""

    citations: ClassVar[tuple[str, ...]] = ("bergstra2012",)


@dataclass(frozen=True, kw_only=True)
class GridSearch(Sampler):
    """Every combination once, in an order drawn from the seed: choices as written, ranges at equal distances."""

    citations: ClassVar[tuple[str, ...]] = ()

    points: int = hyper(3, "[1, inf)")
    """Values of a uniform, loguniform, randint or lograndint range, its ends included."""


@dataclass(frozen=True, kw_only=True)
class TwoStep(Sampler):
    """A sweep in two steps (FedAda², Lee et al. 2024, App. H.2): a symmetric grid, where server and devices share
    their values, then the asymmetric grid around each algorithm's best. Every searched key is a choice."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    tie: list[list[str]] = field(default_factory=list)
    """Keys that have the same value in step 1, such as [[algorithm.server_lr, algorithm.lr], [algorithm.tau,
    algorithm.eps]]; an algorithm that lacks one of them sweeps the others."""
    first: dict[str, list[Any]] = field(default_factory=dict)
    """Values of a key in step 1, some of its choice; those of a key that is not named are all of its choice."""
    radius: int = hyper(1, "[0, inf)")
    """Step 2 tries every combination of values up to so many steps of its grid from the best of step 1, nearest first,
    as far as study.trials goes."""


@dataclass(frozen=True, kw_only=True)
class CmaEs(Sampler):
    """Covariance matrix adaptation (Hansen & Ostermeier 2001): for numbers; choices are drawn at random."""

    citations: ClassVar[tuple[str, ...]] = ("hansen2001",)

    startup_trials: int = hyper(8, "[0, inf)")
    """Random trials before the model is used."""
    sigma: float | None = hyper(None, "(0, inf)")
    """Initial step relative to the ranges; null is a sixth of the narrowest one."""


@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Sampler):
    """Bayesian optimisation with a Gaussian process: for few trials of long runs; choices of classes are drawn at
    random."""

    citations: ClassVar[tuple[str, ...]] = ("snoek2012",)

    startup_trials: int = hyper(8, "[0, inf)")
    """Random trials before the model is used."""


@dataclass(frozen=True, kw_only=True)
class Nsga2(Sampler):
    """The genetic algorithm NSGA-II (Deb et al. 2002)."""

    citations: ClassVar[tuple[str, ...]] = ("deb2002",)

    population: int = hyper(20, "[2, inf)")
    """Trials of a generation."""


@dataclass(frozen=True, kw_only=True)
class Scheduler(Configurable):
    """Stops trials that are behind."""


@dataclass(frozen=True, kw_only=True)
class Asha(Scheduler):
    """Asynchronous successive halving (Li et al. 2020): stops the trials that are behind at each rung."""

    citations: ClassVar[tuple[str, ...]] = ("li2020asha",)

    grace_rounds: int = hyper(10, "[1, inf)")
    """Rounds that every trial gets."""
    reduction_factor: float = hyper(3.0, "(1, inf)")
    """One in so many goes on at each rung."""


@dataclass(frozen=True, kw_only=True)
class HyperBand(Scheduler):
    """Asynchronous HyperBand (Li et al. 2018, 2020): successive halving in several brackets with different grace, for
    when nobody knows how early a trial shows its worth."""

    citations: ClassVar[tuple[str, ...]] = ("li2018hyperband", "li2020asha")

    grace_rounds: int = hyper(5, "[1, inf)")
    """Rounds that every trial of the most impatient bracket gets."""
    reduction_factor: float = hyper(3.0, "(1, inf)")
    """One in so many goes on at each rung."""
    brackets: int = hyper(3, "[1, inf)")
    """Number of brackets; trials are dealt out to them at random, fewer to the patient ones."""


@dataclass(frozen=True, kw_only=True)
class MedianStopping(Scheduler):
    """The median rule of Google Vizier (Golovin et al. 2017): stops a trial whose best value so far is worse than the
    median of the other trials' averages up to the same round."""

    citations: ClassVar[tuple[str, ...]] = ("golovin2017",)

    grace_rounds: int = hyper(10, "[1, inf)")
    """Rounds that every trial gets."""
    every: int = hyper(5, "[1, inf)")
    """Rounds between decisions."""
    startup_trials: int = hyper(4, "[1, inf)")
    """Trials that must have come as far before one is stopped."""


@dataclass(frozen=True, kw_only=True)
class Pbt(Scheduler):
    """Population-based training (Jaderberg et al. 2017): the study's trials are one population per algorithm; at
    every interval the worst go on from the state of one of the best, with perturbed values. What it finds is a schedule
    of values, not a setting: `trials.jsonl` keeps each trial's."""

    citations: ClassVar[tuple[str, ...]] = ("jaderberg2017",)

    keys: list[str] = field(default_factory=lambda: ["algorithm.server_lr"])
    """Searched keys that are perturbed; the others stay as they were drawn."""
    every: int = hyper(10, "[1, inf)")
    """Rounds between perturbations."""
    quantile: float = hyper(0.25, "(0, 0.5]")
    """Share of the population that is replaced, and from which its replacements come."""
    resample: float = hyper(0.25, "[0, 1]")
    """Probability to draw a value anew instead of multiplying it by 0.8 or 1.2."""

    @property
    def grace_rounds(self) -> int:  # type: ignore[override]
        """Rounds before the first perturbation."""
        return self.every


@dataclass(frozen=True, kw_only=True)
class Resources(Configurable):
    """What one trial reserves."""

    cpu: float = hyper(1.0, "[0, inf)")
    """Cores, and so threads; several trials share the machine's."""
    gpu: float = hyper(0.0, "[0, inf)")
    """GPUs; a fraction lets trials share one."""


@dataclass(frozen=True, kw_only=True)
class Budget(Configurable):
    """What a study may spend beside its number of trials. When it is spent no trial starts, and those under way end."""

    rounds: int | None = hyper(None, "[1, inf)")
    """Federated rounds of all trials together; null is no limit."""
    hours: float | None = hyper(None, "(0, inf)")
    """Hours from the study's start, those before a resume included; null is no limit."""


@dataclass(frozen=True, kw_only=True)
class Confirm(Configurable):
    """After the search, the best trials are trained again on seeds that the search has not seen."""

    top: int = hyper(1, "[1, inf)")
    """Trials of each algorithm that are trained again; the best of them on the new seeds speaks for it."""
    seeds: int = hyper(0, "[0, inf)")
    """Number of new seeds; 0 confirms nothing."""


@dataclass(frozen=True, kw_only=True)
class Failures(Configurable):
    """What becomes of trials that do not end by themselves."""

    retries: int = hyper(2, "[0, inf)")
    """Times that a trial starts again, from its last snapshot, whose worker died or hung; one that raised does not."""
    round_timeout_s: float | None = hyper(None, "(0, inf)")
    """Seconds without a finished round after which a trial counts as hung; compilation is part of the first round."""
    most: int | None = hyper(10, "[1, inf)")
    """Failed trials at which the study stops; null never does."""


@dataclass(frozen=True, kw_only=True)
class Study(Configurable):
    """A hyper-parameter study."""

    name: str | None = None
    """Of the study's folder and MLflow run; null takes the config file's name."""
    trials: int | None = hyper(16, "[1, inf)")
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
    sampler: Sampler = field(default_factory=Tpe)
    """What proposes the trials: see flstudy list samplers."""
    scheduler: Scheduler | None = None
    """Early termination of trials that are behind (flstudy list schedulers); null runs all to the end."""
    resources: Resources = field(default_factory=Resources)
    """What one trial reserves."""
    confirm: Confirm = field(default_factory=Confirm)
    """Whether the best trials are trained again, on new seeds."""
    failures: Failures = field(default_factory=Failures)
    """What becomes of trials that die, hang or raise."""
    concurrent: int | None = hyper(None, "[1, inf)")
    """Trials at once; null runs as many as the resources allow."""
    folder: str = "studies"
    """Where study folders go."""
    snapshot_s: float = hyper(10.0, "[0, inf)")
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
    checkpoint_every: int = hyper(10, "[1, inf)")
    """Rounds between checkpoints."""
    resume: bool = False
    """Go on from the run folder's last checkpoint."""
    track: bool = True
    """Log to MLflow."""
