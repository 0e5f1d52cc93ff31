"""A study: many trials of one config under Ray Tune, proposed by Optuna and recorded in MLflow."""

import contextlib
import signal
import threading
import uuid
from collections.abc import Iterator
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

    @property
    def best(self) -> dict[str, TrialSummary]:
        """The best trial of each algorithm, best algorithm first; those that failed or diverged never lead."""
        sign = 1 if self.mode == "max" else -1
        ranked = sorted((t for t in self.trials if t.counts), key=lambda t: -sign * (t.objective or 0.0))
        best: dict[str, TrialSummary] = {}
        for trial in ranked:
            best.setdefault(trial.algorithm, trial)
        return best


def tune(config: "Config", console: Console | None = None) -> StudyResult:
    """Run the study of ``config`` in a new folder; Ctrl-C ends it early with what it has.

    Raises ConfigError, before any trial starts, for a search space, store, folder or resources that cannot work.
    """
    console = console or Console()
    space = Space.parse(config.study.search)
    space.validate(config)
    _check_scheduler(config)
    wanted_name(config)
    check_resources(config.study.resources)
    check_store(config.store)
    examples = config.rehearse()
    aside = ThreadPoolExecutor(1)
    opening = aside.submit(open_store, config.store)  # seconds of importing and SQL, while Ray starts its processes
    aside.shutdown(wait=False)
    with cluster(config.study.resources):
        store, data = opening.result(), share(examples)
        del examples
        folder = StudyFolder.create(config)
        if folder.name != wanted_name(config):
            console.print(f"study {wanted_name(config)!r} exists already: this one is {folder.name!r}", highlight=False)
        folder.write_config(config)
        study_id = uuid.uuid4().hex
        run = StudyRun(store, name=folder.name, study_id=study_id, config=config)
        assignment = Assignment(
            config=config,
            store=store,
            study=folder.name,
            study_id=study_id,
            parent=run.run_id,
            records=str(folder.path / "records"),
            threads=max(1, int(config.study.resources.cpu)),
            rungs=_rungs(config),
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
        ledger = Ledger(config, folder, progress)
        try:
            with progress, _stop_on_interrupt(console) as interrupt:
                _fit(assignment, space, folder, ledger, interrupt)
        except BaseException as error:
            run.finish("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
            raise
    ledger.close(assignment)  # when no worker can have the last word any more
    result = StudyResult(folder.name, folder.path, ledger.trials, objective.mode, run, interrupt.is_set())
    _conclude(result, folder)
    return result


def _fit(assignment: Assignment, space: Space, folder: StudyFolder, ledger: Ledger, interrupt: threading.Event) -> None:
    """Run Ray Tune until all trials are done or ``interrupt`` is set."""
    from ray import tune

    from flstudy.tuning.searcher import Search
    from flstudy.tuning.watch import Stop, Watch

    study = assignment.config.study
    resources = {"cpu": study.resources.cpu, "gpu": study.resources.gpu}
    search = Search(space, assignment.config, name=folder.name, room=lambda: room(study.resources))
    tuner = tune.Tuner(
        tune.with_resources(trainable(assignment), resources),
        tune_config=tune.TuneConfig(
            search_alg=search,
            scheduler=_scheduler(assignment.config),
            num_samples=study.trials,
            max_concurrent_trials=study.concurrent,
            reuse_actors=True,  # importing torch anew for every trial took three times as long
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(folder.path),
            verbose=0,
            stop=Stop(interrupt),
            callbacks=[Watch(ledger, interrupt)],
            failure_config=tune.FailureConfig(max_failures=0, fail_fast=False),
            log_to_file=False,
        ),
    )
    with starting(min(room(study.resources), study.trials)):
        tuner.fit()


def _scheduler(config: "Config") -> Any:
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    asha, mode = config.study.scheduler, config.study.objective.mode
    if asha is None:
        return FIFOScheduler()
    return ASHAScheduler(
        time_attr="round",
        metric="objective",
        mode=mode,
        max_t=config.rounds,
        grace_period=asha.grace_rounds,
        reduction_factor=asha.reduction_factor,
        brackets=asha.brackets,
        stop_last_trials=False,  # a trial ends by itself, with a last report
    )


def _rungs(config: "Config") -> list[float]:
    """Rounds at which ASHA decides: at the first report at or after each."""
    asha, rungs = config.study.scheduler, []
    if asha is not None:
        rung = float(asha.grace_rounds)
        while rung <= config.rounds:
            rungs.append(rung)
            rung *= asha.reduction_factor
    return rungs


def _check_scheduler(config: "Config") -> None:
    asha = config.study.scheduler
    if asha is None:
        return
    where = "study.scheduler"
    if not 1 <= asha.grace_rounds <= config.rounds:
        raise ConfigError(
            f"{where}.grace_rounds must lie in [1, {config.rounds}], the config's rounds, got {asha.grace_rounds}: "
            f"lower it or train longer"
        )
    if not asha.reduction_factor > 1:
        raise ConfigError(f"{where}.reduction_factor must be > 1, got {asha.reduction_factor:g}: 3 is usual")
    if asha.brackets < 1:
        raise ConfigError(f"{where}.brackets must be >= 1, got {asha.brackets}: 1 is usual")


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
    run.log_artifact(folder.trials)
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
