"""A study from start to finish: the search, then its report, on the terminal, on disk and in MLflow."""

import json
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.reporting import report
from flstudy.reporting.report import terminal
from flstudy.tuning.tuner import tune

if TYPE_CHECKING:
    from flstudy.config import Config


def run_study(config: "Config", console: Console | None = None) -> int:
    """Tune ``config``, then show and keep the comparison; returns the exit status.

    1 where no trial finished: there is nothing to compare.
    """
    console = console or terminal()
    result = tune(config, console)
    events = [event._asdict() for event in config.events()]
    (result.path / "events.json").write_text(json.dumps(events, indent=2) + "\n")
    written = report(result.path)
    result.run.log_artifact(written.summary_path, "report")
    if written.figure_path is not None:
        result.run.log_artifact(written.figure_path, "report")
    written.print(console)
    return 0 if any(trial.status == "finished" for trial in result.trials) else 1
