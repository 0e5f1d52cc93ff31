"""Delivery of one run's metrics to MLflow, while a trial runs and later from its records: each round of a metric once.

MLflow takes values as equal only where key, value, timestamp and step are. A request that a process sent before it was
killed may be carried out at any later time, and the next process would send the same round with another timestamp. So a
batch is noted on disk before it is sent. The next delivery begins with the noted batch, unchanged, which MLflow keeps
once however often it arrives; then it asks which steps the run has, and sends only what is missing.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flstudy.study.damage import parse_json, read_bounded
from flstudy.study.folder import replace_text
from flstudy.tracking.store import METRICS_PER_CALL, MetricValue, Store, accepted, in_batches, one_line


class PendingNote:
    """Note of the batch of a run's values that is on its way to MLflow.

    Args:
        path: of the file; None notes nothing, for runs that no other process goes on with.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock, self._closed = threading.Lock(), False

    def read(self, run_id: str) -> list[MetricValue]:
        """Return the noted batch; empty where there is none, or where it is another run's."""
        if self._path is None:
            return []
        try:
            noted = parse_json(read_bounded(self._path))
            return [MetricValue(*value) for value in noted["values"]] if noted["run_id"] == run_id else []
        except (OSError, ValueError, KeyError, TypeError):  # files are replaced whole: none was sent
            return []

    def write(self, run_id: str, values: Sequence[MetricValue]) -> None:
        """Note a batch in place of the last one, which MLflow has.

        Raises:
            TimeoutError: after `close`.
            OSError: for a disk that does not take it.
        """
        with self._lock:
            if self._closed:
                raise TimeoutError("given up")
            if self._path is not None:
                self._path.parent.mkdir(exist_ok=True)
                replace_text(self._path, json.dumps({"run_id": run_id, "values": values}))

    def close(self) -> None:
        """Let no batch follow the noted one, which another delivery may read now."""
        with self._lock:
            self._closed = True

    def remove(self) -> None:
        """Forget the batch, once MLflow has it; after `close` it may be another delivery's."""
        with self._lock, contextlib.suppress(OSError):
            if self._path is not None and not self._closed:
                self._path.unlink(missing_ok=True)
                self._path.parent.rmdir()  # with the last one


Attempt = Callable[..., Any]
"""Function that makes a call, perhaps several times; gives its result, or None where MLflow refuses it for good."""


class MetricDelivery:
    """Delivery to a run of the metric values that it lacks.

    Attributes:
        names: of the metrics that the run had when the delivery began.
        refused: metrics that MLflow refuses, each with the reason; nothing more of them is sent.

    Args:
        store: MLflow.
        run_id: of the run.
        names: of the metrics that it has.
        note: where batches are noted.
        attempt: makes every call.
    """

    def __init__(self, store: Store, run_id: str, names: Iterable[str], note: PendingNote, attempt: Attempt) -> None:
        self._store, self._run_id, self._note, self._attempt = store, run_id, note, attempt
        self.refused: dict[str, str] = {}
        self._sent = dict[str, None]()  # metrics of which MLflow took values, in order
        unanswered = note.read(run_id)
        if unanswered:
            attempt(self._send, unanswered)
        self.names = {*names, *(value.name for value in unanswered)}
        self._steps: dict[str, set[int]] = {}  # that the run has, by metric

    def missing(self, values: Iterable[MetricValue]) -> list[MetricValue]:
        """Return the values of the steps that the run does not have; of two of one step the first."""
        lacking = []
        for value in values:
            steps = self._steps.get(value.name)
            if steps is None:
                steps = self._steps[value.name] = self._steps_there(value.name)
            if value.step not in steps:
                steps.add(value.step)
                lacking.append(value)
        return lacking

    def send(self, values: Sequence[MetricValue]) -> int:
        """Send values; returns how many MLflow took. A metric that it refuses costs no other one."""
        left = [value for value in values if value.name not in self.refused]
        return sum(self._attempt(self._send, batch) or 0 for batch in in_batches(left, METRICS_PER_CALL))

    def shortfall(self) -> str | None:
        """Return why the run is not complete but for metrics that MLflow refuses alone; None if it is. The metrics of
        which MLflow took values are read back."""
        if self.refused and not self._sent and not self.names:
            return f"MLflow refuses all of it: {next(iter(self.refused.values()))}"
        shown = self._store.client.get_run(self._run_id).data.metrics
        lacking = [name for name in self._sent if name not in shown]
        return f"MLflow took {', '.join(lacking)}, and the run does not have it" if lacking else None

    def _send(self, batch: Sequence[MetricValue]) -> int:
        self._note.write(self._run_id, batch)

        def send(names: Sequence[str]) -> None:
            chosen = {*names}
            self._store.log_metrics(self._run_id, [value for value in batch if value.name in chosen])

        def refuse(name: str, error: Exception) -> None:
            self.refused[name] = one_line(error)

        names = {*accepted(send, list(dict.fromkeys(value.name for value in batch)), refuse)}
        self._sent |= {value.name: None for value in batch if value.name in names}
        return sum(value.name in names for value in batch)

    def _steps_there(self, name: str) -> set[int]:
        if name not in self.names:
            return set()
        history = self._attempt(self._store.client.get_metric_history, self._run_id, name)
        return {metric.step for metric in history or ()}
