"""The list of a study's trials, kept in the driver from what Ray Tune tells."""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flstudy.tracking.mlflow import StudyRun
from flstudy.tracking.sync import sync
from flstudy.tuning.folder import StudyFolder, TrialSummary
from flstudy.tuning.progress import Progress
from flstudy.tuning.trial import algorithm_of, worst

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
        for trial in past:
            if trial.ended:
                progress.resume(trial)

    @property
    def trials(self) -> list[TrialSummary]:
        return [self._by_number[number] for number in sorted(self._by_number)]

    def started(self, proposed: dict[str, Any]) -> TrialSummary:
        number, overrides = proposed["number"], proposed["overrides"]
        if number in self._by_number and self._by_number[number].status == "interrupted":
            self._by_number[number].status = "running"
        if number not in self._by_number:
            algorithm = algorithm_of(self._config, overrides)
            summary = TrialSummary(trial=number, algorithm=algorithm, overrides=overrides)
            self._by_number[number] = summary
            self._progress.update(summary)
            self._folder.write_trial(summary)  # with its values, should the driver be killed
        return self._by_number[number]

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
            trial.status, trial.error, trial.objective = "failed", error, worst(self._config.study.objective)
        else:
            trial.status = "pruned" if told == "running" else told
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
            runs = sync(self._folder.path, run.store).run_ids
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
