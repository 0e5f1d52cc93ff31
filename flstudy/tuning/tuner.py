"""A study: many trials of one config under Ray Tune, proposed by Optuna and recorded in MLflow."""

import contextlib
import signal
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flstudy.config import ConfigError, Pbt
from flstudy.reporting.findings import TUNING_SPENDS
from flstudy.study.objectives import check_objectives
from flstudy.study.space import Space
from flstudy.tracking.content import environment
from flstudy.tracking.runs import StudyRun
from flstudy.tracking.store import check_store, open_store
from flstudy.tuning.cluster import check_resources, cluster, room, starting
from flstudy.tuning.folder import StudyFolder, TrialSummary, wanted_name
from flstudy.tuning.ledger import Ledger
from flstudy.tuning.progress import Progress
from flstudy.tuning.samplers import check_sampler
from flstudy.tuning.schedulers import check_scheduler, make_scheduler, rungs
from flstudy.tuning.sharing import share
from flstudy.tuning.twostep import Steps, steps_of, told
from flstudy.tuning.warmstart import take_over
from flstudy.tuning.worker import Assignment, trainable

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass
class StudyResult:
    """What a study left behind."""

    name: str
    path: Path
    trials: list[TrialSummary]
    mode: str
    run: StudyRun
    """Its run in MLflow, for figures and tables made later."""
    interrupted: bool = False
    hopeless: str | None = None
    """Why it stopped by itself: too many trials failed."""
    delivered: bool = True
    """Whether MLflow has all of it; `flstudy sync` tells it the rest."""

    @property
    def best(self) -> dict[str, TrialSummary]:
        """The best trial of each algorithm, best algorithm first; those that failed or diverged never lead."""
        sign = 1 if self.mode == "max" else -1
        search = (t for t in self.trials if t.counts and t.stage == "search")
        ranked = sorted(search, key=lambda t: -sign * (t.objective or 0.0))
        best: dict[str, TrialSummary] = {}
        for trial in ranked:
            best.setdefault(trial.algorithm, trial)
        return best


def tune(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    known: Path | None = None,
    quiet: bool = False,
) -> StudyResult:
    """Run the study of ``config`` in a new folder; Ctrl-C ends it early with what it has.

    With ``resume``, the folder of a study that stopped or was killed, it goes on there: trials that ended are kept,
    the others are run again, from their snapshots and in their MLflow runs, and the sampler and the scheduler know what
    they knew. ``known`` is the folder of another study: trials of it that this one would train alike are not trained
    again. ``quiet`` prints nothing.

    Raises ConfigError, before any trial starts, for a search space, store, folder or resources that cannot work.
    """
    console = console or Console()
    space = Space.parse(config.study.search)
    space.validate(config)
    check_objectives(config)
    check_sampler(space, config)
    check_scheduler(config)
    wanted_name(config)
    folder = StudyFolder.resume(resume) if resume is not None else None
    past = folder.read_trials() if folder is not None else []
    _check_room_for_more(config, past, folder)
    check_resources(config.study.resources)
    uri = config.store or (folder.state().get("store") if folder is not None else None)
    check_store(uri)
    examples = config.rehearse()
    aside = ThreadPoolExecutor(1)
    opening = aside.submit(open_store, uri)  # seconds of importing and SQL, while Ray starts its processes
    aside.shutdown(wait=False)
    steps = steps_of(space, config)
    for line in [*before_it_starts(config, steps), *space.outside(config)] if not quiet else ():
        console.print(line, highlight=False, markup=False)
    with cluster(config.study.resources):
        store, data = opening.result(), share(examples)
        del examples
        if folder is None:
            folder = StudyFolder.create(config)
            if folder.name != wanted_name(config) and not quiet:
                console.print(
                    f"study {wanted_name(config)!r} exists already: this one is {folder.name!r}", highlight=False
                )
            if known is not None:
                past = take_over(known, folder, config)
                if not quiet:
                    console.print(f"{folder.name}: {len(past)} trials known from {known.name}", highlight=False)
        study_id = folder.state().get("study_id") or uuid.uuid4().hex
        folder.write_config(config)
        folder.write_state("running", study_id=study_id, store=store.uri, environment=environment())
        run = StudyRun(store, name=folder.name, study_id=study_id, config=config, resumed=resume is not None)
        assignment = Assignment(
            config=config,
            store=store,
            study=folder.name,
            study_id=study_id,
            parent=run.run_id,
            folder=folder,
            threads=max(1, int(config.study.resources.cpu)),
            rungs=rungs(config),
            environment=environment(),
            data=data,
        )
        algorithms = len(space.domains["algorithm"].extremes()) if "algorithm" in space.domains else 1
        progress = Progress(
            console,
            name=folder.name,
            config=config,
            algorithms=algorithms,
            trials=sum(arm.first + arm.second for arm in steps) or None,
            spent_s=folder.spent_s(),
            quiet=quiet,
        )
        ledger = Ledger(config, folder, progress, past)
        try:
            with progress, _stop_on_interrupt(progress) as interrupt:
                _fit(assignment, space, ledger, interrupt, past)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            run.finish("KILLED" if stopped else "FAILED")
            folder.write_state("interrupted" if stopped else "failed")
            raise
    assert folder is not None
    ledger.close()  # when no worker can have the last word any more
    mode = config.study.objective.mode
    result = StudyResult(folder.name, folder.path, ledger.trials, mode, run, interrupt.is_set(), ledger.hopeless)
    if result.hopeless:
        progress.say(f"the study stopped: {result.hopeless}")
    _conclude(result, folder)
    folder.write_state("interrupted" if result.interrupted else "finished", conclusion=run.told)
    result.delivered = ledger.deliver(run)
    if not result.delivered:
        console.print(f"MLflow is away: deliver later with [bold]flstudy sync {folder.name}[/bold]", highlight=False)
    return result


def before_it_starts(config: "Config", steps: Sequence[Steps]) -> list[str]:
    """What a user is to know before any trial: the plan of a sweep in two steps, and what tuning does to privacy."""
    flat = config.flat()
    private = flat.get("privacy.clip") is not None and (flat.get("privacy.noise") or flat.get("privacy.solve"))
    return [*([told(steps)] if steps else []), *([TUNING_SPENDS] if private else [])]


def _fit(
    assignment: Assignment, space: Space, ledger: Ledger, interrupt: threading.Event, past: Sequence[TrialSummary]
) -> None:
    """Run Ray Tune until all trials are done or ``interrupt`` is set; ``past``: those that are known already."""
    from ray import tune

    from flstudy.tuning.past import told_before
    from flstudy.tuning.searcher import Search
    from flstudy.tuning.watch import Stop, Watch

    study, folder = assignment.config.study, assignment.folder
    resources = {"cpu": study.resources.cpu, "gpu": study.resources.gpu}
    population = isinstance(study.scheduler, Pbt)  # its trials take turns, so all of them are there from the start
    search = Search(
        space,
        assignment.config,
        name=folder.name,
        room=lambda: sys.maxsize if population else min(room(study.resources), study.concurrent or sys.maxsize),
        past=past,
        spending=ledger,
        journal=folder.journal,
    )
    tuner = tune.Tuner(
        tune.with_resources(trainable(assignment), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=make_scheduler(assignment.config, told_before(folder, past, study.objective.metric)),
            num_samples=-1,  # the search says when it is over
            reuse_actors=True,  # importing torch anew for every trial took three times as long
        ),
        run_config=tune.RunConfig(
            name=f"ray-{uuid.uuid4().hex[:6]}" if past else "ray",  # Ray's own state of an earlier start is not read
            storage_path=str(folder.path),
            verbose=0,
            stop=Stop(interrupt),
            callbacks=[Watch(ledger, search, interrupt)],
            failure_config=tune.FailureConfig(max_failures=study.failures.retries, fail_fast=False),
            log_to_file=False,
        ),
    )
    with starting(min(search.room(), study.trials or sys.maxsize)):
        tuner.fit()


def _check_room_for_more(config: "Config", past: Sequence[TrialSummary], folder: StudyFolder | None) -> None:
    """Raise ConfigError for a study that has had all its trials, unless winners are still to be confirmed."""
    study = config.study
    search = [trial for trial in past if trial.stage == "search"]
    if not past or study.trials is None or sum(trial.ended for trial in search) < study.trials:
        return
    finished = folder is not None and folder.state().get("state") == "finished"
    if not study.confirm.seeds or (finished and all(trial.ended for trial in past)):
        raise ConfigError(
            f"study.trials must be > {len(search)}, the trials that the study has, got {study.trials}: "
            "raise it to extend the study"
        )


@contextlib.contextmanager
def _stop_on_interrupt(progress: Progress) -> Iterator[threading.Event]:
    """The first Ctrl-C lets trials end and keeps the results, a second one insists."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach the main thread only
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)
        progress.say("stopping: the results so far are kept (Ctrl-C again to insist)")

    signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _conclude(result: StudyResult, folder: StudyFolder) -> None:
    """The study's best trials as tags, figures and files of its run."""
    run, best = result.run, result.best
    run.log_files(folder.path)
    if best:
        first = next(iter(best.values()))
        run.set_tags({"best.trial": first.trial, "best.algorithm": first.algorithm, "best.run_id": first.run_id})
        run.log_metrics(
            {f"best/{name}": trial.objective for name, trial in best.items() if trial.objective is not None}
        )
    counts: dict[str, int] = {}
    for trial in result.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    run.set_tags({f"trials.{status}": count for status, count in counts.items()})
    run.finish("KILLED" if result.interrupted else "FINISHED")
