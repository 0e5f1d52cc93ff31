"""A study from start to finish: the search, then its report, on the terminal, on disk and in MLflow."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.reporting import report
from flstudy.reporting.report import terminal
from flstudy.tuning.tuner import tune

if TYPE_CHECKING:
    from flstudy.config import Config


def run_study(config: "Config", console: Console | None = None, resume: Path | None = None) -> int:
    """Tune ``config``, or go on with the study in the folder ``resume``, then show and keep the comparison; returns
    the exit status.

    1 where no trial finished: there is nothing to compare.
    """
    console = console or terminal()
    result = tune(config, console, resume)
    events = [event._asdict() for event in config.events()]
    (result.path / "events.json").write_text(json.dumps(events, indent=2) + "\n")
    written = report(result.path)
    result.run.log_files(result.path)
    if result.delivered and not result.run.delivered:
        console.print(f"MLflow has no report: deliver it with [bold]flstudy sync {result.name}[/bold]", highlight=False)
    written.print(console)
    if result.interrupted:
        console.print(f"Go on with it: [bold]flstudy tune --resume {result.name}[/bold]", highlight=False)
    return 0 if any(trial.status == "finished" for trial in result.trials) else 1
