"""What runs in a Ray worker: the trainable around `run_trial`, and the threads it may use."""

import contextlib
import gc
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.nursery import thread_settings
from flstudy.study import Status, StudyFolder, Trial
from flstudy.tracking.content import trial_identity
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import Store
from flstudy.tuning.proposals import Proposal, algorithm_of, result_of
from flstudy.tuning.trial import HangWatch, Save, run_trial

if TYPE_CHECKING:
    from flstudy.config import Config

STATE = "trial.ckpt"  # in a checkpoint of Ray's
REPORT_S = 0.25  # between reports at which the scheduler decides nothing: they are for the eye only


@dataclass(frozen=True)
class Assignment:
    """What all trials of a study share; sent to every worker."""

    config: "Config"
    store: Store
    study: str
    study_id: str
    parent: str  # run id of the study in MLflow
    folder: StudyFolder
    environment: dict[str, str]  # tags
    data: dict[str, Any] = field(default_factory=dict)  # examples in Ray's object store by key
    access: Any = None  # Ray's reference to `store_variables`
    path: tuple[str, ...] = ()  # where users' own modules lie

    @property
    def threads(self) -> int:
        """Of a trial."""
        return max(1, int(self.config.study.resources.cpu))

    def tracker(self, trial: Trial) -> TrialRun:
        """The trial's run in MLflow, the same one whenever the trial is started again."""
        key, name, tags = trial_identity(
            trial,
            study=self.study,
            study_id=self.study_id,
            parent=self.parent,
            tags=self.config.tags(),
            environment=self.environment,
        )
        return TrialRun(self.store, name=name, key=key, tags=tags)


def worker_class(assignment: Assignment) -> type:
    """What Ray Tune runs with a `Proposal`."""
    from ray.tune.trainable.function_trainable import wrap_function

    def train(proposal: Proposal) -> None:
        sys.path[:0] = [place for place in assignment.path if place not in sys.path]
        work(assignment, proposal)

    class Worker(wrap_function(train)):  # type: ignore[misc]
        """Ray ends a worker that it does not need any more without waiting for its trial's thread."""

        def cleanup(self) -> None:
            super().cleanup()  # tells the thread to stop
            wait_idle()

    return Worker


_idle, _frozen = threading.Event(), threading.Event()
_idle.set()


def wait_idle() -> None:
    """Let a stopped trial close its records and its run; Ray kills the worker after 5 s."""
    _idle.wait(4.0)


def work(assignment: Assignment, proposal: Proposal) -> Trial:
    """Run one trial and report to Ray Tune."""
    from ray import tune

    _idle.clear()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    os.environ.update(thread_settings(assignment.threads))
    import ray
    import torch

    from flstudy.tuning.sharing import receive

    torch.set_num_threads(assignment.threads)
    if assignment.access is not None:
        os.environ.update(ray.get(assignment.access))
    receive(assignment.study_id, assignment.data)
    config, folder, number = assignment.config, assignment.folder, proposal["number"]
    scheduler, rounds = config.study.scheduler, config.rounds
    rungs = [] if scheduler is None else scheduler.rungs(rounds)
    trial = Trial(algorithm=algorithm_of(config, proposal["overrides"]), **proposal)
    tracker = assignment.tracker(trial)
    stop: SystemExit | None = None
    reported_at, reported_round = 0.0, 0

    def report(trial: Trial, save: Save | None) -> bool:
        nonlocal stop, reported_at, reported_round
        if stop is not None:
            return False
        running = trial.status is Status.RUNNING
        decides = not running or any(reported_round < rung <= trial.rounds for rung in rungs)
        if not decides and time.monotonic() - reported_at < REPORT_S:
            return True
        reported_at, reported_round = time.monotonic(), trial.rounds
        trial.run_id, trial.synced = tracker.run_id, tracker.delivered
        wanted = scheduler is not None and scheduler.passes_state and running
        try:
            with state_given(save if wanted else None) as checkpoint:
                tune.report(result_of(trial), checkpoint=checkpoint)
        except SystemExit as exit:  # how Ray says that the scheduler stopped the trial
            stop = exit
            return False
        return True

    given = tune.get_checkpoint()  # in a population, that of another trial perhaps
    timeout = config.study.failures.round_timeout_s
    try:
        with given.as_directory() if given is not None else contextlib.nullcontext() as checkpoint:
            run_trial(
                config,
                trial,
                report=report,
                tracker=tracker,
                records=folder.records(number),
                snapshot=folder.snapshot(number),
                resume=None if checkpoint is None else Path(checkpoint) / STATE,
                # A confirmation confirms a configuration; the model that is kept is that of the trial that it confirms.
                model=None if trial.is_confirmation else folder.model(number),
                watch=HangWatch(timeout, folder.hung(number)),
                beacon=folder.going,
            )
    finally:
        _idle.set()
        _release()
    if stop is not None:
        raise stop  # Ray waits for the thread to end so
    return trial


@contextlib.contextmanager
def state_given(save: Save | None) -> Iterator[Any]:
    """The trial's state as Ray passes it on, if there is one to give."""
    from ray.tune import Checkpoint

    if save is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / STATE)
        yield Checkpoint.from_directory(folder)


def _release() -> None:
    """A reused worker must not start its next trial with the memory of this one."""
    gc.collect()
    if not _frozen.is_set():
        _frozen.set()
        gc.freeze()  # what the first trial imported stays: looking through it took 0.35 s after every trial
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
