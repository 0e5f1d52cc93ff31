"""Runs in MLflow: one parent per study, one child per trial, written without ever holding up or failing a trial."""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.study.folder import StudyFolder
from flstudy.study.records import RoundRecord
from flstudy.tracking.content import (
    DELIVERED,
    REFUSED,
    STUDY,
    STUDY_ID,
    TEXT_LENGTH,
    TrialMetrics,
    environment,
    error_tags,
    refusal_tag,
    round_values,
    study_params,
    study_tags,
)
from flstudy.tracking.delivery import MetricDelivery, PendingNote
from flstudy.tracking.store import MetricValue, Store, is_refusal, one_line
from flstudy.tracking.views import log_views, studies_view, study_view

if TYPE_CHECKING:
    from flstudy.config import Config

log = logging.getLogger(__name__)

_AWAY_S = 2.0  # how long the end of a trial waits for a store that does not answer
_SLOW_S = 6.0  # an attempt after a failed one that takes longer counts as failed, too
FILES = "flstudy.files"
"""Tag of a study's run: digests of the files that it has."""


class StudyRun:
    """The parent run of a study, opened by the driver; `flstudy.tracking.sync` completes it at the study's end."""

    def __init__(self, store: Store, *, name: str, study_id: str, config: "Config", resumed: bool = False) -> None:
        """Open the run; ``resumed``: it exists already, with its parameters, which MLflow lets nobody change."""
        self.store, self.study_id = store, study_id
        tags = {STUDY: name, **study_tags(config.study, config.tags()), **environment()}
        self.run_id = store.get_or_create({STUDY_ID: study_id, "flstudy.kind": "study"}, name, tags)
        views = {**studies_view(), **study_view(config.study, study_id)}
        self._taken(lambda _: log_views(store, views))
        if self._taken(store.client.log_dict, config.plain(), "config.yaml"):
            if resumed:
                self._taken(store.log_tags, {"resumed": "true", "study.trials": str(config.study.trials)})
            else:
                self._taken(store.log_params, study_params(config.study, config.rounds, config.seeds))

    def log_files(self, folder: StudyFolder) -> bool:
        """Log the list of trials and the report, as far as they are new or changed; returns whether MLflow has them."""
        return self._taken(partial(log_study_files, self.store), folder)

    def finish(self, status: str = "FINISHED") -> None:
        self._taken(self.store.client.set_terminated, status)

    def _taken(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """Make a call, twice at most, and return whether MLflow took it: a store that went away must not lose a study,
        whose results are on disk as well."""
        for last in (False, True):
            try:
                call(self.run_id, *arguments)
                return True
            except Exception as error:
                if last or is_refusal(error):
                    log.warning("MLflow did not take all of the study: %s", one_line(error))
                    break
                time.sleep(0.5)  # none of the calls does harm when it is made twice
        return False


def log_study_files(store: Store, run_id: str, folder: StudyFolder) -> int:
    """Log the list of trials and the report of a study's folder as artifacts; return how many were new or changed."""
    logged = json.loads(store.client.get_run(run_id).data.tags.get(FILES, "{}"))
    paths = {f"report/{path.name}": path for path in sorted(folder.report.glob("*"))}
    paths |= {path.name: path for path in [folder.trials]}
    digests, changed = {}, 0
    for name, path in paths.items():
        if not path.is_file() or path.is_symlink():
            continue
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        if logged.get(name) != digests[name]:
            store.client.log_artifact(run_id, str(path), name.rpartition("/")[0] or None)
            changed += 1
    if changed:
        store.client.set_tag(run_id, FILES, json.dumps(digests))
    return changed


class TrialRun:
    """The run of one trial. A thread of its own opens the run and delivers metrics, so the trial never waits for it.

    While the store does not answer, metrics wait in memory and are tried again. `finish` waits ``patience_s`` for the
    rest, and ``away_s`` where the last attempt failed; what is missing then is in the trial's records, from which
    `flstudy.tracking.sync` delivers it later.

    Attributes:
        run_id: id, once the run is open.
        delivered: whether MLflow has all of the trial; False before `finish`.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        key: Mapping[str, str],
        tags: Mapping[str, str] | None = None,
        every_s: float = 2.0,
        every_rounds: int = 20,
        patience_s: float = 20.0,
        away_s: float = _AWAY_S,
        after: "TrialRun | None" = None,
        note: Path | None = None,
        decisive: Sequence[str] | None = None,
    ) -> None:
        """Make a run that is not open yet.

        Args:
            store: MLflow.
            name: of the run.
            key: the tags by which a second start finds the run again.
            tags: further ones.
            every_s: seconds between two deliveries.
            every_rounds: rounds that wait for one at most.
            patience_s: how long `finish` waits.
            away_s: how long it waits for a store that does not answer.
            after: the first start, in this process.
            note: the file by which another process delivers nothing twice, should this one be killed.
            decisive: metrics by which the trial's study decides, for `TrialMetrics`; None: the run has every metric.
        """
        self.store, self.name, self.key, self.tags = store, name, dict(key), dict(tags or {})
        self.every_s, self.every_rounds = every_s, every_rounds
        self.patience_s, self.away_s = patience_s, min(away_s, patience_s)
        self.run_id: str | None = None
        self.delivered = False
        self._seeds: Sequence[int] = ()
        self._rounds: list[tuple[int, float, Mapping[str, Sequence[float]]]] = []
        self._last = 0  # round
        self._lock, self._wake, self._over = threading.Lock(), threading.Event(), threading.Event()
        self._failed, self._given_up = False, False  # the last attempt; all further ones
        self._after = after
        if after is not None:
            after.abandon()
        self._ended_at: float | None = None
        self._asked: float | None = None  # when the attempt that is under way began
        self._ending: tuple[str, dict[str, str]] = ("FINISHED", {})
        self._thread: threading.Thread | None = None
        self._note, self._decisive = PendingNote(note), decisive

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
        self.tags |= {name: str(value)[:TEXT_LENGTH] for name, value in tags.items()}
        self._thread = threading.Thread(target=self._deliver, args=(dict(params), config), daemon=True)
        self._thread.start()

    def log(self, record: RoundRecord, at: float | None = None) -> None:
        """Note one round, of now or of a time in seconds since 1970; returns at once."""
        with self._lock:
            self._rounds.append((record.round, time.time() if at is None else at, record.metrics))
            self._last = max(self._last, record.round)
            full = len(self._rounds) >= self.every_rounds
        if full:
            self._wake.set()

    def finish(
        self, status: str = "FINISHED", *, tags: Mapping[str, str] | None = None, error: str | None = None
    ) -> bool:
        """Deliver what is left and close the run.

        Args:
            status: MLflow's.
            tags: further ones.
            error: the traceback.

        Returns:
            Whether MLflow has all of it, as ``delivered``. Waits for that, but not longer than ``patience_s``, or
            ``away_s`` for a store that does not answer.
        """
        self.end(status, tags=tags, error=error)
        return self.settle()

    def end(self, status: str = "FINISHED", *, tags: Mapping[str, str] | None = None, error: str | None = None) -> None:
        """Finish without waiting. `settle` waits; where it is not called, the delivery goes on as long as the store
        takes something, and gives up where `finish` would."""
        self._ending = (status, {**(tags or {}), **error_tags(error)})
        self._ended_at = time.monotonic()
        self._over.set()
        self._wake.set()

    @property
    def _waits(self) -> bool:
        """Return whether the run has ended, is being delivered, and may still be delivered in time."""
        if self._thread is None or not self._thread.is_alive() or self._given_up or self._ended_at is None:
            return False
        return time.monotonic() - self._ended_at < (self.away_s if self._away else self.patience_s)

    def settle(self) -> bool:
        """Wait for a run that has ended, as long as there is hope; afterwards nothing of it arrives in MLflow."""
        thread = self._thread
        if thread is None:
            return self.delivered
        while self._waits:
            thread.join(0.05)
        self._give_up()
        return self.delivered

    def abandon(self) -> None:
        """Deliver nothing more of a run that has not ended: its process is gone."""
        if self._ended_at is None:
            self._give_up()
            self._over.set()
            self._wake.set()

    def _give_up(self) -> None:
        if self._ended_at is not None and not self._given_up and not self.delivered:
            log.warning("MLflow has not got all of %s: %s does not answer or refuses it", self.name, self.store.uri)
        self._given_up = True
        self._note.close()

    @property
    def _away(self) -> bool:
        asked = self._asked  # a server that has just been started answers its first call slowly
        return self._failed and (asked is None or time.monotonic() - asked > _SLOW_S)

    # ---- in the thread ---------------------------------------------------------------------------------------------

    def _deliver(self, params: dict[str, Any], config: Mapping[str, Any] | None) -> None:
        try:
            if self._after is not None:
                self._after.settle()
                if self._after._thread is not None:
                    self._after._thread.join(_SLOW_S)  # a request that is under way
                self._after = None
            run_id, delivery = self._open(params)
            config_logged = self._keep(run_id, config)
            values_of: Callable[..., Iterable[tuple[str, float]]] = partial(round_values, seeds=self._seeds)
            if self._decisive is not None:
                values_of = TrialMetrics(self._decisive, self._seeds, delivery.names).round_values
            while True:
                last = self._over.is_set()  # read before the rounds: none comes after finish
                with self._lock:
                    rounds, self._rounds = self._rounds, []
                values = [
                    MetricValue(name, float(value), int(1000 * at), round)
                    for round, at, metrics in rounds
                    for name, value in values_of(metrics)
                ]
                delivery.send(delivery.missing(values))  # a trial that goes on from a snapshot tells some rounds again
                if last:
                    break
                self._wake.wait(self.every_s)
                self._wake.clear()
            config_logged = config_logged or self._keep(run_id, config)
            status, tags = self._ending
            shortfall = self._try(delivery.shortfall, needed=True)
            if shortfall is not None:
                log.warning("%s: %s", self.name, shortfall)
            if delivery.refused:
                tags = {**tags, REFUSED: refusal_tag(delivery.refused)}
            complete = config_logged and shortfall is None
            self._try(self.store.log_tags, run_id, {**tags, **({DELIVERED: str(self._last)} if complete else {})})
            self._try(self.store.client.set_terminated, run_id, status)
            self._note.remove()
            self.delivered = complete
        except Exception as error:  # never the trial's business
            if not self._given_up:  # else `finish` has said it
                log.warning("MLflow lost metrics of %s: %s", self.name, one_line(error))

    def _open(self, params: dict[str, Any]) -> tuple[str, MetricDelivery]:
        run = self._try(self.store.find, self.key, needed=True)
        run_id: str = self._try(self.store.get_or_create, self.key, self.name, self.tags, needed=True)
        delivery = MetricDelivery(self.store, run_id, run.data.metrics if run else (), self._note, self._try)
        if run is not None:
            stale = [name for name in ("interrupted", "pruned", "failed") if run.data.tags.get(name) == "true"]
            if stale:  # it will say anew how it ended
                self._try(self.store.log_tags, run_id, dict.fromkeys(stale, "false"))
        self.run_id = run_id
        self._try(self.store.log_params, run_id, params)
        return run_id, delivery

    def _keep(self, run_id: str, config: Mapping[str, Any] | None) -> bool:
        """Log the config as an artifact; returns whether it is one. Metrics do not wait for the store of artifacts."""
        try:
            if config is not None:
                self.store.client.log_dict(run_id, dict(config), "config.yaml")
        except Exception as error:
            log.warning("MLflow did not take the config of %s: %s", self.name, one_line(error))
            return False
        return True

    def _try(self, call: Callable[..., Any], *arguments: Any, needed: bool = False, **named: Any) -> Any:
        """Repeat a call until it succeeds or `finish` gives up; returns its result."""
        wait_s = 0.1
        while True:
            if self._given_up:  # what arrived now might meet what is delivered later
                raise TimeoutError("given up")
            self._asked = time.monotonic()
            try:
                result = call(*arguments, **named)
                self._failed = False
                return result
            except Exception as error:
                if is_refusal(error) and not needed:
                    log.warning("MLflow refused a part of %s: %s", self.name, one_line(error))
                    return None
                self._failed = "locked" not in str(error)  # by another writer, who is soon done
                if is_refusal(error):
                    raise
            finally:
                self._asked = None
            if self._over.is_set():
                if not self._waits:
                    self._give_up()
                time.sleep(min(wait_s, 0.5))
            else:
                self._over.wait(wait_s)  # `finish` is worth another attempt at once
            wait_s = min(2 * wait_s, 5.0)
