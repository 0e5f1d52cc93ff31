"""What stops trials that are behind: a class per scheduler, with its settings and the Ray scheduler that it builds.

A scheduler that compares all trials with each other stops the algorithms that start slowly, whatever they would have
reached. With ``allocation: equal`` each algorithm's trials have a scheduler of their own, and confirmations have none.
"""

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flstudy.config import ConfigError, Scheduler
from flstudy.hyper import hyper
from flstudy.study import Space, StudyFolder, Trial
from flstudy.study.records import curve, metric_names, read_records, records_damage
from flstudy.tuning.classes import own_class
from flstudy.tuning.proposals import Proposal, algorithm_of, proposal_of
from flstudy.tuning.samplers import RandomSearch, sampler_of

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass(frozen=True, eq=False)  # Ray keeps trials as keys
class History:
    """A trial of an earlier start of the study, or of another study, as Ray's schedulers see trials."""

    trial_id: str
    config: Proposal
    reported: Sequence[tuple[int, float]]  # (round, objective), rounds ascending
    over: bool = True


def read_history(folder: StudyFolder, trials: Sequence[Trial], metric: str) -> list[History]:
    """What trials have reported of the objective, from their records: those that are over all of it, those that go on
    what they do not report again."""
    found = []
    for trial in trials:
        known = trial.rounds if trial.is_over else snapshot_rounds(folder.snapshot(trial.number))
        reported: dict[int, float] = {}
        records = folder.records(trial.number)
        if known and records.is_dir() and records_damage(records) is None:
            table = read_records(records)
            if metric in metric_names(table):
                rounds, values = curve(table, metric)
                pairs = zip(rounds, values.mean(0), strict=True)
                reported = {int(r): float(v) for r, v in pairs if r <= known and np.isfinite(v)}
        if trial.is_over and trial.rounds and np.isfinite(trial.objective):
            reported[trial.rounds] = trial.objective
        if trial.is_over or reported:
            past = History(f"past-{trial.number}", proposal_of(trial), sorted(reported.items()), trial.is_over)
            found.append(past)
    return found


def snapshot_rounds(path: Path) -> int:
    """Rounds after which a snapshot was written; 0 where there is none that can be read, so that the trial starts
    anew."""
    import torch

    try:
        return int(torch.load(path, map_location="cpu", mmap=True, weights_only=True)["epoch"]) + 1
    except Exception:  # a damaged one may raise whatever pickle and zip can
        return 0


def ray_scheduler(config: "Config", history: Sequence[History] = ()) -> Any:
    """Ray's scheduler of a study: one for each algorithm, or one for all (`flstudy.tuning.per_algorithm`).

    Args:
        config: the study's.
        history: trials of earlier starts, with which the new ones are compared as if they had run beside them.
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
    """One in so many goes on at each rung."""

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

    def rungs(self, rounds: int) -> list[float]:
        """The grace, and from there on each by the reduction factor."""
        found, rung = [], float(self.grace_rounds)
        while rung <= rounds:
            found.append(rung)
            rung *= self.reduction_factor
        return found


@dataclass(frozen=True, kw_only=True)
class HyperBand(Asha):
    """Asynchronous HyperBand (Li et al. 2018, 2020): successive halving in several brackets with different grace, for
    when nobody knows how early a trial shows its worth."""

    citations: ClassVar[tuple[str, ...]] = ("li2018hyperband", "li2020asha")

    grace_rounds: int = hyper(5, "[1, 1e6]", at_most="rounds")
    """Rounds that every trial of the most impatient bracket gets."""
    brackets: int = hyper(3, "[1, 100]")  # type: ignore[misc]
    """Number of brackets; trials are dealt out to them at random, fewer to the patient ones, by the sampler's seed."""


@dataclass(frozen=True, kw_only=True)
class MedianStopping(Scheduler):
    """The median rule of Google Vizier (Golovin et al. 2017): stops a trial whose best value so far is worse than the
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
        """Results are kept as they come; reported as a running trial's, they would be judged again."""
        for result in results:
            scheduler.on_trial_complete(None, trial, result)


@dataclass(frozen=True, kw_only=True)
class Pbt(Scheduler):
    """Population-based training (Jaderberg et al. 2017): the study's trials are one population per algorithm; at
    every interval the worst go on from the state of one of the best, with perturbed values. What it finds is a schedule
    of values, not a setting: `trials.jsonl` keeps each trial's."""

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
        domains = Space.parse(config.study.search).domains
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
    """Any scheduler of Ray Tune's, or one of the user's own: what a config's class path becomes that names a
    ``ray.tune.schedulers.TrialScheduler``. It is asked after every round that measured the objective."""

    citations: ClassVar[tuple[str, ...]] = ()
    passes_state: ClassVar[bool] = True  # it may pause trials, which go on from their checkpoints

    class_path: str
    """Of the scheduler."""
    init_args: dict[str, Any] = field(default_factory=dict)
    """Its own arguments; ``metric``, ``mode`` and ``time_attr`` are given where it takes them and they do not name
    them."""

    def build(self, config: "Config", overrides: Mapping[str, Any]) -> Any:
        from ray.tune.schedulers import TrialScheduler

        mode = config.study.objective.mode
        offered = {"time_attr": "round", "metric": "objective", "mode": mode}
        scheduler = own_class("study.scheduler", self.class_path, TrialScheduler, self.init_args, offered)
        scheduler.set_search_properties("objective", mode)  # Ray's way, for those that do not take them as arguments
        return scheduler

    def rungs(self, rounds: int) -> list[float]:
        return [float(rung) for rung in range(1, rounds + 1)]

    def check(self, config: "Config") -> None:
        """Refuse a class that cannot be made."""
        self.build(config, {})
