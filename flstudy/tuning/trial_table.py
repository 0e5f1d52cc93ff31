"""The table of a study's trials, kept in the driver from what Ray Tune reports: on disk, on the terminal, in memory."""

import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from flstudy.config.credentials import censored
from flstudy.study import BestTrial, Status, StudyFolder, Trial, best_trials
from flstudy.study.best import ranked
from flstudy.study.objectives import objective_values, violations, worst_value
from flstudy.tracking.store import Store, one_line
from flstudy.tracking.sync import sync_study
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.proposals import Proposal, algorithm_of, reported

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.tuning.search import Search

log = logging.getLogger(__name__)


class TrialTable:
    """All trials of a study.

    Args:
        config: the study's.
        folder: where they are written.
        progress: where they are shown.
        past: the trials of a resumed study; those that are not over are started again.

    Attributes:
        hopeless: why the study has stopped by itself; None as long as it goes on.
    """

    def __init__(
        self, config: "Config", folder: StudyFolder, progress: StudyProgress, past: Sequence[Trial] = ()
    ) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._by_number = {trial.number: trial for trial in past}
        self._losses: Counter[int] = Counter()  # workers that died, by trial
        self.hopeless: str | None = None
        for trial in past:
            if trial.is_over:
                progress.resume(trial)
        if past:
            folder.write_trials(self.trials)  # a kill may have cut the last line off

    @property
    def trials(self) -> list[Trial]:
        """By number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def best(self) -> tuple[BestTrial, ...]:
        """The best trial of each algorithm that has one, best first."""
        return best_trials(self.trials, self._config.study.objective, self._config.rounds)

    # ---- what the search asks ----------------------------------------------------------------------------------------

    def exhausted(self) -> bool:
        """Whether the budget is spent: rounds that trials under way have still to do count as done."""
        budget, whole = self._config.study.budget, self._config.rounds
        if budget.hours is not None and self._folder.spent_s() >= 3600 * budget.hours:
            return True
        if budget.rounds is None:
            return False
        return sum(trial.rounds if trial.is_over else whole for trial in self._searched()) + whole > budget.rounds

    def rounds(self, algorithm: str | None = None) -> int:
        """Rounds that trials of the search have done."""
        return sum(trial.rounds for trial in self._searched() if algorithm in (None, trial.algorithm))

    def winners(self) -> list[Trial]:
        """The best trials of each algorithm that are to be confirmed, best first."""
        return self._leaders(self._config.study.confirm.top)

    def _leaders(self, top: int) -> list[Trial]:
        chosen, found = Counter[str](), []
        for trial in ranked(self.trials, self._config.study.objective, self._config.rounds):
            chosen[trial.algorithm] += 1
            if chosen[trial.algorithm] <= top:
                found.append(trial)
        return found

    def _searched(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.is_confirmation]

    # ---- what Ray reports --------------------------------------------------------------------------------------------

    def propose(self, proposal: Proposal) -> Trial:
        """A trial, known and on disk from its proposal on: a search whose driver is killed is repeated from there."""
        trial = Trial(algorithm=algorithm_of(self._config, proposal["overrides"]), **proposal)
        self._by_number[trial.number] = trial
        self._folder.write_trial(trial)
        return trial

    def started(self, proposal: Proposal, *, anew: bool = False) -> Trial:
        """The trial of a proposal; ``anew``: a worker starts it."""
        number, overrides = proposal["number"], proposal["overrides"]
        trial = self._by_number.get(number) or self.propose(proposal)
        if trial.started is None:
            trial.started = time.time()
            self._progress.update(trial)
            self._folder.write_trial(trial)
        if trial.status is Status.INTERRUPTED:
            trial.status = Status.RUNNING
        trial.attempts += anew
        if trial.overrides != overrides:  # a population has exchanged them
            trial.lineage.append({"rounds": trial.rounds, "overrides": trial.overrides})
            trial.overrides = overrides
            self._folder.write_trial(trial)
        return trial

    def lost(self, proposal: Proposal, reason: str) -> bool:
        """The trial's worker died: whether it may start again."""
        trial, number = self.started(proposal), proposal["number"]
        self._losses[number] += 1
        again = self._losses[number] <= self._config.study.failures.retries
        trial.error = reason
        if again:
            self._progress.say(f"trial {number} starts again: {trial.reason}")
        return again

    def hung(self, proposal: Proposal) -> str | None:
        """Where the trial's threads stood, if a round took too long."""
        path = self._folder.hung(proposal["number"])
        text = path.read_text() if path.exists() else ""
        if not text:
            return None
        path.unlink()
        seconds = self._config.study.failures.round_timeout_s
        return f"{text}\nthe trial hung: no round ended within study.failures.round_timeout_s = {seconds:g} s"

    def report(self, proposal: Proposal, result: dict[str, Any]) -> None:
        """A worker's report of a trial that goes on, or of its end."""
        trial, latest = self.started(proposal), reported(result)
        trial.objective, trial.rounds = latest.objective, latest.rounds
        trial.metrics, trial.error = latest.metrics, latest.error
        trial.run_id, trial.synced = latest.run_id or trial.run_id, latest.synced
        self._progress.update(trial)

    def end(self, proposal: Proposal, result: dict[str, Any] | None, *, error: str | None = None) -> None:
        """A trial is over; without an end of its own, a scheduler stopped it, or its worker died."""
        trial, study = self.started(proposal), self._config.study
        if error is not None:
            trial.status, trial.error, trial.objective = Status.FAILED, error, worst_value(study.objective)
        else:
            latest = Status((result or {}).get("status", Status.RUNNING))
            trial.status = Status.PRUNED if latest is Status.RUNNING else latest
        trial.values = objective_values(study, trial.objective, trial.metrics, broken=trial.is_broken)
        bound = not trial.is_broken and trial.status is not Status.PRUNED
        trial.feasible = not bound or max(violations(study, trial.metrics), default=0.0) <= 0.0
        # The order of ends is that in which the search heard of them, whatever the clock does.
        latest_end = max((other.ended or 0.0 for other in self.trials), default=0.0)
        trial.ended = max(time.time(), math.nextafter(latest_end, math.inf))
        failed = [other for other in self.trials if other.status is Status.FAILED]
        if study.failures.most is not None and len(failed) >= study.failures.most:
            last = failed[-1].reason or "for no known reason"
            self.hopeless = f"{len(failed)} trials failed (study.failures.most), trial {failed[-1].number} with: {last}"
        self._folder.snapshot(trial.number).unlink(missing_ok=True)
        self._progress.update(trial)
        self._folder.write_trial(trial)
        # As long as the best trial may still change by its confirmation, the models of all that are confirmed stay.
        self._keep_models(self._leaders(study.confirm.top if study.confirm.seeds else 1))

    def _keep_models(self, kept: Sequence[Trial]) -> None:
        for trial in self.trials:
            if trial.is_over and trial not in kept:
                self._folder.model(trial.number).unlink(missing_ok=True)

    def close(self, *, complete: bool) -> None:
        """Write how the trials ended that could not say it themselves.

        Args:
            complete: whether the study is done; the only models that stay are then those of the best trials.
        """
        for trial in self.trials:
            if trial.status is Status.RUNNING:
                trial.status = Status.INTERRUPTED
            if trial.status in (Status.PRUNED, Status.INTERRUPTED):
                trial.synced = False  # perhaps: such a worker has no last word here
        self._folder.write_trials(self.trials)
        if complete:
            self._keep_models([one.trial for one in self.best])

    def deliver(self, store: Store) -> bool:
        """Give MLflow what it has missed of the study; returns whether it has all of it now."""
        try:
            runs = sync_study(self._folder, store).run_ids
        except Exception as error:  # the folder has it all: a store that went away must not lose the study
            log.warning("MLflow has not got all of the study: %s", one_line(error))
            return False
        for trial in self.trials:
            trial.synced, trial.run_id = True, runs[trial.number]
        return True


class RayEvents(tune.Callback):
    """Ray Tune's callbacks, translated for the table of trials.

    Ray pickles callbacks and stoppers for a restore that flstudy does not use; locks and terminals stay behind.
    """

    def __init__(self, table: TrialTable, search: "Search", interrupt: threading.Event) -> None:
        self._table, self._search, self._interrupt = table, search, interrupt

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self._table.started(trial.config, anew=True)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **named: Any
    ) -> None:
        self._table.report(trial.config, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        stopped = trial.last_result.get("status", Status.RUNNING) == Status.RUNNING
        if not (stopped and self._interrupt.is_set()):  # else the table calls it interrupted when it closes
            self._table.end(trial.config, trial.last_result)
        self._stop_if_hopeless()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Its worker died; Ray starts it again."""
        self._table.lost(trial.config, self._reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Its worker died, and Ray has given up: for good, or because the worker died before it could start."""
        reason = self._reason(trial)
        again = self._table.lost(trial.config, reason) and not self._interrupt.is_set()
        if not again:
            self._table.end(trial.config, trial.last_result, error=reason)
        self._search.lost(trial.config["number"], again=again)
        self._stop_if_hopeless()

    def _reason(self, trial: Any) -> str:
        return self._table.hung(trial.config) or _loss(trial)

    def _stop_if_hopeless(self) -> None:
        if self._table.hopeless is not None:
            self._interrupt.set()


class StopOnInterrupt(tune.Stopper):
    """Stops all trials once the user has asked for it, or too many of them failed."""

    def __init__(self, interrupt: threading.Event) -> None:
        self._interrupt = interrupt

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._interrupt.is_set()


def _loss(trial: Any) -> str:
    """Why Ray gave a trial up: its worker died, or could not be started; the last line says it in a sentence."""
    try:
        text = censored(Path(trial.error_file).read_text())
    except (OSError, TypeError):
        return "the worker was lost without a word"
    detail = text.partition("\n")[2].strip()  # after 'Failure # 1'
    raised = re.findall(r"^\w[\w.]*(?:Error|Exception): .+", detail, re.MULTILINE)
    if raised:  # in starting the worker, most often an import
        return f"{detail}\n{raised[-1]}"
    return f"{detail}\nthe worker process died: out of memory, killed, or a crash in native code"
