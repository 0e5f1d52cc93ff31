"""Conclusion, the last stage of a study: its result, its report, and the delivery of both."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flstudy.preparation.picture import PICTURE, keep_picture
from flstudy.reporting import Report, write_report
from flstudy.study import BestTrial, Status, StudyFolder, Trial
from flstudy.study.mirror import BucketMirror
from flstudy.tracking.runs import StudyRun
from flstudy.tuning.searching import SearchedStudy
from flstudy.tuning.shortage import MEMORY, remedy, shortage

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass
class StudyResult:
    """Result of a study: its folder, trials, best trials and run in MLflow."""

    folder: StudyFolder
    trials: list[Trial]
    best: tuple[BestTrial, ...]
    """The best trial of each algorithm that has one, best first."""
    run: StudyRun
    """The study's run in MLflow, for figures and tables made later."""
    interrupted: bool = False
    hopeless: str | None = None
    """Reason why the study stopped by itself or came to nothing: all trials failed, or too many, or its disk did."""
    failed: bool = False
    """Whether the trials are that reason."""
    delivered: bool = True
    """Whether MLflow has all of the study; `flstudy sync` delivers the rest."""
    report: Report | None = None
    """Report that `carry_out` wrote; None where the disk did not take it."""
    report_logged: bool = False
    """Whether MLflow has the report."""
    mirror: BucketMirror | None = None
    """Mirror of a study by URI in its bucket."""

    @property
    def name(self) -> str:
        return self.folder.name

    def to_json(self) -> dict[str, Any]:
        """Return the study for scripts."""
        return {
            "study": self.name,
            "folder": str(self.folder.path),
            **({} if self.mirror is None else {"uri": self.folder.name_or_uri, "mirrored": self.mirror.lacks is None}),
            "run_id": self.run.run_id,
            "interrupted": self.interrupted,
            "stopped": self.hopeless,
            "failed": self.failed,
            "delivered": self.delivered,
            "best": {
                winner.trial.algorithm: {
                    **winner.trial.to_json(),
                    "value": winner.ranking_value,
                    "confirmation": None if winner.confirmation is None else winner.confirmation.number,
                }
                for winner in self.best
            },
            "trials": [trial.to_json() for trial in self.trials],
        }


def conclude(searched: SearchedStudy, *, report: bool) -> StudyResult:
    """Write a study's last state and its report, and deliver to MLflow and a bucket the rest that they lack.

    Args:
        searched: the stage before, whose workers are gone.
        report: whether a report is written.
    """
    table, stop_signal, folder = searched.table, searched.stop_signal, searched.study.folder
    table.close(complete=not stop_signal.is_sent)  # when no worker can have the last word any more
    left = stop_signal.is_sent or any(trial.status is Status.INTERRUPTED for trial in table.trials)
    stop_signal.send()  # its file goes with the study
    table.try_writing(lambda: folder.write_state("failed" if table.failed else "interrupted" if left else "finished"))
    run = searched.study.run
    result = StudyResult(folder, table.trials, table.best, run, left, table.hopeless, table.failed)
    result.mirror = searched.mirror
    if result.hopeless:
        searched.progress.say(f"the study {'stopped' if left else 'failed'}: {result.hopeless}")
    elif table.starved:
        numbers = ", ".join(str(trial.number) for trial in table.starved)
        searched.progress.say(f"trials {numbers} ran {MEMORY}: {remedy(MEMORY)}")
    console = searched.study.plan.console
    delivery = table.deliver(searched.study.store)
    result.delivered = delivery is not None and not delivery.incomplete
    for remark in delivery.remarks if delivery is not None else ():
        console.print(remark, highlight=False, markup=False)
    if not result.delivered and (result.failed or not result.hopeless):
        console.print(f"MLflow is away: deliver later with [bold]flstudy sync {folder.name}[/bold]", highlight=False)
    if report:
        _write_report(result, searched.study.plan.config, console)
    _finish_mirror(result, console)
    return result


def _write_report(result: StudyResult, config: "Config", console: Console) -> None:
    try:
        result.folder.write_events(config.events())
        result.report = write_report(result.folder.path)
        if not (result.folder.report / PICTURE).exists():
            keep_picture(config, result.folder.report / PICTURE)
        result.report_logged = result.delivered and result.run.log_files(result.folder)
    except (OSError, ValueError) as error:
        denied = shortage(error, result.folder.path)
        if denied is None:
            raise
        if result.hopeless is None:
            result.hopeless = f"{denied}: {remedy(denied)}, then flstudy report {result.folder.name_or_uri}"
            console.print(f"there is no report: {result.hopeless}", highlight=False, markup=False)


def _finish_mirror(result: StudyResult, console: Console) -> None:
    """Send the rest of a study by URI to its bucket."""
    if result.mirror is not None and not result.mirror.finish():
        uri = result.folder.name_or_uri
        console.print(
            f"{uri} has not all of the study, which is in {result.folder.path}: deliver it later with "
            f"flstudy sync {uri}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
