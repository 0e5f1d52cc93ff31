"""Runs in MLflow: one parent per study, one child per trial, written without ever holding up or failing a trial."""

import getpass
import importlib.metadata
import logging
import math
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.tracking.rows import Figure
from flstudy.tracking.store import EXPERIMENT, FOLDER, Store, absolute, default_uri, open_store

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Record

__all__ = ["EXPERIMENT", "FOLDER", "Store", "StudyRun", "TrialRun", "absolute", "default_uri", "open_store"]

log = logging.getLogger(__name__)

STUDY, STUDY_ID, TRIAL, PARENT = "flstudy.study", "flstudy.study_id", "flstudy.trial", "mlflow.parentRunId"
_LIBRARIES = ("torch", "lightning", "ray", "optuna", "mlflow", "flstudy")
_EVALUATION = ("valid/", "test/")
_METRICS_PER_CALL = 1000  # the most that log_batch takes
_PARAMS_PER_CALL = 100
_TEXT_LENGTH = 5000  # of a tag


def environment() -> dict[str, str]:
    """Tags that say with what code and versions a run was made."""
    tags = {}
    for name in _LIBRARIES:
        try:
            tags[f"version.{name}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        tags["mlflow.user"] = getpass.getuser()
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
        if commit.returncode == 0:
            tags["mlflow.source.git.commit"] = commit.stdout.strip()
    except (OSError, KeyError, subprocess.SubprocessError):
        pass  # no git, no user name: nothing to say of them
    return tags


class StudyRun:
    """The parent run of a study, written by the driver."""

    def __init__(self, store: Store, *, name: str, study_id: str, config: "Config", resumed: bool = False) -> None:
        """``resumed``: the run is there already, with its parameters, which MLflow lets nobody change."""
        self.store = store
        tags = {**config.tags(), **environment(), "flstudy.kind": "study"}
        if "algorithm" in config.study.search:
            tags["algorithm"] = "searched"  # the config's own would pose as the only one
        self.run_id = store.get_or_create({STUDY_ID: study_id, "flstudy.kind": "study"}, name, {STUDY: name, **tags})
        self._safely(store.client.log_dict, self.run_id, config.plain(), "config.yaml")
        if resumed:
            self.set_tags({"resumed": "true", "study.trials": config.study.trials})
            return
        study = config.study
        params: dict[str, Any] = {
            "study.trials": study.trials,
            "study.rounds": config.rounds,
            "study.seeds": config.seeds,
        }
        params |= {"study.objective": study.objective.metric, "study.mode": study.objective.mode}
        params |= {f"study.search.{key}": domain for key, domain in study.search.items()}
        for batch in _batches(_params(params), _PARAMS_PER_CALL):
            self._safely(store.client.log_batch, self.run_id, params=batch)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Figures of the whole study, such as the best objective."""
        stamp = int(1000 * time.time())
        figures = [Figure(name, float(value), stamp, 0) for name, value in metrics.items()]
        self._safely(self.store.log_metrics, self.run_id, figures)

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """A file of the study folder: a figure, a table, the list of trials."""
        self._safely(self.store.client.log_artifact, self.run_id, str(path), folder)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        for name, value in tags.items():
            self._safely(self.store.client.set_tag, self.run_id, name, str(value)[:_TEXT_LENGTH])

    def finish(self, status: str = "FINISHED") -> None:
        self._safely(self.store.client.set_terminated, self.run_id, status)

    @staticmethod
    def _safely(call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            call(*arguments, **named)
        except Exception as error:  # results are on disk as well: a store that went away must not lose a study
            log.warning("MLflow did not take %s of the study: %s", call.__name__, error)


class TrialRun:
    """The run of one trial. A thread of its own opens the run and delivers metrics, so the trial never waits for it.

    While the store does not answer, metrics wait in memory and are tried again; what is still undelivered
    ``patience_s`` after `finish` is given up with one warning.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        key: Mapping[str, str],
        parent: str | None = None,
        tags: Mapping[str, str] | None = None,
        every_s: float = 2.0,
        every_rounds: int = 20,
        patience_s: float = 20.0,
    ) -> None:
        """``key``: the tags by which a second start finds the run again; ``parent``: run id of the study."""
        self.store, self.name, self.key = store, name, dict(key)
        self.tags = {"flstudy.kind": "trial", "diverged": "false", **(tags or {})}
        if parent is not None:
            self.tags[PARENT] = parent
        self.every_s, self.every_rounds, self.patience_s = every_s, every_rounds, patience_s
        self.run_id: str | None = None  # known once the thread has opened the run
        self._seeds: Sequence[int] = ()
        self._rounds: list[tuple[int, float, Mapping[str, Sequence[float]]]] = []
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._deadline: float | None = None  # set by finish
        self._ending: tuple[str, dict[str, str]] = ("FINISHED", {})
        self._thread: threading.Thread | None = None
        self._told: dict[str, int] = {}  # last round of each metric that an earlier start has delivered

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the run (in the background) with its parameters, tags and the config as an artifact."""
        self._seeds = list(seeds)
        self.tags |= {name: str(value)[:_TEXT_LENGTH] for name, value in tags.items()}
        self._thread = threading.Thread(target=self._deliver, args=(dict(params), config), daemon=True)
        self._thread.start()

    def log(self, record: "Record") -> None:
        """Note one round; returns at once."""
        with self._lock:
            self._rounds.append((record.round, time.time(), record.metrics))
            full = len(self._rounds) >= self.every_rounds
        if full:
            self._wake.set()

    def finish(
        self, status: str = "FINISHED", *, tags: Mapping[str, str] | None = None, error: str | None = None
    ) -> None:
        """Deliver what is left and close the run; waits for that, but not longer than ``patience_s``.

        ``error``: the traceback.
        """
        ending = {**(tags or {}), **told_error(error)}
        if self._thread is None:
            return
        self._ending = (status, ending)
        self._deadline = time.monotonic() + self.patience_s
        self._wake.set()
        self._thread.join(self.patience_s + 1)
        if self._thread.is_alive():
            log.warning("MLflow did not answer: the end of %s is missing in %s", self.name, self.store.uri)
        self._thread = None

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _deliver(self, params: dict[str, Any], config: Mapping[str, Any] | None) -> None:
        try:
            run_id = self._open(params, config)
            while True:
                last = self._deadline is not None  # read before the rounds: none comes after finish
                with self._lock:
                    rounds, self._rounds = self._rounds, []
                figures = [
                    Figure(name, float(value), int(1000 * at), round)
                    for round, at, values in rounds
                    for name, value in self._figures(values)
                    if round > self._told.get(name, 0)
                ]
                for batch in _batches(figures, _METRICS_PER_CALL):
                    self._try(self.store.log_metrics, run_id, batch)
                if last:
                    break
                self._wake.wait(self.every_s)
                self._wake.clear()
            status, tags = self._ending
            for name, value in tags.items():
                self._try(self.store.client.set_tag, run_id, name, value)
            self._try(self.store.client.set_terminated, run_id, status)
        except Exception as error:  # never the trial's business
            log.warning("MLflow lost metrics of %s: %s", self.name, error)

    def _open(self, params: dict[str, Any], config: Mapping[str, Any] | None) -> str:
        known = self._try(self.store.find, self.key, needed=True)
        run_id: str = self._try(self.store.get_or_create, self.key, self.name, self.tags, needed=True)
        if known is not None:  # a trial that goes on from a snapshot tells some rounds again
            self._told = {name: self._last_step(run_id, name) for name in known.data.metrics}
            for name in ("interrupted", "pruned", "failed"):  # it will say anew how it ended
                if known.data.tags.get(name) == "true":
                    self._try(self.store.client.set_tag, run_id, name, "false")
        self.run_id = run_id
        for batch in _batches(_params(params), _PARAMS_PER_CALL):
            self._try(self.store.client.log_batch, run_id, params=batch)
        if config is not None:
            self._try(self.store.client.log_dict, run_id, dict(config), "config.yaml")
        return run_id

    def _last_step(self, run_id: str, name: str) -> int:
        history = self._try(self.store.client.get_metric_history, run_id, name)
        return max((metric.step for metric in history or ()), default=0)

    def _figures(self, metrics: Mapping[str, Sequence[float]]) -> Iterable[tuple[str, float]]:
        """Mean over replicas under the metric's name, the spread of evaluations, and accuracies seed by seed."""
        for name, values in metrics.items():
            yield name, mean(values)
            if len(values) > 1 and name.startswith(_EVALUATION):
                finite = all(math.isfinite(value) for value in values)
                yield f"{name}_std", statistics.stdev(values) if finite else math.nan
            if name.endswith("accuracy") and len(values) == len(self._seeds):
                for seed, value in zip(self._seeds, values, strict=True):
                    yield f"seed{seed}/{name}", value

    def _try(self, call: Callable[..., Any], *arguments: Any, needed: bool = False, **named: Any) -> Any:
        """The call's result, however often it takes; after `finish`, only until the deadline."""
        wait_s = 0.1
        while True:
            try:
                return call(*arguments, **named)
            except Exception as error:
                refused = getattr(error, "error_code", "") in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")
                if refused and not needed:
                    log.warning("MLflow refused a part of %s: %s", self.name, error)
                    return None
                if refused or (self._deadline is not None and time.monotonic() + wait_s > self._deadline):
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)


def told_error(error: str | None) -> dict[str, str]:
    """A traceback as tags: its last line as ``error``, all of it as the run's description."""
    if error is None or not error.strip():
        return {}
    text = error.strip()
    return {"error": text.splitlines()[-1][:_TEXT_LENGTH], "mlflow.note.content": f"```\n{text[-_TEXT_LENGTH:]}\n```"}


def mean(values: Sequence[float]) -> float:
    """Over replicas; NaN or infinite if one of them is."""
    return math.fsum(values) / len(values) if all(math.isfinite(value) for value in values) else float(sum(values))


def _params(params: Mapping[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    return [Param(name, str(value)) for name, value in params.items()]


def _batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
