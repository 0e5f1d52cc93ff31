"""Early stopping among trials of one kind.

A scheduler that compares all trials with each other stops the algorithms that start slowly, whatever they would have
reached. With ``allocation: equal`` each algorithm's trials have a scheduler of their own, and confirmations have none.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule, PopulationBasedTraining, TrialScheduler

from flstudy.tuning.past import Past


class Alike(FIFOScheduler):
    """One scheduler for each kind of trial.

    Args:
        make: a scheduler, its properties set, for a kind's first proposal.
        kind: of a trial, by its proposal; None for one that nothing stops early.
    """

    def __init__(
        self,
        make: Callable[[dict[str, Any]], TrialScheduler],
        kind: Callable[[dict[str, Any]], str | None],
    ) -> None:
        super().__init__()
        self._make, self._kind = make, kind
        self._kinds: dict[str, TrialScheduler] = {}

    def _of(self, trial: Any) -> TrialScheduler | None:
        kind = self._kind(trial.config)
        if kind is None:
            return None
        if kind not in self._kinds:
            self._kinds[kind] = self._make(trial.config)
        return self._kinds[kind]

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """As every scheduler's."""
        own = self._of(trial)
        if own is not None:
            own.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """As every scheduler's."""
        own = self._of(trial)
        if own is not None:
            own.on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """As every scheduler's."""
        own = self._of(trial)
        return TrialScheduler.CONTINUE if own is None else own.on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """As every scheduler's."""
        own = self._of(trial)
        if own is not None:
            own.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """As every scheduler's."""
        own = self._of(trial)
        if own is not None:
            own.on_trial_remove(tune_controller, trial)

    def recall(self, trial: Past) -> None:
        """Learn what an earlier trial reported; what became of it was decided then."""
        own = self._of(trial)
        results = [{"round": round, "objective": value} for round, value in trial.told]
        if own is None or not results:
            return
        given: Any = trial
        if isinstance(own, MedianStoppingRule):
            for result in results:  # kept as they come; being told them while it ran would judge it again
                own.on_trial_complete(None, given, result)  # type: ignore[arg-type]
            return
        own.on_trial_add(None, given)  # type: ignore[arg-type]
        for result in results:
            own.on_trial_result(None, given, result)  # type: ignore[arg-type]
        own.on_trial_complete(None, given, results[-1])  # type: ignore[arg-type]

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The one that has come least far: of a population all are to meet at the same rounds."""
        waiting = [t for t in tune_controller.get_trials() if t.status in (Trial.PENDING, Trial.PAUSED)]
        return min(waiting, key=lambda trial: (trial.last_result or {}).get("round", 0), default=None)

    def debug_string(self) -> str:
        """As every scheduler's."""
        return "\n".join(f"{kind}: {own.debug_string()}" for kind, own in self._kinds.items())


class Population(PopulationBasedTraining):
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
