"""One trial of a study: a config with some values replaced, trained and watched. Runs without Ray."""

import contextlib
import faulthandler
import logging
import math
import os
import time
import traceback
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
from flstudy.study import Status, Trial
from flstudy.study.folder import private
from flstudy.study.objectives import worst_value
from flstudy.study.records import RecordWriter, read_rounds
from flstudy.study.repair import begin_anew
from flstudy.tracking.content import ending_tags, run_status
from flstudy.tuning.beacon import Lookout, Wish
from flstudy.tuning.shortage import shortage

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Coordinator

log = logging.getLogger(__name__)

Save = Callable[[Path], None]
"""Writes the trial's state after its latest round to a file."""
Report = Callable[[Trial, Save | None], bool | None]
"""Hears of a trial after every round that measured the objective, and once more at its end, so that the objective is in
every report; may return False to stop the trial."""


class Tracker(Protocol):
    """Where a trial's rounds are shown: `flstudy.tracking.runs.TrialRun`, or nothing."""

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    def log(self, record: Record) -> None: ...
    def finish(self, status: str = "FINISHED", *, tags: Mapping[str, str] | None = None) -> Any: ...


def run_trial(
    config: "Config",
    trial: Trial,
    *,
    report: Report,
    tracker: Tracker | None = None,
    records: Path | None = None,
    snapshot: Path | None = None,
    resume: Path | None = None,
    model: Path | None = None,
    watch: "HangWatch | None" = None,
    beacon: Path | None = None,
) -> Trial:
    """Train ``config`` with the trial's overrides; never raises for what a trial does.

    Args:
        config: the study's.
        trial: what is known of it; status, rounds, objective, metrics and error are kept up to date in place.
        report: hears of it.
        tracker: shows its rounds.
        records: every round goes there as Parquet.
        snapshot: the file where the trial's state is kept while it runs, and from which it goes on if there is one.
        resume: another such file to go on from.
        model: where a trial that finishes leaves its trained model, that of its first seed.
        watch: gets a sign of life after every round.
        beacon: tells when to write a snapshot, and when to stop with one.

    Returns:
        The same trial, over, or interrupted: by the beacon, or because the machine denied it something.
    """
    watch = watch or HangWatch(None, Path())
    training = TrialTraining(config, trial, report, tracker, watch.beat, Lookout(beacon))
    try:
        training.config = config.with_overrides(trial.overrides)
        training.open()
        with watch:
            coordinator = training.train(records, snapshot, resume)
        if trial.status is Status.FINISHED and model is not None:
            training.keep(coordinator, model)
    except KeyboardInterrupt:
        training.close("KILLED", None)
        raise
    except Exception as error:
        trial.status, trial.error = Status.FAILED, censored(traceback.format_exc())
        if sentence := shortage(error, None if snapshot is None else snapshot.parents[1]):
            trial.status, trial.error = Status.INTERRUPTED, f"{trial.error}\n{sentence}"
    return training.end()


class TrialTraining:
    """A trial while it runs."""

    def __init__(
        self,
        config: "Config",
        trial: Trial,
        report: Report,
        tracker: Tracker | None,
        beat: Callable[[], None],
        lookout: Lookout,
    ) -> None:
        self.config = config  # the study's own, should the overrides make none
        self.trial, self.report, self.tracker, self.beat, self.lookout = trial, report, tracker, beat, lookout
        self.wish = Wish.GO_ON  # of the driver, after the latest round
        self.objective = config.study.objective
        self.summary: RunSummary | None = None
        self.save: Save | None = None
        self.opened = False
        self.earlier: Path | None = None  # records of rounds before the snapshot, from which the trial went on
        trial.status, trial.rounds, trial.objective = Status.RUNNING, 0, math.nan
        trial.metrics, trial.error = {}, None

    def open(self) -> None:
        """Begin to track."""
        if self.tracker is not None and not self.opened:
            self.opened = True
            made = self.config
            self.tracker.start(params=made.flat(), tags=made.tags(), seeds=made.seeds, config=made.plain())

    def train(self, records: Path | None, snapshot: Path | None, resume: Path | None) -> "Coordinator":
        """All rounds, or those until it is stopped."""
        made = self.config
        self.summary = RunSummary(made.drift_rounds(), made.rounds, made.session_rounds(), made.recovery)
        with contextlib.ExitStack() as stack:
            if records is not None and snapshot is not None and (lost := begin_anew(records, snapshot)) is not None:
                log.warning("trial %s starts anew: %s", self.trial.number, lost)
            writer = None if records is None else stack.enter_context(RecordWriter(records, made.seeds))
            kept: dict[str, Any] = {}
            if snapshot is not None and writer is not None:
                given = resume or (snapshot if snapshot.is_file() else None)
                self.earlier = records if given else None
                snapshots = Snapshots(writer, snapshot, made.study.snapshot_s, lambda: self.wish)
                self.save = snapshots.save
                kept = {"callbacks": [snapshots], "resume": None if given is None else str(given)}
            coordinator = made.run(lambda record: self.on_round(record, writer), **kept)
            self.on_end(writer)
        if self.trial.status is Status.FINISHED and math.isnan(self.trial.objective):
            measured = self.trial.metrics
            near = get_close_matches(self.objective.metric, measured, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(sorted(measured)) or 'none'}"
            raise ConfigError(
                f"study.objective.metric must be a metric that is measured, got {self.objective.metric!r}: {hint}"
            )
        return coordinator

    @staticmethod
    def keep(coordinator: "Coordinator | None", path: Path) -> None:
        """The trained model; a disk that is full then fails no trial that has all its rounds."""
        from flstudy.tracking.models import save_model

        try:
            if coordinator is not None:  # stand-ins train none
                save_model(coordinator, path)
        except Exception as error:
            log.warning("the trained model was not kept: %s", error)

    def on_round(self, record: Record, writer: RecordWriter | None) -> None:
        """A round is over, its evaluation included."""
        self.beat()
        if self.earlier is not None:
            for round, metrics in read_rounds(self.earlier, record.round).items():
                self._take(Record(round, metrics), None)  # the tracker leaves out those that it has delivered
        self.earlier = None
        self._take(record, writer)
        self.trial.rounds, metric = record.round, self.objective.metric
        self.wish = self.lookout.look() if record.round < self.config.rounds else Wish.GO_ON
        judged = [self.trial.metrics[name] for name in ("train/loss", metric) if name in record.metrics]
        if not all(map(math.isfinite, judged)):
            self.trial.status = Status.DIVERGED
            raise StopRun(f"diverged in round {record.round}")
        if metric in record.metrics:
            self.trial.objective = judged[-1]
            # The last round is reported by `end`.
            if record.round < self.config.rounds and self.report(self.trial, self.save) is False:
                self.wish = self.lookout.look(closely=True)  # Ray stops the trials of a study that ends
                if self.wish is not Wish.STOP:
                    self.trial.status = Status.PRUNED
                    raise StopRun(f"stopped by the scheduler in round {record.round}")
        if self.wish is Wish.STOP:
            self.trial.status = Status.INTERRUPTED
            raise StopRun(f"stopped with its study in round {record.round}")

    def on_end(self, writer: RecordWriter | None) -> None:
        """The figures of the whole run, reported with its last round."""
        assert self.summary is not None
        if self.trial.status is not Status.RUNNING:
            return
        self.trial.status = Status.FINISHED
        if self.trial.rounds < self.config.rounds:
            return
        record = Record(self.trial.rounds, self.summary.figures())
        self._take(record, writer)
        if self.objective.metric in record.metrics:
            value = self.trial.metrics[self.objective.metric]
            self.trial.objective = value if math.isfinite(value) else worst_value(self.objective)

    def _take(self, record: Record, writer: RecordWriter | None) -> None:
        assert self.summary is not None
        self.summary.add(record.round, record.metrics)
        self.trial.metrics |= replica_means(record.metrics)
        if writer is not None:
            writer.append(record)
        if self.tracker is not None:
            self.tracker.log(record)

    def end(self) -> Trial:
        """Close the tracker, then make the last report: whoever hears it may rely on the run being complete."""
        self.open()
        trial = self.trial
        if trial.is_broken:
            trial.objective = worst_value(self.objective)
        self.close(run_status(trial.status), {"rounds": str(trial.rounds), **ending_tags(trial)})
        if trial.status is not Status.PRUNED:
            self.report(trial, self.save)
        return trial

    def close(self, status: str, tags: dict[str, str] | None) -> None:
        """End the tracking."""
        if self.tracker is not None and self.opened:
            self.tracker.finish(status, tags=tags)


class Snapshots(Checkpoint):
    """The latest state of a running trial in one file, written after the records that led to it.

    Args:
        writer: of the trial's records.
        path: the file; a reader sees the old one or the new one.
        every_s: seconds between two of them; a trial that is shorter writes none.
        wish: asks for one more, or for the last one.
    """

    def __init__(self, writer: RecordWriter, path: Path, every_s: float, wish: Callable[[], Wish]) -> None:
        self.writer, self.path, self.every_s, self.wish = writer, path, every_s, wish
        self._last = time.monotonic()
        self._trainer: L.Trainer | None = None

    def save(self, path: Path) -> None:
        """Write the state after the latest round somewhere else."""
        assert self._trainer is not None
        self.writer.flush()
        self._trainer.save_checkpoint(path)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Whose state it is."""
        self._trainer = trainer

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After a round and its evaluation."""
        wish = self.wish()
        if (trainer.should_stop and wish is not Wish.STOP) or trainer.current_epoch + 1 == trainer.max_epochs:
            return
        if wish is Wish.GO_ON and time.monotonic() - self._last < self.every_s:
            return
        hidden = self.path.with_suffix(".tmp")
        try:
            self.save(hidden)
            os.replace(hidden, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)  # half of it would take room on a full disk
            raise
        self._last = time.monotonic()


class HangWatch:
    """Ends this process if `beat` is not called in time, and leaves behind where its threads stood.

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
            self._file = private(self.path, "w")
            self.beat()
        return self

    def beat(self) -> None:
        """A sign of life."""
        if self._file is not None and self.timeout_s is not None:
            faulthandler.dump_traceback_later(self.timeout_s, exit=True, file=self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self.path.unlink(missing_ok=True)
