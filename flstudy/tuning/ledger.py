"""The list of a study's trials, kept in the driver from what Ray Tune tells."""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flstudy.tracking.mlflow import told_error
from flstudy.tuning.folder import StudyFolder, TrialSummary
from flstudy.tuning.progress import Progress
from flstudy.tuning.trial import algorithm_of, worst
from flstudy.tuning.worker import Assignment

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
        trial.run_id = result["run_id"] or trial.run_id
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

    def close(self, assignment: Assignment) -> None:
        """Say of the trials that could not say it themselves how they ended, here and in MLflow."""
        for trial in self.trials:
            if trial.status == "running":
                trial.status = "interrupted"
        self._folder.write_trials(self.trials)
        try:
            for trial in self.trials:
                self._close_run(assignment, trial)
        except Exception as error:  # the folder has it all: a store that went away must not lose the study
            log.warning("MLflow did not take the ends of some trials: %s", error)
        self._folder.write_trials(self.trials)

    def _close_run(self, assignment: Assignment, trial: TrialSummary) -> None:
        if trial.run_id is not None and trial.status in ("finished", "diverged"):
            return  # its worker has done it
        store, tracker = assignment.store, assignment.tracker(trial.trial, trial.overrides)
        status = {"failed": "FAILED", "interrupted": "KILLED"}.get(trial.status, "FINISHED")
        tags = {trial.status: "true", "rounds": str(trial.rounds)}
        run = store.find(tracker.key)
        if run is None:  # the worker died before it could open one
            tracker.start(params=trial.overrides, tags={}, seeds=())
            tracker.finish(status, tags=tags, error=trial.error)
            trial.run_id = tracker.run_id
            return
        trial.run_id = run.info.run_id
        if trial.status == "interrupted":
            tags["pruned"] = "false"  # its worker took it for the scheduler's stop
        elif run.info.status != "RUNNING":
            return  # its worker has done it
        store.end(trial.run_id, status, {**tags, **told_error(trial.error)})
