"""What went wrong."""

from flstudy.reporting.findings import Findings
from flstudy.reporting.ranking import failure_reason
from flstudy.reporting.section import Content, ReportSection, present
from flstudy.reporting.tables import Cells
from flstudy.study import Status, StudyResults, Trial

RESTARTED = "its worker was lost; it went on from its snapshot"


class FailureSection(ReportSection):
    """Trials that failed, and those that took more than one start."""

    order = 100

    def of_study(self, found: Findings) -> Content:
        trials = failed_trials(found.results)
        cells = failure_cells(trials)
        values = [
            {
                "trial": trial.number,
                "algorithm": trial.algorithm,
                "attempts": trial.attempts,
                "error": failure_reason(trial) if trial.status is Status.FAILED else None,
            }
            for trial in trials
        ]
        title = "What went wrong?" if cells else ""
        return Content(name="Failures", title=title, tables=present(cells), values={"failures": values})


def failed_trials(results: StudyResults) -> list[Trial]:
    """Trials that failed, and those that took more than one start."""
    return [trial for trial in results.trials if trial.status is Status.FAILED or trial.attempts > 1]


def failure_cells(trials: list[Trial]) -> Cells | None:
    """Their reasons; None where nothing failed."""
    failed = [trial.status is Status.FAILED for trial in trials]
    columns = {
        "Trial": [str(trial.number) for trial in trials],
        "Algorithm": [trial.algorithm for trial in trials],
        "Status": [str(trial.status) for trial in trials],
        "Starts": [str(trial.attempts) for trial in trials],
        "Reason": [failure_reason(trial) if end else RESTARTED for trial, end in zip(trials, failed, strict=True)],
    }
    return Cells.from_columns("Trials that failed or had to start again", columns, (0, 1, 2, 4)) if trials else None
