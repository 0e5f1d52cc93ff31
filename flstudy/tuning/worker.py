"""What runs in a Ray worker: the trainable around `run_trial`, and the threads it may use."""

import contextlib
import gc
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.config import Pbt
from flstudy.tracking.content import STUDY_ID, TRIAL, trial_name, trial_tags
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import Store
from flstudy.tuning.folder import StudyFolder
from flstudy.tuning.hang import HangWatch
from flstudy.tuning.trial import Outcome, algorithm_of, run_trial

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
    threads: int
    rungs: list[float]  # rounds at which the scheduler decides
    environment: dict[str, str]  # tags
    data: dict[str, Any] = field(default_factory=dict)  # examples in Ray's object store by key

    def tracker(self, number: int, overrides: dict[str, Any], of: int | None = None) -> TrialRun:
        """The trial's run in MLflow, the same one whenever the trial is started again; ``of``: what it confirms."""
        key = {STUDY_ID: self.study_id, TRIAL: str(number)}
        algorithm = algorithm_of(self.config, overrides)
        tags = trial_tags(self.study, algorithm, self.config.tags(), self.environment, of)
        return TrialRun(self.store, name=trial_name(number, algorithm, of), key=key, parent=self.parent, tags=tags)


def thread_settings(threads: int) -> dict[str, str]:
    """Environment of a worker: trials side by side must not fight for cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def trainable(assignment: Assignment) -> type:
    """What Ray Tune runs with a `Proposal`."""
    from ray.tune.trainable.function_trainable import wrap_function

    def trial(proposed: dict[str, Any]) -> None:
        work(assignment, proposed["number"], proposed["overrides"], proposed["of"])

    class Trial(wrap_function(trial)):  # type: ignore[misc]
        """Ray ends a worker that it does not need any more without waiting for its trial's thread."""

        def cleanup(self) -> None:
            super().cleanup()  # tells the thread to stop
            wait_idle()

    return Trial


_idle, _frozen = threading.Event(), threading.Event()
_idle.set()


def wait_idle() -> None:
    """Let a stopped trial close its records and its run; Ray kills the worker after 5 s."""
    _idle.wait(4.0)


def work(assignment: Assignment, number: int, overrides: dict[str, Any], of: int | None = None) -> Outcome:
    """Run one trial and report to Ray Tune."""
    from ray import tune

    _idle.clear()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    os.environ.update(thread_settings(assignment.threads))
    import torch

    from flstudy.tuning.sharing import receive

    torch.set_num_threads(assignment.threads)
    receive(assignment.study_id, assignment.data)
    tracker = assignment.tracker(number, overrides, of)
    stop: SystemExit | None = None
    told_at, told_round = 0.0, 0

    def report(told: dict[str, Any]) -> bool:
        nonlocal stop, told_at, told_round
        decides = told["status"] != "running" or any(told_round < rung <= told["round"] for rung in assignment.rungs)
        if not decides and time.monotonic() - told_at < REPORT_S:
            return True
        told_at, told_round = time.monotonic(), told["round"]
        # Ray flattens nested results and cuts names at '/': the metrics travel as text.
        numbers = {"objective": told["objective"], "round": told["round"]}
        rest = {"status": told["status"], "error": told["error"], "metrics": json.dumps(told["metrics"])}
        try:
            with _checkpoint(told, population and told["status"] == "running") as checkpoint:
                state = {"run_id": tracker.run_id, "synced": tracker.delivered}
                tune.report({**numbers, **rest, **state}, checkpoint=checkpoint)
        except SystemExit as exit:  # how Ray says that the scheduler stopped the trial
            stop = exit
            return False
        return True

    population = isinstance(assignment.config.study.scheduler, Pbt)
    timeout = assignment.config.study.failures.round_timeout_s
    given = tune.get_checkpoint()  # in a population, that of another trial perhaps
    try:
        with given.as_directory() if given is not None else contextlib.nullcontext() as folder:
            outcome = run_trial(
                assignment.config,
                overrides,
                report=report,
                tracker=tracker,
                records_path=assignment.folder.records(number),
                snapshot=assignment.folder.snapshot(number),
                resume=None if folder is None else Path(folder) / STATE,
                model=assignment.folder.model(number),
                watch=HangWatch(timeout, assignment.folder.hung(number)),
            )
    finally:
        _idle.set()
        _release()
    if stop is not None:
        raise stop  # Ray waits for the thread to end so
    return outcome


@contextlib.contextmanager
def _checkpoint(told: dict[str, Any], wanted: bool) -> Iterator[Any]:
    """The trial's state as Ray passes it on, if that is wanted and the trial can give it."""
    from ray.tune import Checkpoint

    if not wanted or "save" not in told:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        told["save"](Path(folder) / STATE)
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
