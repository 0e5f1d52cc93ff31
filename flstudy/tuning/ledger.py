"""The list of a study's trials, kept in the driver from what Ray Tune tells."""

import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flstudy.study.objectives import objective_values, violations, worst_value
from flstudy.tracking.runs import StudyRun
from flstudy.tracking.sync import sync_study
from flstudy.tuning.folder import StudyFolder, TrialSummary
from flstudy.tuning.progress import Progress
from flstudy.tuning.trial import algorithm_of

if TYPE_CHECKING:
    from flstudy.config import Config

log = logging.getLogger(__name__)


class Ledger:
    """Keeps the list of trials from what Ray Tune tells, on disk and on the terminal."""

    def __init__(
        self, config: "Config", folder: StudyFolder, progress: Progress, past: Sequence[TrialSummary] = ()
    ) -> None:
        """``past``: the trials of a resumed study; those that did not end are started again."""
        self._config, self._folder, self._progress = config, folder, progress
        self._by_number = {trial.trial: trial for trial in past}
        self._losses: Counter[int] = Counter()  # workers that died, by trial
        self.hopeless: str | None = None  # why the study has stopped
        for trial in past:
            if trial.ended:
                progress.resume(trial)
        if past:
            folder.write_trials(self.trials)  # a kill may have cut the last line off

    @property
    def trials(self) -> list[TrialSummary]:
        return [self._by_number[number] for number in sorted(self._by_number)]

    # ---- what the search asks ----------------------------------------------------------------------------------------

    def exhausted(self) -> bool:
        """Whether the budget is spent: rounds that trials under way have still to do count as done."""
        budget, whole = self._config.study.budget, self._config.rounds
        if budget.hours is not None and self._folder.spent_s() >= 3600 * budget.hours:
            return True
        if budget.rounds is None:
            return False
        return sum(trial.rounds if trial.ended else whole for trial in self._search_trials()) + whole > budget.rounds

    def rounds(self, algorithm: str | None = None) -> int:
        """Rounds that trials of the search have done."""
        return sum(trial.rounds for trial in self._search_trials() if algorithm in (None, trial.algorithm))

    def winners(self) -> list[TrialSummary]:
        """The best trials of each algorithm that did all rounds, best first."""
        study, chosen = self._config.study, Counter[str]()
        sign = -1 if study.objective.mode == "max" else 1
        whole = [t for t in self._search_trials() if t.status == "finished" and t.counts]
        found = []
        for trial in sorted(whole, key=lambda trial: (sign * (trial.objective or 0.0), trial.trial)):
            chosen[trial.algorithm] += 1
            if chosen[trial.algorithm] <= study.confirm.top:
                found.append(trial)
        return found

    def _search_trials(self) -> list[TrialSummary]:
        return [trial for trial in self.trials if trial.stage == "search"]

    # ---- what Ray tells ----------------------------------------------------------------------------------------------

    def started(self, proposed: dict[str, Any], *, anew: bool = False) -> TrialSummary:
        """The trial of a proposal; ``anew``: a worker starts it."""
        number, overrides = proposed["number"], proposed["overrides"]
        if number in self._by_number and self._by_number[number].status == "interrupted":
            self._by_number[number].status = "running"
        if number not in self._by_number:
            algorithm = algorithm_of(self._config, overrides)
            summary = TrialSummary(trial=number, algorithm=algorithm, overrides=overrides, started=time.time())
            summary.stage, summary.of = proposed["stage"], proposed["of"]
            self._by_number[number] = summary
            self._progress.update(summary)
            self._folder.write_trial(summary)  # with its values, should the driver be killed
        trial = self._by_number[number]
        trial.attempts += anew
        if trial.overrides != overrides:  # a population has exchanged them
            trial.lineage.append({"rounds": trial.rounds, "overrides": trial.overrides})
            trial.overrides = overrides
            self._folder.write_trial(trial)
        return trial

    def lost(self, proposed: dict[str, Any], reason: str) -> bool:
        """The trial's worker died: whether it may start again."""
        trial, number = self.started(proposed), proposed["number"]
        self._losses[number] += 1
        again = self._losses[number] <= self._config.study.failures.retries
        if again:
            self._progress.say(f"trial {number} starts again: {reason.strip().splitlines()[-1]}")
        trial.error = reason
        return again

    def hung(self, proposed: dict[str, Any]) -> str | None:
        """Where the trial's threads stood, if a round took too long."""
        path = self._folder.hung(proposed["number"])
        text = path.read_text() if path.exists() else ""
        if not text:
            return None
        path.unlink()
        seconds = self._config.study.failures.round_timeout_s
        return f"{text}\nthe trial hung: no round ended within study.failures.round_timeout_s = {seconds:g} s"

    def reported(self, proposed: dict[str, Any], result: dict[str, Any]) -> TrialSummary:
        trial = self.started(proposed)
        trial.objective, trial.rounds = result["objective"], result["round"]
        trial.metrics, trial.error = json.loads(result["metrics"]), result["error"]
        trial.run_id, trial.synced = result["run_id"] or trial.run_id, result["synced"]
        self._progress.update(trial)
        return trial

    def ended(self, proposed: dict[str, Any], result: dict[str, Any] | None, *, error: str | None = None) -> None:
        """A trial is over; without an ending of its own, a scheduler stopped it, or its worker died."""
        trial = self.started(proposed)
        told = (result or {}).get("status", "running")
        if error is not None:
            trial.status, trial.error, trial.objective = "failed", error, worst_value(self._config.study.objective)
        else:
            trial.status = "pruned" if told == "running" else told
        study = self._config.study
        broken = trial.status in ("failed", "diverged")
        trial.values = objective_values(study, trial.objective or 0.0, trial.metrics, broken=broken)
        trial.feasible = broken or trial.status == "pruned" or max(violations(study, trial.metrics), default=0.0) <= 0.0
        trial.ended_at = time.time()
        failed = [other for other in self.trials if other.status == "failed"]
        if study.failures.most is not None and len(failed) >= study.failures.most:
            last = (failed[-1].error or "for no known reason").strip().splitlines()[-1]
            self.hopeless = f"{len(failed)} trials failed (study.failures.most), trial {failed[-1].trial} with: {last}"
        self._folder.snapshot(trial.trial).unlink(missing_ok=True)
        self._progress.update(trial)
        self._folder.write_trial(trial)
        self._keep_best(trial.algorithm)

    def _keep_best(self, algorithm: str) -> None:
        """Of an algorithm's models only the best trial's stays; confirmed trials come before those of the search."""
        objective = self._config.study.objective
        sign = 1 if objective.mode == "max" else -1
        kept = [
            trial for trial in self.trials if trial.algorithm == algorithm and self._folder.model(trial.trial).exists()
        ]
        ranked = sorted(
            kept,
            key=lambda trial: (trial.counts, trial.stage == "confirm", sign * (trial.objective or 0.0)),
            reverse=True,
        )
        for trial in ranked[0 if ranked and not ranked[0].counts else 1 :]:
            self._folder.model(trial.trial).unlink(missing_ok=True)

    def close(self) -> None:
        """Say in the folder of the trials that could not say it themselves how they ended."""
        for trial in self.trials:
            if trial.status == "running":
                trial.status = "interrupted"
            if trial.status in ("pruned", "interrupted"):
                trial.synced = False  # perhaps: such a worker has no last word here
        self._folder.write_trials(self.trials)

    def deliver(self, run: StudyRun) -> bool:
        """Tell MLflow what it has missed of the study, if anything; returns whether it has all of it now."""
        runs = {trial.trial: trial.run_id for trial in self.trials if trial.synced and trial.run_id is not None}
        try:
            if run.delivered and len(runs) == len(self.trials):
                self._log_models(run, runs)
                return True
            runs = sync_study(self._folder.path, run.store).run_ids
        except Exception as error:  # the folder has it all: a store that went away must not lose the study
            log.warning("MLflow has not got all of the study: %s", error)
            return False
        for trial in self.trials:
            trial.synced, trial.run_id = True, runs[trial.trial]
        return True

    def _log_models(self, run: StudyRun, runs: dict[int, str]) -> None:
        if any(self._folder.model(number).exists() for number in runs):
            from flstudy.tracking.models import log_models  # the engine, which stand-ins do without

            log_models(self._folder.path, run.store, runs)
