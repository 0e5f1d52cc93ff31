"""The list of a study's trials, kept in the driver from what Ray Tune tells."""

import json
import logging
from typing import TYPE_CHECKING, Any

from flstudy.tracking.mlflow import STUDY_ID, TRIAL
from flstudy.tuning.folder import StudyFolder, TrialSummary
from flstudy.tuning.progress import Progress
from flstudy.tuning.trial import worst
from flstudy.tuning.worker import Assignment

if TYPE_CHECKING:
    from flstudy.config import Config

log = logging.getLogger(__name__)


class Ledger:
    """Keeps the list of trials from what Ray Tune tells, on disk and on the terminal."""

    def __init__(self, config: "Config", folder: StudyFolder, progress: Progress) -> None:
        self._objective, self._folder, self._progress = config.study.objective, folder, progress
        self._algorithm = config.tags().get("algorithm", "")
        self._by_number: dict[int, TrialSummary] = {}

    @property
    def trials(self) -> list[TrialSummary]:
        return [self._by_number[number] for number in sorted(self._by_number)]

    def started(self, proposed: dict[str, Any]) -> TrialSummary:
        number, overrides = proposed["number"], proposed["overrides"]
        if number not in self._by_number:
            chosen = overrides.get("algorithm", self._algorithm)
            chosen = chosen.get("class_path", chosen) if isinstance(chosen, dict) else chosen
            summary = TrialSummary(trial=number, algorithm=str(chosen).rsplit(".", 1)[-1], overrides=overrides)
            self._by_number[number] = summary
            self._progress.update(summary)
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
            trial.status, trial.error, trial.objective = "failed", error, worst(self._objective)
        else:
            trial.status = "pruned" if told == "running" else told
        self._progress.update(trial)
        self._folder.write_trials(self.trials)

    def close(self, assignment: Assignment) -> None:
        """Say of the trials that could not say it themselves how they ended, here and in MLflow."""
        for trial in self.trials:
            if trial.status == "running":
                trial.status = "interrupted"
        self._folder.write_trials(self.trials)
        store = assignment.store
        try:
            for trial in self.trials:
                if trial.run_id is None or trial.status in ("failed", "interrupted"):
                    run = store.find({STUDY_ID: assignment.study_id, TRIAL: str(trial.trial)})
                    trial.run_id = None if run is None else run.info.run_id
                    if run is not None and trial.status == "interrupted":
                        store.end(run.info.run_id, "KILLED", {"interrupted": "true", "pruned": "false"})
                    elif run is not None and trial.status == "failed" and run.info.status == "RUNNING":
                        last = (trial.error or "the worker died").strip().splitlines()[-1]
                        store.end(run.info.run_id, "FAILED", {"failed": "true", "error": last[:5000]})
        except Exception as error:  # the folder has it all: a store that went away must not lose the study
            log.warning("MLflow did not take the ends of some trials: %s", error)
        self._folder.write_trials(self.trials)
