"""Search, the third stage of a study: Ray Tune runs trials that Optuna proposes until all are done."""

import contextlib
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flstudy.process_state import import_path
from flstudy.remote import is_uri
from flstudy.reporting.notebook import in_notebook
from flstudy.study.mirror import BucketMirror
from flstudy.study.signals import SAVE, handle_signals
from flstudy.tuning.address import cluster_address
from flstudy.tuning.cluster import max_concurrent_trials, set_max_pending_trials, store_variables
from flstudy.tuning.history import read_history
from flstudy.tuning.nodes import versions_here, watch_nodes
from flstudy.tuning.opening import OpenStudy
from flstudy.tuning.own_files import named_user_modules
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.resources import placement
from flstudy.tuning.schedulers import ray_scheduler
from flstudy.tuning.shortage import shortage
from flstudy.tuning.stop_signal import StopSignal
from flstudy.tuning.worker import Assignment, worker_class
from flstudy.tuning.writer import writer_of

if TYPE_CHECKING:
    from flstudy.tuning.trial_table import TrialTable


@dataclass(frozen=True)
class SearchedStudy:
    """Searched study, whose trials are over, for now.

    Attributes:
        study: the stage before.
        table: its trials.
        stop_signal: tells whether the study was stopped.
        progress: shows the last lines.
        mirror: of a study by URI.
    """

    study: OpenStudy
    table: "TrialTable"
    stop_signal: StopSignal
    progress: StudyProgress
    mirror: BucketMirror | None


def search(study: OpenStudy, claims: contextlib.ExitStack) -> SearchedStudy:
    """Run a study's trials; Ctrl-C and SIGTERM stop them with a snapshot, and so does a disk that fails.

    Args:
        study: the stage before.
        claims: hold the study's bucket, where it has one.
    """
    from flstudy.tuning.trial_table import TrialTable  # needs Ray, which has been started by now

    plan, folder = study.plan, study.folder
    config, domains = plan.config, plan.space.domains
    progress = StudyProgress(
        plan.console,
        name=folder.name,
        config=config,
        algorithms=len(domains["algorithm"].extremes()) if "algorithm" in domains else 1,
        trials=plan.trials,
        spent_s=folder.spent_s(),
        quiet=plan.quiet,
    )
    table, mirror = TrialTable(config, folder, progress, study.past), None
    stop_signal = StopSignal(folder.stop_signal_file)
    if is_uri(folder.name_or_uri):
        mirror = claims.enter_context(BucketMirror(folder, config.study.snapshot_s, progress.say, table.stop))
    on_cluster = cluster_address() is not None
    try:
        with (
            progress,
            _stop_on_signals(stop_signal, progress) as listen,
            writer_of(folder, study.store, store_variables(), study.identity, study.decisive) as writer,
            watch_nodes(writer.leave.remote) if on_cluster else contextlib.nullcontext(),
        ):
            assignment = Assignment(
                config=config,
                study_id=study.study_id,
                writer=writer,
                versions=versions_here() if on_cluster else {},
                data=study.data,
                path=(plan.modules, *import_path()) if named_user_modules(config.whole_study()) else (),
            )
            _fit(study, assignment, table, stop_signal, listen)
    except BaseException as error:
        denied = shortage(error, folder.path) if isinstance(error, Exception) else None
        if denied is None:
            stopped = isinstance(error, KeyboardInterrupt)
            study.run.finish("KILLED" if stopped else "FAILED")
            table.try_writing(lambda: folder.write_state("interrupted" if stopped else "failed"))
            raise
        stop_signal.send()
        table.halt(denied)
    return SearchedStudy(study, table, stop_signal, progress, mirror)


def _fit(
    study: OpenStudy, assignment: Assignment, table: "TrialTable", stop_signal: StopSignal, listen: Callable[[], object]
) -> None:
    """Run Ray Tune until all trials are done or the stop signal is sent; ``listen`` is called when Ray has set its own
    handlers of signals."""
    from ray import tune as ray_tune

    from flstudy.tuning.search import Search
    from flstudy.tuning.trial_table import RayEvents, StopOnInterrupt

    folder, config, section = study.folder, study.plan.config, study.plan.config.study
    # All trials of a population are there from the start.
    population = section.scheduler is not None and section.scheduler.exchanges

    def max_concurrent() -> int:
        if stop_signal.is_sent or table.hopeless is not None:
            return 0
        if population:
            return sys.maxsize
        return min(max_concurrent_trials(section.resources), section.concurrent or sys.maxsize)

    searcher = Search(
        study.plan.space,
        config,
        name=folder.name,
        max_concurrent=max_concurrent,
        past=study.past,
        spending=table,
        journal=folder.journal,
    )
    storage: dict[str, Any] = {"storage_path": str(folder.ray.parent)}
    if section.scheduler is not None and section.scheduler.passes_state:
        storage = {"storage_path": "states", "storage_filesystem": states_of(assignment.writer)}
    events = RayEvents(table, searcher, stop_signal, listen, assignment.writer)
    shutil.rmtree(folder.ray, ignore_errors=True)  # of an earlier start that was killed
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(worker_class(assignment), placement(section.resources)),
        tune_config=ray_tune.TuneConfig(
            search_alg=searcher,
            scheduler=ray_scheduler(config, read_history(folder, study.past, section.objective.metric)),
            num_samples=-1,  # the search says when it is over
            reuse_actors=True,  # importing torch anew for every trial took three times as long
        ),
        run_config=ray_tune.RunConfig(
            name=folder.ray.name,
            **storage,
            verbose=0,
            progress_reporter=silent_reporter() if in_notebook() else None,
            stop=StopOnInterrupt(table, stop_signal, events),
            callbacks=[events],
            failure_config=ray_tune.FailureConfig(max_failures=section.failures.retries, fail_fast=False),
            log_to_file=False,
        ),
    )
    try:
        with set_max_pending_trials(min(max_concurrent(), section.trials or sys.maxsize)):
            tuner.fit()
    finally:
        shutil.rmtree(folder.ray, ignore_errors=True)


def silent_reporter() -> Any:
    """Return a reporter of Ray Tune's that says nothing; Ray's own for notebooks clears the output of the cell."""
    from ray.tune import ProgressReporter

    class SilentReporter(ProgressReporter):
        def should_report(self, trials: Any, done: bool = False) -> bool:
            return False

        def report(self, trials: Any, done: bool, *sys_info: Any) -> None: ...

    return SilentReporter()


def states_of(writer: Any) -> Any:
    """Return the file system by which trials pass their states on."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    from flstudy.tuning.storage import WriterStorage

    return PyFileSystem(FSSpecHandler(WriterStorage(writer)))


@contextlib.contextmanager
def _stop_on_signals(stop_signal: StopSignal, progress: StudyProgress) -> Iterator[Callable[[], object]]:
    """Let trials end with a snapshot and keep the results at the first Ctrl-C and any SIGTERM; a second Ctrl-C insists.
    SIGUSR1 asks for snapshots. Call the yielded function when Ray Tune has set its handler, which would stop the study.
    """
    insist = signal.getsignal(signal.SIGINT)

    def stop() -> None:
        if signal.getsignal(signal.SIGINT) is not insist:
            signal.signal(signal.SIGINT, insist)
            progress.say("stopping: the results so far are kept (Ctrl-C again to insist)")
        stop_signal.send()

    def save() -> None:
        stop_signal.ask_for_snapshots()
        progress.say("every running trial writes a snapshot after its round")

    with handle_signals({signal.SIGINT: stop, SAVE: save}), contextlib.ExitStack() as later:
        if threading.current_thread() is threading.main_thread():  # replaces Ray's handler, which ends the process
            signal.signal(signal.SIGTERM, lambda number, frame: stop())  # stays after the block, for the conclusion
        yield lambda: later.enter_context(handle_signals({SAVE: save}))
