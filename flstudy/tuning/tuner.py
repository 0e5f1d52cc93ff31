"""A study: many trials of one config under Ray Tune, proposed by Optuna and recorded in MLflow."""

import contextlib
import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flstudy.config import ConfigError
from flstudy.tracking.mlflow import StudyRun, environment
from flstudy.tracking.store import check_store, open_store
from flstudy.tuning.cluster import check_resources, cluster, room, starting
from flstudy.tuning.folder import StudyFolder, TrialSummary, wanted_name
from flstudy.tuning.ledger import Ledger
from flstudy.tuning.progress import Progress
from flstudy.tuning.samplers import check_sampler
from flstudy.tuning.schedulers import check_scheduler, make_scheduler, rungs
from flstudy.tuning.sharing import share
from flstudy.tuning.space import Space
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
    delivered: bool = True
    """Whether MLflow has all of it; `flstudy sync` tells it the rest."""

    @property
    def best(self) -> dict[str, TrialSummary]:
        """The best trial of each algorithm, best algorithm first; those that failed or diverged never lead."""
        sign = 1 if self.mode == "max" else -1
        ranked = sorted((t for t in self.trials if t.counts), key=lambda t: -sign * (t.objective or 0.0))
        best: dict[str, TrialSummary] = {}
        for trial in ranked:
            best.setdefault(trial.algorithm, trial)
        return best


def tune(config: "Config", console: Console | None = None, resume: Path | None = None) -> StudyResult:
    """Run the study of ``config`` in a new folder; Ctrl-C ends it early with what it has.

    With ``resume``, the folder of a study that stopped or was killed, it goes on there: trials that ended are kept,
    the others are run again, from their snapshots and in their MLflow runs, and the sampler knows what it knew. Only
    the scheduler starts with empty rungs.

    Raises ConfigError, before any trial starts, for a search space, store, folder or resources that cannot work.
    """
    console = console or Console()
    space = Space.parse(config.study.search)
    space.validate(config)
    check_sampler(space, config)
    check_scheduler(config)
    wanted_name(config)
    folder = StudyFolder.resume(resume) if resume is not None else None
    past = folder.read_trials() if folder is not None else []
    if past and sum(trial.ended for trial in past) >= config.study.trials:
        raise ConfigError(
            f"study.trials must be > {len(past)}, the trials that the study has, got {config.study.trials}: "
            "raise it to extend the study"
        )
    check_resources(config.study.resources)
    uri = config.store or (folder.state().get("store") if folder is not None else None)
    check_store(uri)
    examples = config.rehearse()
    aside = ThreadPoolExecutor(1)
    opening = aside.submit(open_store, uri)  # seconds of importing and SQL, while Ray starts its processes
    aside.shutdown(wait=False)
    with cluster(config.study.resources):
        store, data = opening.result(), share(examples)
        del examples
        if folder is None:
            folder = StudyFolder.create(config)
            if folder.name != wanted_name(config):
                console.print(
                    f"study {wanted_name(config)!r} exists already: this one is {folder.name!r}", highlight=False
                )
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
        objective = config.study.objective
        progress = Progress(
            console,
            name=folder.name,
            trials=config.study.trials,
            rounds=config.rounds,
            metric=objective.metric,
            mode=objective.mode,
        )
        ledger = Ledger(config, folder, progress, past)
        try:
            with progress, _stop_on_interrupt(console) as interrupt:
                _fit(assignment, space, ledger, interrupt, past)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            run.finish("KILLED" if stopped else "FAILED")
            folder.write_state("interrupted" if stopped else "failed")
            raise
    assert folder is not None
    ledger.close()  # when no worker can have the last word any more
    result = StudyResult(folder.name, folder.path, ledger.trials, objective.mode, run, interrupt.is_set())
    _conclude(result, folder)
    folder.write_state("interrupted" if result.interrupted else "finished", conclusion=run.told)
    result.delivered = ledger.deliver(run)
    if not result.delivered:
        console.print(f"MLflow is away: deliver later with [bold]flstudy sync {folder.name}[/bold]", highlight=False)
    return result


def _fit(
    assignment: Assignment, space: Space, ledger: Ledger, interrupt: threading.Event, past: Sequence[TrialSummary]
) -> None:
    """Run Ray Tune until all trials are done or ``interrupt`` is set; ``past``: those of a resumed study."""
    from ray import tune

    from flstudy.tuning.searcher import Search
    from flstudy.tuning.watch import Stop, Watch

    study, folder = assignment.config.study, assignment.folder
    left = study.trials - sum(trial.ended for trial in past)
    resources = {"cpu": study.resources.cpu, "gpu": study.resources.gpu}
    search = Search(space, assignment.config, name=folder.name, room=lambda: room(study.resources), past=past)
    tuner = tune.Tuner(
        tune.with_resources(trainable(assignment), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=make_scheduler(assignment.config),
            num_samples=left,
            max_concurrent_trials=study.concurrent,
            reuse_actors=True,  # importing torch anew for every trial took three times as long
        ),
        run_config=tune.RunConfig(
            name=f"ray-{uuid.uuid4().hex[:6]}" if past else "ray",  # Ray's own state of an earlier start is not read
            storage_path=str(folder.path),
            verbose=0,
            stop=Stop(interrupt),
            callbacks=[Watch(ledger, interrupt)],
            failure_config=tune.FailureConfig(max_failures=0, fail_fast=False),
            log_to_file=False,
        ),
    )
    with starting(min(room(study.resources), left)):
        tuner.fit()


@contextlib.contextmanager
def _stop_on_interrupt(console: Console) -> Iterator[threading.Event]:
    """The first Ctrl-C lets trials end and keeps the results, a second one insists."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals reach the main thread only
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)
        console.print("stopping: the results so far are kept (Ctrl-C again to drop everything)", highlight=False)

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
