"""Schedulers that flstudy adds to Ray Tune's: one for each algorithm, and populations of a search's proposals.

Their classes are Ray's, so this module is imported where a study runs.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler

from flstudy.study import Status

if TYPE_CHECKING:
    from flstudy.config import Config, Scheduler
    from flstudy.tuning.history import PastTrial


class PerAlgorithm(FIFOScheduler):
    """Scheduler that keeps one of Ray's for each kind of trial.

    Args:
        settings: build a scheduler of Ray's.
        config: the study's.
        kind: function of a proposal that tells the trial's kind; None for a trial that nothing stops early.
    """

    def __init__(
        self, settings: "Scheduler", config: "Config", kind: Callable[[Mapping[str, Any]], str | None]
    ) -> None:
        super().__init__()
        self._settings, self._config, self._kind = settings, config, kind
        self._scheduler_by_kind: dict[str, TrialScheduler] = {}
        self._rungs = settings.rungs(config.rounds)
        self._decided: dict[str, float] = {}  # by trial: the round until which it has been judged
        self._early_results: dict[int, list[dict[str, Any]]] = {}  # by number: of trials that will go on

    def _scheduler_of(self, trial: Any) -> Any:
        """Return the scheduler of a trial's kind, or for a trial without a kind a scheduler that stops nothing."""
        kind = self._kind(trial.config)
        if kind is None:
            return super()
        if kind not in self._scheduler_by_kind:
            self._scheduler_by_kind[kind] = self._settings.build(self._config, trial.config["overrides"])
        return self._scheduler_by_kind[kind]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._scheduler_of(trial).on_trial_add(tune_controller, trial)
        early = self._early_results.pop(trial.config["number"], None)
        if early:  # as the same trial's, which reports only its later rungs
            self._settings.recall(self._scheduler_of(trial), trial, early)
            self._decided[trial.trial_id] = early[-1]["round"]

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._scheduler_of(trial).on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return the decision at a rung; reports in between, as often as the clock has it, are for display only."""
        round, running = result.get("round", 0), result.get("status", Status.RUNNING) == Status.RUNNING
        if running and not self._settings.passes_state and not self._is_rung(trial, round):
            return TrialScheduler.CONTINUE
        self._decided[trial.trial_id] = round
        decision: str = self._scheduler_of(trial).on_trial_result(tune_controller, trial, result)
        return decision

    def _is_rung(self, trial: Any, round: float) -> bool:
        return any(self._decided.get(trial.trial_id, 0) < rung <= round for rung in self._rungs)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._scheduler_of(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._scheduler_of(trial).on_trial_remove(tune_controller, trial)

    def recall(self, trial: "PastTrial") -> None:
        """Replay the reports of a trial of an earlier start, so that new trials are compared with it.

        Nothing is replayed to a population, whose trials change while they train. A scheduler that may pause trials
        gets the reports only of trials that are over.
        """
        results = []
        for round, value in trial.reports:
            last = trial.over and round == trial.reports[-1][0]
            if last or self._settings.passes_state or self._is_rung(trial, round):
                self._decided[trial.trial_id] = round
                results.append({"round": round, "objective": value})
        if not results or self._settings.exchanges or self._kind(trial.config) is None:
            return
        if not trial.over:
            if not self._settings.passes_state:
                self._early_results[trial.config["number"]] = results
            return
        scheduler = self._scheduler_of(trial)
        scheduler.on_trial_add(None, trial)
        self._settings.recall(scheduler, trial, results)
        scheduler.on_trial_complete(None, trial, results[-1])

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Return the choice of a scheduler that pauses trials; otherwise the trial with the fewest rounds, since all of
        a population are to meet at the same rounds."""
        trials = tune_controller.get_trials()
        if self._settings.passes_state and not self._settings.exchanges:
            for kind, scheduler in self._scheduler_by_kind.items():
                of_kind = [trial for trial in trials if self._kind(trial.config) == kind]
                chosen = scheduler.choose_trial_to_run(ControllerView(tune_controller, of_kind))  # type: ignore[arg-type]
                if chosen is not None:
                    return chosen
            trials = [trial for trial in trials if self._kind(trial.config) is None]
        waiting = [trial for trial in trials if trial.status in (RayTrial.PENDING, RayTrial.PAUSED)]
        return min(waiting, key=lambda trial: (trial.last_result or {}).get("round", 0), default=None)

    def debug_string(self) -> str:
        return "\n".join(f"{kind}: {scheduler.debug_string()}" for kind, scheduler in self._scheduler_by_kind.items())


class ControllerView:
    """View of Ray's controller for the scheduler of one kind: with the trials of that kind."""

    def __init__(self, controller: Any, trials: list[Any]) -> None:
        self._controller, self._trials = controller, trials

    def get_trials(self) -> list[Any]:
        return self._trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


class NumberedBrackets(FIFOScheduler):
    """Ray's asynchronous HyperBand, with a trial's bracket drawn by the trial's number.

    Ray draws it from the random numbers of the process. Here a trial has the same bracket in every start of the study.

    Args:
        seed: of the draws.
        brackets: their number; in each the grace is longer by the reduction factor.
        grace_period: of the first bracket.
        reduction_factor: from rung to rung.
        max_t: rounds of a trial.
        named: Ray's own settings of asynchronous successive halving.
    """

    def __init__(
        self, seed: int, *, brackets: int, grace_period: float, reduction_factor: float, max_t: int, **named: Any
    ) -> None:
        super().__init__()
        self._seed, self._bracket_of = seed, dict[str, TrialScheduler]()
        rungs = np.log(max_t / grace_period) / np.log(reduction_factor) + 1 - np.arange(brackets)
        weights = np.exp(np.maximum(rungs.astype(int), 0))  # Ray's: fewer trials for the patient brackets
        self._shares = weights / weights.sum()
        graces: list[Any] = [grace_period * reduction_factor**place for place in range(brackets)]
        self._schedulers: list[TrialScheduler] = [
            ASHAScheduler(grace_period=grace, reduction_factor=reduction_factor, max_t=max_t, **named)
            if grace <= max_t
            else FIFOScheduler()
            for grace in graces
        ]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        rng = np.random.default_rng([self._seed, trial.config["number"]])
        bracket = self._schedulers[rng.choice(len(self._schedulers), p=self._shares)]
        self._bracket_of[trial.trial_id] = bracket
        bracket.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return str(self._bracket_of[trial.trial_id].on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._bracket_of.pop(trial.trial_id).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._bracket_of.pop(trial.trial_id).on_trial_remove(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._bracket_of[trial.trial_id].on_trial_error(tune_controller, trial)


class PopulationTraining(PopulationBasedTraining):
    """Ray's population-based training for proposals of a search.

    Args:
        draw: by key that is perturbed, a function that draws a new value.
        keep: function that brings perturbed overrides back into the search space.
        named: Ray's own settings.
    """

    def __init__(
        self,
        draw: Mapping[str, Callable[[], Any]],
        keep: Callable[[dict[str, Any]], dict[str, Any]],
        **named: Any,
    ) -> None:
        super().__init__(hyperparam_mutations={"overrides": dict(draw)}, log_config=False, **named)
        self._keep = keep

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial without its searcher, which Ray refuses here, since it would learn from values that were changed
        since; `Search` learns a population's trials by their last values, which is why it should draw at random."""
        before = self._trial_state.get(trial)
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)  # type: ignore[arg-type]
        if before is not None:  # it starts again
            self._trial_state[trial] = before

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the donor's perturbed values under the trial's own number."""
        donor, operations = super()._get_new_config(trial, trial_to_clone)
        return {**trial.config, "overrides": self._keep(donor["overrides"])}, operations
