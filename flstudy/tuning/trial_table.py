"""Table of a study's trials, kept in the driver from Ray Tune's reports: on disk, on the terminal, in memory."""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from flstudy.config.credentials import censored
from flstudy.study import BestTrial, Status, StudyFolder, Trial, best_trials
from flstudy.study.best import rank_trials
from flstudy.study.objectives import objective_values, violations, worst_value
from flstudy.tracking.store import Store, one_line
from flstudy.tracking.sync import Delivery, sync_study
from flstudy.tuning.files import LEFT
from flstudy.tuning.leader import Lead
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.proposals import Proposal, algorithm_of, trial_of
from flstudy.tuning.shortage import MEMORY, remedy, shortage
from flstudy.tuning.stop_signal import StopSignal

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.tuning.search import Search

log = logging.getLogger(__name__)

_GRACE_S = 10.0  # for trials to end their rounds; Slurm kills 30 s after its SIGTERM, and Ray and MLflow end after them


class TrialTable:
    """Table of all trials of a study.

    Args:
        config: the study's.
        folder: gets their records.
        progress: shows them.
        past: the trials of a resumed study; those that are not over are started again.

    Attributes:
        hopeless: reason why the study has stopped by itself, or came to nothing; None as long as it goes on.
        failed: whether its trials are that reason.
    """

    def __init__(
        self, config: "Config", folder: StudyFolder, progress: StudyProgress, past: Sequence[Trial] = ()
    ) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._by_number = {trial.number: trial for trial in past}
        self._lead = Lead(folder, config.study.objective)
        self._losses: Counter[int] = Counter()  # workers that died, by trial
        self._failures = dict[int, Trial]()  # of this start, by number: the user has mended those of earlier ones
        self.hopeless: str | None = None
        self.failed = False
        self._unwritten = False  # a line, since the disk did not take it
        for trial in past:
            if trial.is_over:
                progress.resume(trial)
        if past:
            self._write()  # a kill may have cut the last line off

    @property
    def trials(self) -> list[Trial]:
        """The trials by number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def best(self) -> tuple[BestTrial, ...]:
        """The best trial of each algorithm that has one, best first."""
        return best_trials(self.trials, self._config.study.objective, self._config.rounds)

    @property
    def hung_message(self) -> str:
        """The sentence about a trial that hung, since one of its rounds took too long."""
        seconds = self._config.study.failures.round_timeout_s
        return f"the trial hung: no round ended within study.failures.round_timeout_s = {seconds:g} s"

    @property
    def starved(self) -> list[Trial]:
        """The trials for which memory did not suffice."""
        return [trial for trial in self.trials if trial.status is Status.INTERRUPTED and trial.reason == MEMORY]

    # ---- what the search asks ----------------------------------------------------------------------------------------

    def is_exhausted(self) -> bool:
        """Return whether the budget leaves no room for another trial; trials under way count with all their rounds."""
        budget, whole = self._config.study.budget, self._config.rounds
        if budget.hours is not None and self._folder.spent_s() >= 3600 * budget.hours:
            return True
        if budget.rounds is None:
            return False
        return (
            sum(trial.rounds if trial.is_over else whole for trial in self._trials_of_search()) + whole > budget.rounds
        )

    def rounds(self, algorithm: str | None = None) -> int:
        """Return the rounds that trials of the search have done."""
        return sum(trial.rounds for trial in self._trials_of_search() if algorithm in (None, trial.algorithm))

    def winners(self) -> list[Trial]:
        """Return the best trials of each algorithm that are to be confirmed, best first."""
        return self._leaders(self._config.study.confirm.top)

    def _leaders(self, top: int) -> list[Trial]:
        """Return the best trials of each algorithm, of those with one configuration the first."""
        leaders = list[Trial]()
        for trial in rank_trials(self.trials, self._config.study.objective, self._config.rounds):
            ahead = [leader.configuration for leader in leaders if leader.algorithm == trial.algorithm]
            if len(ahead) < top and trial.configuration not in ahead:
                leaders.append(trial)
        return leaders

    def _trials_of_search(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.is_confirmation]

    # ---- what Ray reports --------------------------------------------------------------------------------------------

    def propose(self, proposal: Proposal) -> Trial:
        """Add a trial, which is on disk from its proposal on: after a kill of the driver its search is repeated."""
        trial = Trial(algorithm=algorithm_of(self._config, proposal["overrides"]), **proposal)
        self._by_number[trial.number] = trial
        self._write(trial)
        return trial

    def repeat(self, number: int, repeat: dict[str, int]) -> None:
        """Note that the search proposed a trial's configuration again."""
        trial = self._by_number[number]
        trial.repeats.append(repeat)
        self._write(trial)

    def ensure_started(self, proposal: Proposal, *, anew: bool = False) -> Trial:
        """Return the trial of a proposal, noted as started; ``anew``: a worker starts it now."""
        number, overrides = proposal["number"], proposal["overrides"]
        trial = self._by_number.get(number) or self.propose(proposal)
        if trial.started is None:
            trial.started = time.time()
            self._progress.update(trial)
            self._write(trial)
        if trial.status is Status.INTERRUPTED:
            trial.status = Status.RUNNING
        if anew:
            trial.attempts += 1
            trial.synced = False  # until the study's end asks MLflow
        if trial.overrides != overrides:  # a population has exchanged them
            trial.lineage.append({"rounds": trial.rounds, "overrides": trial.overrides})
            trial.overrides = overrides
            self._write(trial)
        return trial

    def note_loss(self, proposal: Proposal, reason: str) -> bool:
        """Take in that a trial's worker died, and return whether the trial may start again."""
        trial, number = self.ensure_started(proposal), proposal["number"]
        if LEFT in reason:
            trial.error = LEFT
        else:
            trial.error = reason
            self._losses[number] += 1
        may_restart = self._losses[number] <= self._config.study.failures.retries
        if may_restart:
            self._progress.say(f"trial {number} starts again: {trial.reason}")
        return may_restart

    def report(self, proposal: Proposal, result: dict[str, Any]) -> None:
        """Take in a worker's report of a trial that goes on or ends; Ray's own end of a worker has no trial in it."""
        if "trial" not in result:
            return
        trial, latest = self.ensure_started(proposal), trial_of(result)
        trial.objective, trial.rounds = latest.objective, latest.rounds
        trial.metrics, trial.error, trial.deployed = latest.metrics, latest.error, latest.deployed
        trial.run_id = latest.run_id or trial.run_id
        self._progress.update(trial)

    def end(self, proposal: Proposal, result: dict[str, Any] | None, *, error: str | None = None) -> None:
        """Take in that a trial is over; without an end of its own, a scheduler stopped it, or its worker died."""
        trial, study = self.ensure_started(proposal), self._config.study
        if error is not None:
            trial.status, trial.error, trial.objective = Status.FAILED, error, worst_value(study.objective)
            if trial.reason == MEMORY:
                trial.status = Status.INTERRUPTED
        else:
            latest = Status((result or {}).get("status", Status.RUNNING))
            trial.status = Status.PRUNED if latest is Status.RUNNING else latest
        if trial.status is Status.INTERRUPTED:
            self._note_interruption(trial)
            return
        trial.values = objective_values(study, trial.objective, trial.metrics, broken=trial.is_broken)
        bound = not trial.is_broken and trial.status is not Status.PRUNED
        trial.feasible = not bound or max(violations(study, trial.metrics), default=0.0) <= 0.0
        # The order of ends is that in which the search heard of them, whatever the clock does.
        latest_end = max((other.ended or 0.0 for other in self.trials), default=0.0)
        trial.ended = max(time.time(), math.nextafter(latest_end, math.inf))
        self._give_up_if_too_many_fail(trial)
        if trial.status is Status.FINISHED and not trial.is_confirmation:
            self._progress.lead = self._lead.sentence(self.best)
        self._progress.update(trial)
        if self._write(trial):
            # As long as the best trial may still change by its confirmation, the models of all that are confirmed stay.
            self._tidy(self._leaders(study.confirm.top if study.confirm.seeds else 1))

    def _note_interruption(self, trial: Trial) -> None:
        """Take in a trial that stopped with its study, or by a shortage of the machine: it is to be run again."""
        if trial.error and trial.reason != MEMORY:
            self.halt(trial.reason)
        self._give_up_if_too_many_fail(trial)
        self._progress.update(trial)
        self._write(trial)

    def _give_up_if_too_many_fail(self, ended: Trial) -> None:
        if ended.status is Status.FAILED or ended in self.starved:
            self._failures[ended.number] = ended
        most = self._config.study.failures.most
        if most is not None and len(self._failures) >= most:
            self._fail(f"{len(self._failures)} trials failed (study.failures.most)", self._failures.values())

    def _fail_if_nothing_came_out(self) -> None:
        """Fail a study whose trials all failed, but for those that diverged."""
        trials = self._trials_of_search()
        failed = [trial for trial in trials if trial.status is Status.FAILED]
        if failed and all(trial.is_broken for trial in trials):
            diverged = len(trials) - len(failed)
            rest = f" and {diverged} diverged" if diverged else ""
            self._fail(f"{len(failed)} of {len(trials)} trials failed{rest}", failed)

    def _fail(self, sentence: str, failures: Iterable[Trial]) -> None:
        first = min(failures, key=lambda trial: trial.number)
        if self.hopeless is None:
            self.failed = True
            self.hopeless = f"{sentence}, trial {first.number} with: {first.reason or 'no known reason'}"

    def _tidy(self, keepers: Sequence[Trial]) -> None:
        """Drop the snapshots of trials that are over, and all models but those of ``keepers``."""
        for trial in self.trials:
            if trial.is_over:
                self._folder.drop_snapshot(trial.number)
                if trial not in keepers:
                    self._folder.model(trial.number).unlink(missing_ok=True)
                    self._folder.by_device(trial.number).unlink(missing_ok=True)

    # ---- the disk ----------------------------------------------------------------------------------------------------

    def halt(self, sentence: str) -> None:
        """Stop the study, whose disk failed it."""
        self.stop(f"{sentence}: {remedy(sentence)}, then flstudy tune --resume {self._folder.name_or_uri}")

    def stop(self, reason: str) -> None:
        """Stop the study; the first reason stays."""
        self.hopeless = self.hopeless or reason

    def try_writing(self, write: Callable[[], Any]) -> bool:
        """Try to write to the study's folder, and return whether that succeeded; a shortage halts the study.

        Raises:
            OSError: for any other reason.
        """
        try:
            write()
        except OSError as error:
            sentence = shortage(error, self._folder.path)
            if sentence is None:
                raise
            self.halt(sentence)
            return False
        return True

    def _write(self, trial: Trial | None = None) -> bool:
        """Write a trial's line, or the lines of all where one is missing; returns whether the disk has them all."""
        if trial is None or self._unwritten:
            done = self.try_writing(lambda: self._folder.write_trials(self.trials))
        else:
            done = self.try_writing(lambda: self._folder.write_trial(trial))
        self._unwritten = not done
        return done

    def close(self, *, complete: bool) -> None:
        """Write the end of the trials that could not report it themselves.

        Args:
            complete: whether the study is done; the only models that stay are then those of the best trials.
        """
        for trial in self.trials:
            if trial.status is Status.RUNNING:
                trial.status = Status.INTERRUPTED
        self._fail_if_nothing_came_out()
        if self._write() or (self.try_writing(self._folder.remove_unfinished_files) and self._write()):
            self.try_writing(lambda: self._tidy([winner.trial for winner in self.best] if complete else self.trials))

    def deliver(self, store: Store) -> Delivery | None:
        """Give MLflow the parts of the study that it lacks; returns None if it went away."""
        try:
            delivery = sync_study(self._folder, store)
        except Exception as error:  # the folder has it all: a store that went away must not lose the study
            log.warning("MLflow has not got all of the study: %s", one_line(error))
            return None
        for trial in self.trials:
            trial.synced, trial.run_id = trial.number not in delivery.incomplete, delivery.run_ids[trial.number]
        return delivery


class RayEvents(tune.Callback):
    """Ray Tune's callbacks, translated for the table of trials.

    Ray pickles callbacks and stoppers for a restore that flstudy does not use; locks and terminals stay behind.
    """

    def __init__(
        self, table: TrialTable, search: "Search", stop_signal: StopSignal, on_start: Callable[[], object], writer: Any
    ) -> None:
        self._table, self._search, self._stop_signal, self._on_start = table, search, stop_signal, on_start
        self._writer = writer
        self.at_work: set[int] = set()  # trials, by number

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **named: Any) -> None:
        """Call ``on_start`` when Ray's loop has begun."""
        if iteration == 0:
            self._on_start()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self.at_work.add(trial.config["number"])
        self._table.ensure_started(trial.config, anew=True)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **named: Any
    ) -> None:
        self._table.report(trial.config, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self.at_work.discard(trial.config["number"])
        stopped = trial.last_result.get("status", Status.RUNNING) == Status.RUNNING
        if not (stopped and self._stop_signal.is_sent):  # else the table calls it interrupted when it closes
            self._table.end(trial.config, trial.last_result)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Take in that a trial's worker died; Ray starts the trial again."""
        self.at_work.discard(trial.config["number"])
        self._table.note_loss(trial.config, self._reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Take in that a trial's worker died, and Ray gave up: for good, or since the worker died before it started."""
        self.at_work.discard(trial.config["number"])
        reason = self._reason(trial)
        may_restart = self._table.note_loss(trial.config, reason)
        if not may_restart and not self._stop_signal.is_sent:  # a signal to all processes of a job ends workers, too
            self._table.end(trial.config, trial.last_result, error=reason)
        self._search.settle_loss(trial.config["number"], restart=may_restart and not self._stop_signal.is_sent)

    def _reason(self, trial: Any) -> str:
        """Return the reason why a trial's worker died; the trial hung, if it left the stacks of its threads behind."""
        try:
            stacks = ray.get(self._writer.read_stacks.remote(trial.config["number"]), timeout=_GRACE_S)
        except ray.exceptions.RayError:  # the writer was killed, too
            stacks = ""
        if not stacks:
            return _loss(trial)
        return f"{stacks}\n{self._table.hung_message}"


class StopOnInterrupt(tune.Stopper):
    """Stopper of the study once the user has asked for it, too many trials failed, or its disk did.

    Trials stop by themselves when the stop signal is sent; Ray stops those whose rounds take too long for that.
    """

    def __init__(self, table: TrialTable, stop_signal: StopSignal, events: RayEvents) -> None:
        self._table, self._stop_signal, self._events = table, stop_signal, events

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if self._table.hopeless is not None:
            self._stop_signal.send()
        return self._stop_signal.is_sent and (not self._events.at_work or self._stop_signal.sent_s > _GRACE_S)


def _loss(trial: Any) -> str:
    """Return the reason why Ray gave a trial up: its worker died, or could not be started; its last line is a
    sentence."""
    try:
        text = censored(Path(trial.error_file).read_text())
    except (OSError, TypeError):
        return "the worker was lost without a word"
    detail = text.partition("\n")[2].strip()  # after 'Failure # 1'
    if "OutOfMemoryError" in detail or "running low on memory" in detail:  # Ray's monitor ended it
        return f"{detail}\n{MEMORY}"
    raised = re.findall(r"^\w[\w.]*(?:Error|Exception): .+", detail, re.MULTILINE)
    if raised:  # in starting the worker, most often an import
        return f"{detail}\n{raised[-1]}"
    return f"{detail}\nthe worker process died: out of memory, killed, or a crash in native code"
