"""Tells a store later what it has missed of a study: everything that MLflow should have is in the study's folder.

    study.yaml, state.json   the parent run: its parameters, tags, best trials and status
    trials.jsonl             how each trial ended
    records/<trial>.parquet  every figure of every round
    report/                  artifacts of the parent run
    models/<trial>.pt        the best trials' models

A trial's run is complete when it says so (the tag flstudy.delivered, set last by whoever delivered), so that a study
that lacks nothing costs one query. Of the others every metric is compared round by round and only what is missing is
told: telling twice changes nothing. Runs that were deleted in MLflow are made again.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from flstudy.config import ConfigError
from flstudy.study.records import curve, metric_names, read_records, seeds_of
from flstudy.tracking.content import (
    BAD_ENDS,
    DELIVERED,
    PARENT,
    STUDY,
    STUDY_ID,
    TRIAL,
    environment,
    error_tags,
    round_values,
    run_status,
    study_params,
    study_tags,
    trial_name,
    trial_tags,
)
from flstudy.tracking.runs import log_study_files
from flstudy.tracking.store import METRICS_PER_CALL, MetricValue, Store, in_batches, is_refusal, one_line
from flstudy.tracking.trials import read_entries, write_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.entities import Run

    from flstudy.config import Config

log = logging.getLogger(__name__)

_PARENT = -1  # stands for the study's own run among the trials' numbers
_STUDY_STATUS = {"finished": "FINISHED", "failed": "FAILED"}  # anything else was stopped or killed


@dataclass
class Delivery:
    """What a store was told, by kind."""

    runs: int = 0
    values: int = 0
    parameters: int = 0
    tags: int = 0
    ends: int = 0
    files: int = 0
    models: int = 0
    run_ids: dict[int, str] = field(default_factory=dict)
    """The run of every trial, those that lacked nothing included."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers by kind."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "run_ids"}

    def __str__(self) -> str:
        found = [f"{count} {name if count > 1 else name[:-1]}" for name, count in self.counts.items() if count]
        return ", ".join(found) or "nothing was missing"


def sync_study(folder: Path, store: Store) -> Delivery:
    """Tell the store what it lacks of the study in the folder, and note in trials.jsonl that it has it.

    Not to be called while the study runs: its trials tell their own.

    Raises:
        ConfigError: where the folder holds no study that was started.
        Exception: MLflow's, where the store does not answer; what it took until then is not told again.
    """
    delivery, path = Delivery(), folder / "trials.jsonl"
    study = _Study(folder, store, delivery)
    parent, entries = study.parent(), read_entries(path)
    for entry in entries:
        delivery.run_ids[entry["trial"]] = study.trial(entry, parent)
    noted = [entry | {"run_id": delivery.run_ids[entry["trial"]], "synced": True} for entry in entries]
    if noted != entries and study.state.get("store", store.uri) == store.uri:  # another store has other runs
        write_entries(path, noted)
    study.conclude()
    if (folder / "models").is_dir():
        from flstudy.tracking.models import log_models  # torch

        delivery.models = log_models(folder, store, delivery.run_ids)
    return delivery


class _Study:
    """A study's folder beside its runs."""

    def __init__(self, folder: Path, store: Store, delivery: Delivery) -> None:
        self.folder, self.store, self.delivery = folder, store, delivery
        try:
            self.state = json.loads((folder / "state.json").read_text())
            self.plain = yaml.safe_load((folder / "study.yaml").read_text())
            self.study_id = self.state["study_id"]
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{folder} must be the folder of a study that was started, but state.json or study.yaml says nothing "
                f"({error}): see flstudy studies"
            ) from error
        self.runs = self._runs()

    def _runs(self) -> "dict[int, Run]":
        """By trial; of several runs of one trial the newest."""
        wanted, token = f"tags.`{STUDY_ID}` = '{self.study_id}'", None
        found: dict[int, Run] = {}
        while True:
            page = self.store.client.search_runs([self.store.experiment_id], wanted, max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                number = tags.get(TRIAL)
                if number is not None or tags.get("flstudy.kind") == "study":
                    found.setdefault(_PARENT if number is None else int(number), run)
            token = page.token
            if not token:
                return found

    # ---- runs ------------------------------------------------------------------------------------------------------

    def parent(self) -> "Run":
        """The study's run."""
        run = self.runs.get(_PARENT)
        if run is not None:
            return run
        config = self._config({})
        tags = {STUDY: self.folder.name, **(study_tags(config) if config else {}), **self._environment(None)}
        key = {STUDY_ID: self.study_id, "flstudy.kind": "study"}
        run_id = self.store.get_or_create(key, self.folder.name, tags, self.state.get("started"))
        self.delivery.runs += 1
        run = self.runs[_PARENT] = self.store.client.get_run(run_id)
        return run

    def trial(self, entry: Mapping[str, Any], parent: "Run") -> str:
        """Tell what a trial's run lacks; returns its id."""
        run = self.runs.get(entry["trial"])
        ending = self._ending(entry)
        if run is not None and self._complete(run, entry, ending):
            return run.info.run_id
        config = self._config(entry["overrides"])
        if run is None:
            run = self._open(entry, parent, config)
        run_id: str = run.info.run_id
        self._params(run, config.flat() if config is not None else entry["overrides"])
        done = max(self._rounds(run, entry), entry["rounds"])
        self._keep(
            run_id, {"config": self.plain, "overrides": entry["overrides"]} if config is None else config.plain()
        )
        self._tags(run, {**ending, "rounds": str(done), DELIVERED: str(done)})
        self._end(run, run_status(entry["status"]), entry.get("ended_at"))
        return run_id

    def conclude(self) -> None:
        """What a study says of itself in the end."""
        run = self.parent()
        self._keep(run.info.run_id, self.plain)
        if not run.data.params and (config := self._config({})) is not None:
            self._params(run, study_params(config))
        told = self.state.get("conclusion") or {}
        tags = dict(told.get("tags", {}))
        best = tags.get("best.trial")
        if best is not None and best.isdigit() and int(best) in self.delivery.run_ids:
            tags["best.run_id"] = self.delivery.run_ids[int(best)]  # unknown to a study whose store was away
        self._tags(run, tags)
        stamp = int(1000 * (self.state.get("ended") or self.state.get("started") or 0))
        known = run.data.metrics
        lacking = [
            MetricValue(name, value, stamp, 0) for name, value in told.get("metrics", {}).items() if name not in known
        ]
        self._values(run, lacking)
        self.delivery.files += log_study_files(self.store, run.info.run_id, self.folder)
        self._end(run, _STUDY_STATUS.get(self.state["state"], "KILLED"), self.state.get("ended"))

    # ---- what a trial was ------------------------------------------------------------------------------------------

    @staticmethod
    def _ending(entry: Mapping[str, Any]) -> dict[str, str]:
        status = "interrupted" if entry["status"] == "running" else entry["status"]
        ends = {name: "true" for name in BAD_ENDS if name == status}
        return {**ends, **error_tags(entry.get("error"))}

    @staticmethod
    def _complete(run: "Run", entry: Mapping[str, Any], ending: Mapping[str, str]) -> bool:
        tags = run.data.tags
        delivered = tags.get(DELIVERED, "")
        told = delivered.isdigit() and int(delivered) >= entry["rounds"]
        said = {name for name in BAD_ENDS if tags.get(name) == "true"} == {name for name in BAD_ENDS if name in ending}
        ended = run.info.status == run_status(entry["status"]) and all(name in tags for name in ending)
        return told and said and ended

    def _config(self, overrides: Mapping[str, Any]) -> "Config | None":
        """The config of the study, or of a trial; None where it cannot be built any more: a task's module is gone."""
        from flstudy.config import load

        try:
            return load(self.folder / "study.yaml", overrides, command="tune")
        except Exception as error:
            log.info("%s tells less than a config: %s", self.folder / "study.yaml", one_line(error))
            return None

    def _open(self, entry: Mapping[str, Any], parent: "Run", config: "Config | None") -> "Run":
        known: dict[str, str] = parent.data.tags
        world = {name: value for name, value in known.items() if name in ("dataset", "drift", "task")}
        world |= config.tags() if config is not None else {}
        of = entry.get("of")
        tags = trial_tags(self.folder.name, entry["algorithm"], world, self._environment(parent), of)
        tags |= {"flstudy.kind": "trial", "diverged": "false", PARENT: parent.info.run_id}
        key = {STUDY_ID: self.study_id, TRIAL: str(entry["trial"])}
        name = trial_name(entry["trial"], entry["algorithm"], of)
        run_id = self.store.get_or_create(key, name, tags, entry.get("started"))
        self.delivery.runs += 1
        return self.store.client.get_run(run_id)

    def _environment(self, parent: "Run | None") -> dict[str, str]:
        """With what the study was run, which may be other than what delivers it."""
        tags = {} if parent is None else parent.data.tags
        known = {name: value for name, value in tags.items() if name.startswith(("version.", "mlflow.source.git."))}
        return self.state.get("environment") or known or environment()

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _params(self, run: "Run", params: Mapping[str, Any]) -> None:
        lacking = {name: value for name, value in params.items() if name not in run.data.params}
        if lacking and self._accepted(self.store.log_params, run.info.run_id, lacking):
            self.delivery.parameters += len(lacking)

    def _tags(self, run: "Run", tags: Mapping[str, str]) -> None:
        """Those that differ; ends that the run claims and the folder does not are taken back."""
        known = run.data.tags
        wrong = [name for name in BAD_ENDS if TRIAL in known and known.get(name) == "true" and name not in tags]
        # MLflow may have cut a long one.
        differing = {name: value for name, value in tags.items() if known.get(name, "")[:1000] != value[:1000]}
        wanted = {**differing, **dict.fromkeys(wrong, "false")}
        if wanted and self._accepted(self.store.log_tags, run.info.run_id, wanted):
            self.delivery.tags += len(wanted)

    def _rounds(self, run: "Run", entry: Mapping[str, Any]) -> int:
        """Tell the figures that the run lacks; returns the last round on record, 0 where there is none."""
        path = self.folder / "records" / f"{entry['trial']}.parquet"
        last, lacking = missing_values(self.store, run, path, entry.get("started"), entry.get("ended_at"))
        self._values(run, lacking)
        return last

    def _values(self, run: "Run", values: Sequence[MetricValue]) -> None:
        for batch in in_batches(values, METRICS_PER_CALL):
            if self._accepted(self.store.log_metrics, run.info.run_id, batch):
                self.delivery.values += len(batch)

    def _keep(self, run_id: str, content: Mapping[str, Any]) -> None:
        if "config.yaml" not in {file.path for file in self.store.client.list_artifacts(run_id)}:
            self.store.client.log_dict(run_id, dict(content), "config.yaml")
            self.delivery.files += 1

    def _end(self, run: "Run", status: str, ended: float | None) -> None:
        if run.info.status != status:
            end_time = None if ended is None else int(1000 * ended)
            self.store.client.set_terminated(run.info.run_id, status, end_time)
            self.delivery.ends += 1

    @staticmethod
    def _accepted(call: Any, *arguments: Any) -> bool:
        """Whether MLflow took it; what it refuses it would refuse again."""
        try:
            call(*arguments)
        except Exception as error:
            if not is_refusal(error):
                raise
            log.warning("MLflow refused a part: %s", one_line(error))
            return False
        return True


def missing_values(
    store: Store, run: "Run", path: Path, started: float | None = None, ended: float | None = None
) -> tuple[int, list[MetricValue]]:
    """The values of the records at ``path`` whose steps the run does not have, rounds ascending.

    Records have no clock: rounds are laid evenly between ``started`` and ``ended`` (seconds since 1970), or all at the
    time at which the records were written.

    Returns:
        The last round on record, 0 where there are no records, and the values.
    """
    table = read_records(path) if path.is_dir() else None
    if table is None or not table.num_rows:
        return 0, []
    last = int(np.max(table["round"].to_numpy()))
    end = ended or path.stat().st_mtime
    start = started or end
    found = [
        MetricValue(name, value, int(1000 * (start + (end - start) * round / last)), round)
        for metric in metric_names(table)
        for round, name, value in _lacking(store, run, table, metric)
    ]
    return last, sorted(found, key=lambda value: value.step)


def _lacking(store: Store, run: "Run", table: "pa.Table", metric: str) -> list[tuple[int, str, float]]:
    rounds, values = curve(table, metric)
    if not rounds.size:
        return []
    seeds = seeds_of(table)
    known = {name: _steps(store, run, name) for name, _ in round_values({metric: values[:, 0].tolist()}, seeds)}
    return [
        (round, name, value)
        for round, column in zip(rounds.tolist(), values.T.tolist(), strict=True)
        if any(round not in steps for steps in known.values())
        for name, value in round_values({metric: column}, seeds)
        if round not in known[name]
    ]


def _steps(store: Store, run: "Run", name: str) -> set[int]:
    if name not in run.data.metrics:
        return set()
    return {metric.step for metric in store.client.get_metric_history(run.info.run_id, name)}
