"""Schedulers of Ray Tune's that flstudy adds: one for each algorithm, and populations of a search's proposals.

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
    from flstudy.tuning.schedulers import History


class PerAlgorithm(FIFOScheduler):
    """One scheduler for each kind of trial.

    Args:
        settings: what builds one.
        config: the study's.
        kind: of a trial, by its proposal; None for one that nothing stops early.
    """

    def __init__(
        self, settings: "Scheduler", config: "Config", kind: Callable[[Mapping[str, Any]], str | None]
    ) -> None:
        super().__init__()
        self._settings, self._config, self._kind = settings, config, kind
        self._kinds: dict[str, TrialScheduler] = {}
        self._rungs = settings.rungs(config.rounds)
        self._decided: dict[str, float] = {}  # by trial: the round until which it has been judged
        self._early: dict[int, list[dict[str, Any]]] = {}  # by number: results of trials that go on, before they do

    def _own(self, trial: Any) -> Any:
        """The scheduler of a trial's kind; one that lets it run where there is none."""
        kind = self._kind(trial.config)
        if kind is None:
            return super()
        if kind not in self._kinds:
            self._kinds[kind] = self._settings.build(self._config, trial.config["overrides"])
        return self._kinds[kind]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self._own(trial).on_trial_add(tune_controller, trial)
        early = self._early.pop(trial.config["number"], None)
        if early:  # as the same trial's, which reports only its later rungs
            self._settings.recall(self._own(trial), trial, early)
            self._decided[trial.trial_id] = early[-1]["round"]

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        self._own(trial).on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """The decision at a rung; what is reported in between, as often as the clock has it, is for the eye only."""
        round, running = result.get("round", 0), result.get("status", Status.RUNNING) == Status.RUNNING
        if running and not self._settings.passes_state and not self._is_rung(trial, round):
            return TrialScheduler.CONTINUE
        self._decided[trial.trial_id] = round
        decision: str = self._own(trial).on_trial_result(tune_controller, trial, result)
        return decision

    def _is_rung(self, trial: Any, round: float) -> bool:
        return any(self._decided.get(trial.trial_id, 0) < rung <= round for rung in self._rungs)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self._own(trial).on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        self._own(trial).on_trial_remove(tune_controller, trial)

    def recall(self, trial: "History") -> None:
        """Learn what a trial of an earlier start reported; what became of it was decided then. A population begins
        anew, since its trials change while they train; so do trials that go on, for a scheduler that might pause
        them."""
        results = []
        for round, value in trial.reported:
            last = trial.over and round == trial.reported[-1][0]
            if last or self._settings.passes_state or self._is_rung(trial, round):
                self._decided[trial.trial_id] = round
                results.append({"round": round, "objective": value})
        if not results or self._settings.exchanges or self._kind(trial.config) is None:
            return
        if not trial.over:
            if not self._settings.passes_state:
                self._early[trial.config["number"]] = results
            return
        own = self._own(trial)
        own.on_trial_add(None, trial)
        self._settings.recall(own, trial, results)
        own.on_trial_complete(None, trial, results[-1])

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Of a scheduler that pauses trials its own choice; else the one that has come least far: of a population all
        are to meet at the same rounds."""
        trials = tune_controller.get_trials()
        if self._settings.passes_state and not self._settings.exchanges:
            for kind, own in self._kinds.items():
                of_kind = [trial for trial in trials if self._kind(trial.config) == kind]
                chosen = own.choose_trial_to_run(ControllerView(tune_controller, of_kind))  # type: ignore[arg-type]
                if chosen is not None:
                    return chosen
            trials = [trial for trial in trials if self._kind(trial.config) is None]
        waiting = [trial for trial in trials if trial.status in (RayTrial.PENDING, RayTrial.PAUSED)]
        return min(waiting, key=lambda trial: (trial.last_result or {}).get("round", 0), default=None)

    def debug_string(self) -> str:
        return "\n".join(f"{kind}: {own.debug_string()}" for kind, own in self._kinds.items())


class ControllerView:
    """Ray's controller as the scheduler of one kind sees it: with the trials of that kind."""

    def __init__(self, controller: Any, trials: list[Any]) -> None:
        self._controller, self._trials = controller, trials

    def get_trials(self) -> list[Any]:
        return self._trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


class NumberedBrackets(ASHAScheduler):
    """Ray's asynchronous HyperBand, which draws a trial's bracket from the process's random numbers: here the trial's
    number decides, so that it has the same bracket in every start of the study.

    Args:
        seed: of the draws.
        named: Ray's own settings.
    """

    def __init__(self, seed: int, **named: Any) -> None:
        super().__init__(**named)
        self._seed = seed

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        super().on_trial_add(tune_controller, trial)
        weights = np.exp([len(bracket._rungs) for bracket in self._brackets])  # Ray's: fewer for the patient ones
        drawn = np.random.default_rng([self._seed, trial.config["number"]])
        self._trial_info[trial.trial_id] = self._brackets[drawn.choice(len(weights), p=weights / weights.sum())]


class PopulationTraining(PopulationBasedTraining):
    """Ray's population-based training for proposals of a search.

    Args:
        draw: a new value, by key that is perturbed.
        keep: perturbed overrides, brought back into the search space.
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
        """Ray refuses any searcher here, since it would learn from values that were changed since; `Search` is told of
        a population's trials by their last values, which is why it should draw at random."""
        before = self._trial_state.get(trial)
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)  # type: ignore[arg-type]
        if before is not None:  # it starts again
            self._trial_state[trial] = before

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The donor's perturbed values under the trial's own number."""
        donor, operations = super()._get_new_config(trial, trial_to_clone)
        return {**trial.config, "overrides": self._keep(donor["overrides"])}, operations
