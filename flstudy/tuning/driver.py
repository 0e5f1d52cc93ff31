"""Study from start to finish in four stages, each a value that is handed to the next: plan, opening, search and
conclusion."""

import contextlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.reporting.report import terminal
from flstudy.study import Status
from flstudy.study.signals import handle_signals, raise_keyboard_interrupt
from flstudy.tracking.ui import study_pages
from flstudy.tuning.cluster import UserModules, cluster, s3_keys_in_a_file
from flstudy.tuning.conclusion import StudyResult, conclude
from flstudy.tuning.opening import open_store_in_background, open_study
from flstudy.tuning.own_files import named_user_modules
from flstudy.tuning.plan import plan_study
from flstudy.tuning.searching import search
from flstudy.tuning.shortage import refuse_shortage

if TYPE_CHECKING:
    from flstudy.config import Config


@handle_signals({signal.SIGTERM: raise_keyboard_interrupt})
def carry_out(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    import_from: Path | None = None,
    quiet: bool = False,
    report: bool = True,
) -> StudyResult:
    """Tune ``config`` in a new folder; Ctrl-C or SIGTERM ends it early with what it has.

    Args:
        config: the study's.
        console: where its progress is shown.
        resume: the folder of a study that stopped or was killed, and goes on. Trials that are over are kept. The others
            go on from their snapshots, in their MLflow runs. Sampler and scheduler get the results of earlier starts.
        import_from: the folder of another study: trials of it that this one would train alike are not trained again.
        quiet: print nothing.
        report: write the study's report, also into MLflow.

    Raises:
        ConfigError: before any trial starts, for a search space, store, folder or resources that cannot work.
    """
    with contextlib.ExitStack() as claims:
        claims.enter_context(s3_keys_in_a_file())  # before any client of S3 is made
        with refuse_shortage():
            plan = plan_study(config, console or Console(), resume, claims, quiet=quiet)
            store = open_store_in_background(plan.store)
            modules = UserModules(plan.modules, named_user_modules(config.whole_study()))
            with cluster(config.study.resources, modules, plan.say):
                searched = search(open_study(plan, store, claims, import_from=import_from), claims)
        return conclude(searched, report=report)


def run_study(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    import_from: Path | None = None,
    as_json: bool = False,
) -> int:
    """Carry out the study of ``config``, then show the comparison.

    Args:
        config: the study's.
        console: where it is shown.
        resume: the folder of a study to go on with.
        import_from: the folder of another study, whose trials need not be trained again.
        as_json: print one JSON object at the end and nothing else.

    Returns:
        The exit status: 1 where no trial finished, so that there is nothing to compare, or where the study stopped by
        itself.
    """
    console = console or terminal()
    result = carry_out(config, console, resume, import_from=import_from, quiet=as_json)
    if as_json:
        print(json.dumps(result.to_json(), indent=2, default=str))
    elif result.report is not None:
        if result.delivered and not result.report_logged:
            console.print(
                f"MLflow has no report: deliver it with [bold]flstudy sync {result.name}[/bold]", highlight=False
            )
        result.report.print(console)
        for name, page in study_pages(result.run.store, result.run.study_id).items() if result.delivered else ():
            console.print(f"{name} in MLflow: {page}", highlight=False, markup=False, soft_wrap=True)
        if result.interrupted:
            going_on = f"Go on with it: [bold]flstudy tune --resume {result.folder.name_or_uri}[/bold]"
            console.print(going_on, highlight=False, soft_wrap=True)  # to be copied in one piece
    return 0 if result.hopeless is None and any(t.status is Status.FINISHED for t in result.trials) else 1
