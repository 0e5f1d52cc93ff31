"""One trial of a study: a config with some values replaced, trained and watched, without Ray and MLflow."""

import contextlib
import faulthandler
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from flstudy.config import ConfigError, StopRun
from flstudy.config.credentials import censored
from flstudy.federation import Record
from flstudy.metrics.registry import replica_means
from flstudy.metrics.run_summary import RunSummary
from flstudy.recording import Recording
from flstudy.study import Status, Trial
from flstudy.study.device_results import write_device_results
from flstudy.study.folder import open_private
from flstudy.study.objectives import worst_value
from flstudy.study.records import RoundBuffer, RoundRecord
from flstudy.study.trial import traceback_of
from flstudy.tuning.files import LeftError, TrialFiles, Write
from flstudy.tuning.outbox import WriterLostError
from flstudy.tuning.shortage import shortage
from flstudy.tuning.stop_signal import Directive
from flstudy.user_error import UserError

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Coordinator

log = logging.getLogger(__name__)

Report = Callable[[Trial, Write | None], bool | None]
"""Function called after every round that measured the objective, and once more at the trial's end, with the trial and
the function that writes its state after its latest round; may return False to stop the trial."""


class Tracker(Protocol):
    """Tracker of a trial's rounds: MLflow by way of the study's writer, or none."""

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    def finish(self, trial: Trial, *, killed: bool = False) -> None: ...


def run_trial(
    config: "Config",
    trial: Trial,
    *,
    report: Report,
    files: TrialFiles | None = None,
    tracker: Tracker | None = None,
    resume: Path | None = None,
    watch: "HangWatch | None" = None,
) -> Trial:
    """Train ``config`` with the trial's overrides; never raises for an error of the training.

    Args:
        config: the study's.
        trial: its record; status, rounds, objective, metrics and error are kept up to date in place.
        report: called with the trial as it goes on.
        files: keep its rounds, its state and, once it has finished, the trained model of its first seed; they tell
            the study's directives.
        tracker: shows it.
        resume: a state to go on from in place of the files'.
        watch: gets a sign of life after every round.

    Returns:
        The same trial, over, or interrupted: by its study, or because the machine denied it something.

    Raises:
        WriterLostError: where the files are the study's writer's, and that is gone.
        LeftError: where its worker or its node ends; the snapshot of its latest round is kept.
    """
    watch, files = watch or HangWatch(None, Path()), files or TrialFiles()
    training = TrialTraining(config, trial, report, files, tracker, watch.beat)
    try:
        training.config = config.with_overrides(trial.overrides)
        training.open()
        with watch:
            coordinator = training.train(resume)
        if training.leaves:
            raise LeftError
        if trial.status is Status.FINISHED:
            training.keep(coordinator)
    except KeyboardInterrupt:
        training.close(killed=True)
        raise
    except (WriterLostError, LeftError):
        raise
    except Exception as error:
        trial.status, trial.error = Status.FAILED, censored(traceback_of(error))
        if sentence := shortage(error, files.folder):
            trial.status, trial.error = Status.INTERRUPTED, f"{trial.error}\n{sentence}"
    return training.end()


class TrialTraining:
    """Training of one trial, with its tracking, reports and snapshots."""

    def __init__(
        self,
        config: "Config",
        trial: Trial,
        report: Report,
        files: TrialFiles,
        tracker: Tracker | None,
        beat: Callable[[], None],
    ) -> None:
        self.config = config  # the study's own, should the overrides make none
        self.trial, self.report, self.files, self.tracker, self.beat = trial, report, files, tracker, beat
        self.directive = Directive.GO_ON  # of the driver, after the latest round
        self.objective = config.study.objective
        self.summary: RunSummary | None = None
        self.save: Write | None = None
        self.opened, self.resumed, self.leaves = False, False, False
        trial.status, trial.rounds, trial.objective = Status.RUNNING, 0, math.nan
        trial.metrics, trial.error = {}, None

    def open(self) -> None:
        """Begin to track the trial."""
        if self.tracker is not None and not self.opened:
            self.opened = True
            config = self.config
            params = config.hyper_parameters()
            self.tracker.start(params=params, tags=config.tags(), seeds=config.seeds, config=config.plain())

    def train(self, resume: Path | None) -> "Coordinator":
        """Train all rounds, or those until the trial is stopped."""
        config = self.config
        self.summary = RunSummary(config.drift_rounds(), config.rounds, config.session_rounds(), config.recovery)
        with contextlib.ExitStack() as stack:
            writer, state, damage = self.files.begin(config.seeds)
            if damage is not None:
                log.warning("trial %s starts anew: %s", self.trial.number, damage)
            self.recording = Recording(writer)
            snapshot_arguments: dict[str, Any] = {}
            if writer is not None:
                stack.enter_context(writer)
            if writer is not None and self.files.keeps_states:
                start = resume or state
                self.resumed = start is not None
                snapshots = Snapshots(writer, self.files, config.study.snapshot_s, lambda: self.directive)
                self.save = snapshots.save
                snapshot_arguments = {"callbacks": [snapshots], "resume": None if start is None else str(start)}
            coordinator = config.run(self.on_round, **snapshot_arguments)
            if coordinator is not None:  # stand-ins train none
                self.trial.deployed = coordinator.run.models.deployed
            self.on_end()
        if self.trial.status is Status.FINISHED and math.isnan(self.trial.objective):
            measured = self.trial.metrics
            if self.objective.metric in measured:
                raise UserError(
                    f"study.objective.metric: {self.objective.metric} was undefined in every evaluation: let more "
                    "devices have what it needs, or name another metric"
                )
            near = get_close_matches(self.objective.metric, measured, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(sorted(measured)) or 'none'}"
            raise ConfigError(
                f"study.objective.metric must be a metric that is measured, got {self.objective.metric!r}: {hint}"
            )
        if self.trial.status is Status.FINISHED and self.objective.selection_metric not in self.trial.metrics:
            raise self.objective.without_counterpart()
        return coordinator

    def keep(self, coordinator: "Coordinator | None") -> None:
        """Keep the trained model and its results on each device; a disk that is full then fails no trial that has all
        its rounds."""
        if coordinator is None:
            return
        run = coordinator.run
        for what, suffix, write in (
            ("trained model was", ".pt", run.saved_state.save_model),
            ("results by device were", ".parquet", lambda path: write_device_results(run.by_device(), path)),
        ):
            if suffix == ".parquet" and not run.has_measured_devices:  # such as after a resume at the end
                continue
            try:
                self.files.keep(suffix, write)
            except WriterLostError:
                raise
            except Exception as error:
                log.warning("the %s not kept: %s", what, error)

    def on_round(self, record: Record) -> None:
        """Take in a round that is over, its evaluation included."""
        self.beat()
        if self.resumed:
            self.resumed = False
            for earlier in self.files.earlier_rounds():
                if earlier.round < record.round:
                    self._take(earlier)
        self._take(record)
        self.recording.add(record)
        self.trial.rounds, metric = record.round, self.objective.metric
        self.directive = self.files.look() if record.round < self.config.rounds else Directive.GO_ON
        if (divergence := self.recording.note_divergence(record)) is not None:
            self.trial.status, self.trial.error = Status.DIVERGED, divergence
            raise StopRun(divergence)
        if metric in record.metrics and math.isfinite(self.trial.metrics[metric]):  # it may be undefined for a while
            self.trial.objective = self.trial.metrics[metric]
            # The last round is reported by `end`.
            if record.round < self.config.rounds and self.report(self.trial, self.save) is False:
                self.directive = self.files.look(closely=True)  # Ray stops the trials of a study that ends
                if self.directive is not Directive.STOP:
                    self.trial.status = Status.PRUNED
                    raise StopRun(f"stopped by the scheduler in round {record.round}")
        if self.directive is Directive.LEAVE:
            self.trial.status, self.leaves = Status.INTERRUPTED, True
            raise StopRun(f"leaves its worker in round {record.round}")
        if self.directive is Directive.STOP:
            self.trial.status = Status.INTERRUPTED
            raise StopRun(f"stopped with its study in round {record.round}")

    def on_end(self) -> None:
        """Take in the figures of the whole run, which are reported with its last round."""
        assert self.summary is not None
        if self.trial.status is not Status.RUNNING:
            return
        self.trial.status = Status.FINISHED
        if self.trial.rounds < self.config.rounds:
            return
        record = Record(self.trial.rounds, self.summary.figures())
        self._take(record)
        self.recording.add(record)
        metric = self.objective.metric
        if metric in record.metrics or math.isfinite(self.trial.objective):  # else it was undefined all the time
            value = self.trial.metrics[metric]  # after the last round, which an earlier one's does not replace
            self.trial.objective = value if math.isfinite(value) else worst_value(self.objective)

    def _take(self, record: RoundRecord) -> None:
        assert self.summary is not None
        self.summary.add(record.round, record.metrics)
        self.trial.metrics |= replica_means(record.metrics)

    def end(self) -> Trial:
        """Close the tracker, then make the last report, whose receiver may rely on the run being complete."""
        self.open()
        trial = self.trial
        if trial.is_broken:
            trial.objective = worst_value(self.objective)
        self.close()
        if trial.status is not Status.PRUNED:
            self.report(trial, self.save)
        return trial

    def close(self, *, killed: bool = False) -> None:
        """End the tracking."""
        if self.tracker is not None and self.opened:
            self.tracker.finish(self.trial, killed=killed)


class Snapshots(Checkpoint):
    """Snapshots of a running trial's latest state, each written after the records that led to it.

    Args:
        writer: of the trial's records.
        files: keep it.
        every_s: seconds between two snapshots; a trial that is shorter writes none.
        latest: function that returns the study's latest directive.
    """

    def __init__(self, writer: RoundBuffer, files: TrialFiles, every_s: float, latest: Callable[[], Directive]) -> None:
        self.writer, self.files, self.every_s, self.latest = writer, files, every_s, latest
        self._last = time.monotonic()
        self._trainer: L.Trainer | None = None

    def save(self, path: Path) -> None:
        """Write the state after the latest round to a path of the caller's."""
        assert self._trainer is not None
        self.writer.flush()
        self._trainer.save_checkpoint(path)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the trainer, whose state the snapshots are."""
        self._trainer = trainer

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write a snapshot after a round and its evaluation, where one is due or asked for."""
        directive = self.latest()
        stopped = trainer.should_stop and directive not in (Directive.STOP, Directive.LEAVE)
        if stopped or trainer.current_epoch + 1 == trainer.max_epochs:
            return
        if directive is Directive.GO_ON and time.monotonic() - self._last < self.every_s:
            return
        self.files.save(self.save)
        self._last = time.monotonic()


class HangWatch:
    """Watch that ends this process if `beat` is not called in time, and leaves the stacks of its threads behind.

    The clock is faulthandler's, a thread in C: it goes off even where Python's own threads stand still, as in a
    deadlock under the interpreter's lock. Ray then finds the worker dead, and the trial starts again or fails.

    Args:
        timeout_s: seconds between two beats; None watches nothing.
        path: where the traceback of every thread goes; the file is empty, or gone, where nothing hung.
    """

    def __init__(self, timeout_s: float | None, path: Path) -> None:
        self.timeout_s, self.path = timeout_s, path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self.timeout_s is not None:
            self._file = open_private(self.path, "w")
            self.beat()
        return self

    def beat(self) -> None:
        """Give a sign of life."""
        if self._file is not None and self.timeout_s is not None:
            faulthandler.dump_traceback_later(self.timeout_s, exit=True, file=self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self.path.unlink(missing_ok=True)
