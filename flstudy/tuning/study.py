"""A study from start to finish: the search, then its report, on the terminal, on disk and in MLflow."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flstudy.reporting import write_report
from flstudy.reporting.report import terminal
from flstudy.tuning.tuner import StudyResult, tune

if TYPE_CHECKING:
    from flstudy.config import Config


def run_study(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    known: Path | None = None,
    as_json: bool = False,
) -> int:
    """Tune ``config``, or go on with the study in the folder ``resume``, then show and keep the comparison; returns
    the exit status. ``known`` is another study, whose trials need not be trained again. ``as_json`` prints one JSON
    object at the end and nothing else.

    1 where no trial finished, so that there is nothing to compare, or where too many failed.
    """
    console = console or terminal()
    result = tune(config, console, resume, known=known, quiet=as_json)
    events = [event._asdict() for event in config.events()]
    (result.path / "events.json").write_text(json.dumps(events, indent=2) + "\n")
    written = write_report(result.path)
    result.run.log_files(result.path)
    if as_json:
        print(json.dumps(told(result), indent=2, default=str))
    else:
        if result.delivered and not result.run.delivered:
            console.print(
                f"MLflow has no report: deliver it with [bold]flstudy sync {result.name}[/bold]", highlight=False
            )
        written.print(console)
        if result.interrupted:
            console.print(f"Go on with it: [bold]flstudy tune --resume {result.name}[/bold]", highlight=False)
    return 0 if result.hopeless is None and any(trial.status == "finished" for trial in result.trials) else 1


def told(result: StudyResult) -> dict[str, Any]:
    """A study for scripts."""
    return {
        "study": result.name,
        "folder": str(result.path),
        "run_id": result.run.run_id,
        "interrupted": result.interrupted,
        "stopped": result.hopeless,
        "delivered": result.delivered,
        "best": {name: asdict(trial) for name, trial in result.best.items()},
        "trials": [asdict(trial) for trial in result.trials],
    }
