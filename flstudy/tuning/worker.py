"""Ray worker of a study: the trainable around `run_trial`, and the threads it may use."""

import contextlib
import gc
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.study import Status, Trial
from flstudy.tuning.cluster import thread_settings
from flstudy.tuning.files import LEFT, LeftError, Write
from flstudy.tuning.outbox import Outbox
from flstudy.tuning.own_files import make_importable
from flstudy.tuning.proposals import Proposal, algorithm_of, result_of
from flstudy.tuning.trial import HangWatch, run_trial

if TYPE_CHECKING:
    from flstudy.config import Config

STATE = "trial.ckpt"  # in a checkpoint of Ray's
REPORT_S = 0.25  # between reports at which the scheduler decides nothing: they are for display only


@dataclass(frozen=True)
class Assignment:
    """Assignment that all trials of a study share; sent to every worker."""

    config: "Config"
    study_id: str
    writer: Any  # Ray's handle of the study's writer
    versions: dict[str, str] = field(default_factory=dict)  # that a node of a cluster must have
    data: dict[str, Any] = field(default_factory=dict)  # examples in Ray's object store by key
    path: tuple[str, ...] = ()  # folders of the user's own modules
    cwd: str = field(default_factory=os.getcwd)  # the folder of relative paths in the config

    @property
    def threads(self) -> int:
        """Number of threads of a trial."""
        return max(1, int(self.config.study.resources.cpu))


def worker_class(assignment: Assignment) -> type:
    """Return the trainable class that Ray Tune runs with a `Proposal`."""
    from ray.tune.trainable.function_trainable import wrap_function

    def train(proposal: Proposal) -> None:
        make_importable(assignment.path)
        if os.path.isdir(assignment.cwd):  # may be missing on another node
            os.chdir(assignment.cwd)
        work(assignment, proposal)

    class Worker(wrap_function(train)):  # type: ignore[misc]
        """Trainable that waits a while for its trial's thread, for which Ray does not wait when it ends a worker."""

        def setup(self, config: Any) -> None:
            super().setup(config)
            before: Any = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *arguments: handle_sigterm(lambda: before(*arguments)))

        def cleanup(self) -> None:
            super().cleanup()  # tells the thread to stop
            wait_idle()

    return Worker


_idle, _frozen, _leaving = threading.Event(), threading.Event(), threading.Event()
_idle.set()


def handle_sigterm(end: Callable[[], Any]) -> None:
    """Handle SIGTERM: a trial leaves with a snapshot after its round; without a trial, or a second time, end."""
    if _idle.is_set() or _leaving.is_set():
        end()
    _leaving.set()


def can_take_trial(assignment: Assignment) -> bool:
    """Return whether this node, of a cluster, takes a trial: Ray starts no worker on one that drains, but keeps those
    that are there.

    Raises:
        RuntimeError: for a node that joined later and has other versions.
    """
    if not assignment.versions:
        return True
    import ray

    from flstudy.tuning.nodes import takes_trials, versions_here

    if versions_here() != assignment.versions:
        raise RuntimeError(
            f"node {ray.util.get_node_ip_address()} has {versions_here()}, and the study {assignment.versions}: "
            "install the same there, or take it out of the cluster"
        )
    return takes_trials(ray.util.get_node_ip_address())


def wait_idle() -> None:
    """Let a stopped trial close its records and its run; Ray kills the worker after 5 s."""
    _idle.wait(4.0)


def work(assignment: Assignment, proposal: Proposal) -> Trial:
    """Run one trial and report to Ray Tune."""
    from ray import tune

    if not can_take_trial(assignment):
        raise left_error()
    _idle.clear()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    os.environ.update(thread_settings(assignment.threads))
    import torch

    from flstudy.tuning.sharing import receive

    torch.set_num_threads(assignment.threads)
    receive(assignment.study_id, assignment.data)
    config = assignment.config
    scheduler, rounds = config.study.scheduler, config.rounds
    rungs = [] if scheduler is None else scheduler.rungs(rounds)
    trial = Trial(algorithm=algorithm_of(config, proposal["overrides"]), **proposal)
    # A confirmation confirms a configuration; the model that is kept is that of the trial that it confirms.
    keeps = not trial.is_confirmation
    outbox = Outbox(assignment.writer, trial, keeps_model=keeps, leaving=_leaving.is_set)
    stop: SystemExit | None = None
    reported_at, reported_round = 0.0, 0

    def report(trial: Trial, save: Write | None) -> bool:
        nonlocal stop, reported_at, reported_round
        if stop is not None:
            return False
        running = trial.status is Status.RUNNING
        decides = not running or any(reported_round < rung <= trial.rounds for rung in rungs)
        if not decides and time.monotonic() - reported_at < REPORT_S:
            return True
        reported_at, reported_round = time.monotonic(), trial.rounds
        trial.run_id = outbox.run_id
        wanted = scheduler is not None and scheduler.passes_state and running
        try:
            with state_checkpoint(save if wanted else None) as checkpoint:
                tune.report(result_of(trial), checkpoint=checkpoint)
        except SystemExit as exit:  # how Ray says that the scheduler stopped the trial
            stop = exit
            return False
        return True

    passed_on = tune.get_checkpoint()  # in a population, that of another trial perhaps
    timeout = config.study.failures.round_timeout_s
    try:
        with passed_on.as_directory() if passed_on is not None else contextlib.nullcontext() as checkpoint:
            run_trial(
                config,
                trial,
                report=report,
                files=outbox,
                tracker=outbox,
                resume=None if checkpoint is None else Path(checkpoint) / STATE,
                watch=HangWatch(timeout, outbox.stacks_file),
            )
    except LeftError as error:
        raise left_error() from error
    finally:
        outbox.close()
        _idle.set()
        _release()
    if stop is not None:
        raise stop  # Ray waits for the thread to end so
    return trial


def left_error() -> Exception:
    """Return the error that Ray takes for a worker's end without a failure: it starts the trial again, elsewhere."""
    from ray.exceptions import RayActorError

    return RayActorError(error_msg=f"LeftError: {LEFT}", preempted=True)


@contextlib.contextmanager
def state_checkpoint(save: Write | None) -> Iterator[Any]:
    """Yield the trial's state as a checkpoint of Ray's; None without ``save``."""
    from ray.tune import Checkpoint

    if save is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / STATE)
        yield Checkpoint.from_directory(folder)


def _release() -> None:
    """Release a trial's memory, with which a reused worker must not start its next one."""
    gc.collect()
    if not _frozen.is_set():
        _frozen.set()
        gc.freeze()  # what the first trial imported stays: looking through it took 0.35 s after every trial
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
