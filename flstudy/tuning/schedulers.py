"""Schedulers, which stop trials that are behind: a class per scheduler, with its settings and the Ray scheduler.

A scheduler that compares all trials with each other stops the algorithms that start slowly, whatever they would have
reached. With ``allocation: equal`` each algorithm's trials have a scheduler of their own, and confirmations have none.
"""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flstudy.config import ConfigError, Scheduler
from flstudy.hyper import hyper
from flstudy.study import Space
from flstudy.tuning.classes import build_user_object
from flstudy.tuning.history import PastTrial
from flstudy.tuning.proposals import algorithm_of
from flstudy.tuning.samplers import RandomSearch, sampler_of

if TYPE_CHECKING:
    from flstudy.config import Config


def ray_scheduler(config: "Config", history: Sequence[PastTrial] = ()) -> Any:
    """Return Ray's scheduler of a study: one for each algorithm, or one for all (`flstudy.tuning.per_algorithm`).

    Args:
        config: the study's.
        history: trials of earlier starts, with which new trials are compared as if they had run side by side.
    """
    from ray.tune.schedulers import FIFOScheduler

    from flstudy.tuning.per_algorithm import PerAlgorithm

    if config.study.scheduler is None:
        return FIFOScheduler()

    def kind(proposal: Mapping[str, Any]) -> str | None:
        if proposal["stage"] == "confirm":
            return None
        return algorithm_of(config, proposal["overrides"]) if config.study.allocation == "equal" else "all"

    scheduler = PerAlgorithm(config.study.scheduler, config, kind)
    for trial in history:
        scheduler.recall(trial)
    return scheduler


@dataclass(frozen=True, kw_only=True)
class Asha(Scheduler):
    """Asynchronous successive halving (Li et al. 2020): stops the trials that are behind at each rung."""

    citations: ClassVar[tuple[str, ...]] = ("li2020asha",)
    brackets: ClassVar[int] = 1

    grace_rounds: int = hyper(10, "[1, 1e6]", at_most="rounds")
    """Rounds that every trial gets."""
    reduction_factor: float = hyper(3.0, "(1, 1e12]")
    """Reduction factor: one trial in so many goes on at each rung."""

    def build(self, config: "Config", overrides: Mapping[str, Any]) -> Any:
        from flstudy.tuning.per_algorithm import NumberedBrackets

        return NumberedBrackets(
            sampler_of(config).seed,
            time_attr="round",
            metric="objective",
            mode=config.study.objective.mode,
            max_t=config.rounds,
            grace_period=self.grace_rounds,
            reduction_factor=self.reduction_factor,
            brackets=self.brackets,
            stop_last_trials=False,  # a trial ends by itself, with a last report
        )

    def check(self, config: "Config") -> None:
        """Refuse more rungs than there are rounds."""
        super().check(config)
        rounds, factor = config.rounds, self.reduction_factor
        if rounds * math.log(factor) < math.log(rounds / self.grace_rounds):  # factor**rounds may be beyond all floats
            raise ConfigError(
                f"study.scheduler.reduction_factor must make fewer rungs than the {rounds} rounds, got {factor}: 3 is "
                "usual"
            )

    def rungs(self, rounds: int) -> list[float]:
        """Return the rounds of the rungs: the grace, and from there on each times the reduction factor."""
        rungs, rung = [], float(self.grace_rounds)
        while rung <= rounds:
            rungs.append(rung)
            rung *= self.reduction_factor
        return rungs


@dataclass(frozen=True, kw_only=True)
class HyperBand(Asha):
    """Asynchronous HyperBand (Li et al. 2018, 2020): successive halving in several brackets with different grace,
    where nobody knows how early a trial shows its worth."""

    citations: ClassVar[tuple[str, ...]] = ("li2018hyperband", "li2020asha")

    grace_rounds: int = hyper(5, "[1, 1e6]", at_most="rounds")
    """Rounds that every trial of the most impatient bracket gets."""
    brackets: int = hyper(3, "[1, 100]")  # type: ignore[misc]
    """Number of brackets; trials are dealt out to them at random, fewer to the patient ones, by the sampler's seed."""


@dataclass(frozen=True, kw_only=True)
class MedianStopping(Scheduler):
    """Median rule of Google Vizier (Golovin et al. 2017). It stops a trial whose best value so far is worse than the
    median of the other trials' averages up to the same round."""

    citations: ClassVar[tuple[str, ...]] = ("golovin2017",)

    grace_rounds: int = hyper(10, "[1, 1e6]", at_most="rounds")
    """Rounds that every trial gets."""
    every: int = hyper(5, "[1, 1e6]")
    """Rounds between decisions."""
    startup_trials: int = hyper(4, "[1, 1e6]")
    """Trials that must have come as far before one is stopped."""

    def build(self, config: "Config", overrides: Mapping[str, Any]) -> Any:
        from ray.tune.schedulers import MedianStoppingRule

        return MedianStoppingRule(
            time_attr="round",
            metric="objective",
            mode=config.study.objective.mode,
            grace_period=self.grace_rounds,
            min_samples_required=self.startup_trials,
            min_time_slice=0,
            hard_stop=True,
        )

    def rungs(self, rounds: int) -> list[float]:
        return [float(rung) for rung in range(self.grace_rounds, rounds + 1, self.every)]

    def recall(self, scheduler: Any, trial: Any, results: Sequence[dict[str, Any]]) -> None:
        """Complete a trial with each of its earlier results, which would be judged again as a running trial's."""
        for result in results:
            scheduler.on_trial_complete(None, trial, result)


@dataclass(frozen=True, kw_only=True)
class Pbt(Scheduler):
    """Population-based training (Jaderberg et al. 2017): the study's trials are one population per algorithm. At every
    interval the worst go on from the state of one of the best, with perturbed values. The result is a schedule of
    values, not a setting: `trials.jsonl` keeps each trial's."""

    citations: ClassVar[tuple[str, ...]] = ("jaderberg2017",)
    exchanges: ClassVar[bool] = True
    passes_state: ClassVar[bool] = True

    keys: list[str] = field(default_factory=lambda: ["algorithm.server_lr"])
    """Searched keys that are perturbed; the others stay as they were drawn."""
    every: int = hyper(10, "[1, 1e6]")
    """Rounds between perturbations."""
    quantile: float = hyper(0.25, "(0, 0.5]")
    """Share of the population that is replaced, and from which its replacements come."""
    resample: float = hyper(0.25, "[0, 1]")
    """Probability to draw a value anew instead of multiplying it by 0.8 or 1.2."""

    def build(self, config: "Config", overrides: Mapping[str, Any]) -> Any:
        from ray.tune.schedulers import FIFOScheduler

        from flstudy.tuning.per_algorithm import PopulationTraining

        keys = [key for key in self.keys if key in overrides]
        if not keys:  # an algorithm without them
            return FIFOScheduler()
        domains = Space.of_study(config.study).of(overrides.get("algorithm"))
        rng = random.Random(sampler_of(config).seed)

        def keep(changed: dict[str, Any]) -> dict[str, Any]:
            return {key: domains[key].nearest(value) if key in keys else value for key, value in changed.items()}

        return PopulationTraining(
            {key: functools.partial(domains[key].draw, rng) for key in keys},
            keep,
            time_attr="round",
            metric="objective",
            mode=config.study.objective.mode,
            perturbation_interval=self.every,
            quantile_fraction=self.quantile,
            resample_probability=self.resample,
            synch=False,
        )

    def rungs(self, rounds: int) -> list[float]:
        return [float(rung) for rung in range(self.every, rounds + 1, self.every)]

    def check(self, config: "Config") -> None:
        """Refuse keys, intervals and samplers with which a population makes no sense."""
        where, study, sampler = "study.scheduler", config.study, sampler_of(config)
        if not self.keys:
            raise ConfigError(f"{where}.keys must name at least one searched key, got []: algorithm.server_lr is usual")
        for key in self.keys:
            written = study.search.get(key)
            if written is None or "choice" in written:
                what = "is not searched" if written is None else "is a choice"
                raise ConfigError(
                    f"{where}.keys must be searched keys with a numeric range, got {key!r}, which {what}: give it a "
                    f"distribution in study.search, such as {{loguniform: [1.0e-3, 1.0]}}"
                )
        if self.every >= config.rounds:
            raise ConfigError(f"{where}.every must lie in [1, {config.rounds - 1}], got {self.every}: 10 is usual")
        if not isinstance(sampler, RandomSearch):
            raise ConfigError(
                f"study.sampler must be RandomSearch with Pbt, got {type(sampler).__name__}: the values of its "
                "trials change while they train, so no model can learn from how they began"
            )
        if study.trials is None:
            raise ConfigError("study.trials must be given with Pbt, got null: it is the size of the populations")


@dataclass(frozen=True, kw_only=True)
class RayScheduler(Scheduler):
    """Scheduler of Ray Tune's, or of the user's own, which a config names by the class path of a
    ``ray.tune.schedulers.TrialScheduler``. It decides after every round that measured the objective."""

    citations: ClassVar[tuple[str, ...]] = ()
    passes_state: ClassVar[bool] = True  # it may pause trials, which go on from their checkpoints

    class_path: str
    """Class path of the scheduler."""
    init_args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the scheduler; ``metric``, ``mode`` and ``time_attr`` are added where it takes them and they do not
    name them."""

    def build(self, config: "Config", overrides: Mapping[str, Any]) -> Any:
        from ray.tune.schedulers import TrialScheduler

        mode = config.study.objective.mode
        offered = {"time_attr": "round", "metric": "objective", "mode": mode}
        scheduler = build_user_object("study.scheduler", self.class_path, TrialScheduler, self.init_args, offered)
        scheduler.set_search_properties("objective", mode)  # Ray's way, for those that do not take them as arguments
        return scheduler

    def rungs(self, rounds: int) -> list[float]:
        return [float(rung) for rung in range(1, rounds + 1)]

    def check(self, config: "Config") -> None:
        """Refuse a class that cannot be made."""
        self.build(config, {})
