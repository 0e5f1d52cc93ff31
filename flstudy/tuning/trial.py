"""One trial of a study: a config with some values replaced, trained and watched. Runs without Ray.

What ends a trial early is said in its status:

    finished   all rounds done
    pruned     `report` returned False: a scheduler stopped it
    diverged   a replica's training loss or objective became NaN or infinite: the trial reports the worst value
    failed     it raised, or never measured the objective: the traceback is kept and the study goes on
"""

import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from flstudy.config import ConfigError
from flstudy.metrics.registry import replica_means
from flstudy.metrics.run_summary import RunSummary
from flstudy.study.objectives import worst_value
from flstudy.tuning.hang import HangWatch

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Coordinator, Record

log = logging.getLogger(__name__)

Status = Literal["finished", "pruned", "diverged", "failed", "interrupted"]


class Outcome(NamedTuple):
    """How a trial ended."""

    status: Status
    round: int  # rounds done
    objective: float  # of the last evaluation, mean over replicas; the worst value if diverged or failed
    metrics: dict[str, float]  # last value of each metric, mean over replicas
    error: str | None  # traceback


class Tracker(Protocol):
    """Where a trial's rounds are shown: `TrialRun`, or nothing."""

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    def log(self, record: "Record") -> None: ...
    def finish(
        self, status: str = "FINISHED", *, tags: Mapping[str, str] | None = None, error: str | None = None
    ) -> Any: ...


def algorithm_of(config: "Config", overrides: Mapping[str, Any]) -> str:
    """Short class name of a trial's algorithm."""
    chosen = overrides.get("algorithm") or config.tags().get("algorithm", "")
    chosen = chosen.get("class_path", "") if isinstance(chosen, Mapping) else chosen
    return str(chosen).rsplit(".", 1)[-1]


def run_trial(
    config: "Config",
    overrides: Mapping[str, Any],
    *,
    report: Callable[[dict[str, Any]], bool | None],
    tracker: Tracker | None = None,
    records_path: str | Path | None = None,
    snapshot: str | Path | None = None,
    resume: str | Path | None = None,
    model: str | Path | None = None,
    watch: HangWatch | None = None,
) -> Outcome:
    """Train ``config`` with ``overrides`` and say how it went; never raises for what a trial does.

    ``report`` gets ``{objective's name: mean over replicas, 'objective': the same, 'round': r, 'metrics': {...},
    'status': ..., 'error': ...}`` after every round that measured the objective, and once more at the end, so the
    objective is in every report; it may return False to stop the trial. ``records_path`` is where every round goes
    as Parquet, ``snapshot`` the file where the trial's state is kept while it runs, and from which it goes on if there
    is one; ``resume`` is another such file to go on from. With snapshots every report has a function ``save`` that
    writes the trial's state to a path. ``model`` is where a trial that finishes leaves its trained model, that of its
    first seed. ``watch`` gets a sign of life after every round.
    """
    watch = watch or HangWatch(None, Path())
    trial = _Trial(config, report, tracker, watch.beat)
    try:
        trial.config = config.with_overrides(overrides)
        trial.open()
        with watch:
            coordinator = trial.train(records_path, None if snapshot is None else Path(snapshot), resume)
        if trial.status == "finished" and model is not None:
            trial.keep(coordinator, Path(model))
    except KeyboardInterrupt:
        trial.close("KILLED", None)
        raise
    except Exception:
        trial.status, trial.error = "failed", traceback.format_exc()
    return trial.end()


class _Trial:
    """What is known of the trial while it runs."""

    def __init__(
        self,
        config: "Config",
        report: Callable[[dict[str, Any]], bool | None],
        tracker: Tracker | None,
        beat: Callable[[], None],
    ) -> None:
        self.config = config  # the study's own, should the overrides make none
        self.objective, self.report, self.tracker, self.beat = config.study.objective, report, tracker, beat
        self.whole: RunSummary | None = None
        self.save: Callable[[Path], None] | None = None
        self.opened = False
        self.status: Status = "finished"
        self.error: str | None = None
        self.round = 0
        self.value: float | None = None
        self.metrics: dict[str, float] = {}
        self.untold: str | Path | None = None  # records of rounds before the snapshot, from which the trial went on

    def open(self) -> None:
        if self.tracker is not None and not self.opened:
            self.opened = True
            made = self.config
            self.tracker.start(params=made.flat(), tags=made.tags(), seeds=made.seeds, config=made.plain())

    def train(
        self, records_path: str | Path | None, snapshot: Path | None = None, resume: str | Path | None = None
    ) -> "Coordinator":
        made = self.config
        self.whole = RunSummary(made.drift_rounds(), made.rounds, made.session_rounds(), made.recovery)
        if records_path is None:
            coordinator = self.config.run(lambda record: self.on_round(record, None))
            self.on_end(None)
        else:
            from flstudy.study.records import RecordWriter  # pyarrow, only where records are wanted

            with RecordWriter(records_path, self.config.seeds) as writer:
                kept: dict[str, Any] = {}
                if snapshot is not None:
                    from flstudy.tuning.snapshots import Snapshots  # Lightning, which stand-ins do without

                    given = resume or (snapshot if snapshot.is_file() else None)
                    self.untold = records_path if given else None
                    snapshots = Snapshots(writer, snapshot, self.config.study.snapshot_s)
                    self.save = snapshots.save
                    kept = {"callbacks": [snapshots], "resume": None if given is None else str(given)}
                coordinator = self.config.run(lambda record: self.on_round(record, writer), **kept)
                self.on_end(writer)
        if self.status == "finished" and self.value is None:
            near = get_close_matches(self.objective.metric, self.metrics, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(sorted(self.metrics)) or 'none'}"
            raise ConfigError(
                f"study.objective.metric must be a metric that evaluations measure, "
                f"got {self.objective.metric!r}: {hint}"
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

    def on_round(self, record: "Record", writer: Any) -> None:
        from flstudy.config import StopRun

        self.beat()
        if self.untold is not None:
            self.tell_again(self.untold, record.round)
        self.untold = None
        self.round = record.round
        assert self.whole is not None
        self.whole.add(record.round, record.metrics)
        self.metrics |= replica_means(record.metrics)
        if writer is not None:
            writer.append(record)
        if self.tracker is not None:
            self.tracker.log(record)
        value = self.metrics[self.objective.metric] if self.objective.metric in record.metrics else None
        losses = [self.metrics[name] for name in ("train/loss",) if name in record.metrics]
        if not all(map(math.isfinite, losses if value is None else [*losses, value])):
            self.status = "diverged"
            raise StopRun(f"diverged in round {record.round}")
        if value is None:
            return
        self.value = value
        if (
            record.round < self.config.rounds and self.report(self.told("running")) is False
        ):  # the last round is told by end
            self.status = "pruned"
            raise StopRun(f"stopped by the scheduler in round {record.round}")

    def tell_again(self, records: str | Path, before: int) -> None:
        """Rounds of an earlier start; the tracker leaves out those that it has delivered."""
        from flstudy.federation import Record
        from flstudy.study.records import read_rounds

        assert self.whole is not None
        for round, metrics in read_rounds(records, before).items():
            self.whole.add(round, metrics)
            if self.tracker is not None:
                self.tracker.log(Record(round, metrics))

    def on_end(self, writer: Any) -> None:
        """The figures of the whole run, told with its last round."""
        from flstudy.federation import Record

        assert self.whole is not None
        if self.status != "finished" or self.round < self.config.rounds:
            return
        record = Record(self.round, self.whole.figures())
        self.metrics |= replica_means(record.metrics)
        if writer is not None:
            writer.append(record)
        if self.tracker is not None:
            self.tracker.log(record)
        if self.objective.metric in record.metrics:
            value = self.metrics[self.objective.metric]
            self.value = value if math.isfinite(value) else worst_value(self.objective)

    def end(self) -> Outcome:
        """Close the tracker, then tell the last report: whoever hears it may rely on the run being complete."""
        self.open()
        if self.status in ("diverged", "failed"):
            self.value = worst_value(self.objective)
        tags = {"rounds": str(self.round)}
        if self.status != "finished":
            tags[self.status] = "true"
        self.close("FAILED" if self.status == "failed" else "FINISHED", tags)
        if self.status != "pruned":
            self.report(self.told(self.status))
        assert self.value is not None
        return Outcome(self.status, self.round, self.value, self.metrics, self.error)

    def close(self, status: str, tags: dict[str, str] | None) -> None:
        if self.tracker is not None and self.opened:
            self.tracker.finish(status, tags=tags, error=self.error)

    def told(self, status: str) -> dict[str, Any]:
        return {
            self.objective.metric: self.value,
            "objective": self.value,
            "round": self.round,
            "metrics": dict(self.metrics),
            "status": status,
            "error": self.error,
            **({} if self.save is None else {"save": self.save}),
        }
