"""Delivery of what a store has missed of a study: everything that MLflow should have is in the study's folder.

A trial's run is complete when it says so (the tag flstudy.delivered, set last by whoever delivered), so that a study
that lacks nothing costs one query. Of the others every metric is compared round by round and only what is missing is
sent: doing it twice changes nothing. Runs that were deleted in MLflow are made again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flstudy.config import ConfigError
from flstudy.study.folder import StudyFolder
from flstudy.study.records import curve, metric_names, read_records, seeds_of
from flstudy.study.results import StudyResults, load_study
from flstudy.study.trial import Trial
from flstudy.tracking.content import (
    BAD_ENDS,
    DELIVERED,
    NOTE,
    STUDY,
    STUDY_ID,
    TRIAL,
    concluded_note,
    ending_tags,
    environment,
    outcome,
    round_values,
    run_status,
    study_params,
    study_tags,
    trial_identity,
)
from flstudy.tracking.models import log_models
from flstudy.tracking.runs import log_study_files
from flstudy.tracking.store import METRICS_PER_CALL, MetricValue, Store, in_batches, is_refusal, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.entities import Run

    from flstudy.config import Config

log = logging.getLogger(__name__)

_KINDS = ("runs", "values", "parameters", "tags", "ends", "files", "models")
_PARENT = -1  # stands for the study's own run among the trials' numbers
_STUDY_STATUS = {"finished": "FINISHED", "failed": "FAILED"}  # anything else was stopped or killed


@dataclass
class Delivery:
    """What a store was sent.

    Attributes:
        counts: by kind.
        run_ids: the run of every trial, those that lacked nothing included.
    """

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_KINDS, 0)))
    run_ids: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        found = [f"{count} {name if count > 1 else name[:-1]}" for name, count in self.counts.items() if count]
        return ", ".join(found) or "nothing was missing"


def sync_study(folder: StudyFolder, store: Store) -> Delivery:
    """Send the store what it lacks of the study in the folder, and note in trials.jsonl that it has it.

    Not to be called while the study runs: its trials deliver by themselves.

    Raises:
        ConfigError: where the folder holds no study that was started.
        Exception: MLflow's, where the store does not answer; what it took until then is not sent again.
    """
    try:
        results, state = load_study(folder), folder.state()
        if "study_id" not in state:
            raise ValueError("state.json names no study_id")
    except ValueError as error:
        raise ConfigError(
            f"{folder.path} must be the folder of a study that was started, but {error}: see flstudy studies"
        ) from error
    for reason in results.damage:
        log.warning("%s", reason)
    sync = _Sync(results, state, store)
    parent = sync.parent()
    trials = tuple(replace(trial, run_id=sync.trial(trial, parent), synced=True) for trial in results.trials)
    sync.delivery.run_ids = {trial.number: str(trial.run_id) for trial in trials}
    noted = all(old.synced and old.run_id == new.run_id for old, new in zip(results.trials, trials, strict=True))
    if not noted and state.get("store", store.uri) == store.uri:  # another store has other runs
        folder.write_trials(trials)
    results = replace(results, trials=trials)
    sync.conclude(parent, results)
    sync.delivery.counts["models"] += log_models(results, store)
    return sync.delivery


class _Sync:
    """A study beside its runs."""

    def __init__(self, results: StudyResults, state: Mapping[str, Any], store: Store) -> None:
        self.results, self.state, self.store = results, state, store
        self.study_id = state["study_id"]
        self.delivery = Delivery()
        self.runs = self._find_runs()

    def _find_runs(self) -> "dict[int, Run]":
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
        config, name = self._config({}), self.results.name
        tags = {STUDY: name, **(study_tags(config) if config else {}), **self._environment(None)}
        key = {STUDY_ID: self.study_id, "flstudy.kind": "study"}
        return self._made(self.store.get_or_create(key, name, tags, self.state.get("started")))

    def trial(self, trial: Trial, parent: "Run") -> str:
        """Send what a trial's run lacks; returns its id."""
        run = self.runs.get(trial.number)
        if run is not None and _is_complete(run, trial):
            return run.info.run_id
        config = self._config(trial.overrides)
        if run is None:
            run = self._open(trial, parent, config)
        self._params(run, config.flat() if config is not None else trial.overrides)
        path, rounds = self.results.folder.records(trial.number), trial.rounds
        lost = self.results.lost(trial)
        if lost is not None:
            log.warning("%s", lost)
        table = read_records(path) if path.is_dir() and lost is None else None
        if table is not None and table.num_rows:
            rounds = max(rounds, int(np.max(table["round"].to_numpy())))
            end = trial.ended or path.stat().st_mtime
            self._values(run, self._missing(run, table, trial.started or end, end))
        own = {"config": dict(self.results.config), "overrides": trial.overrides}
        self._keep(run, own if config is None else config.plain())
        self._tags(run, {**ending_tags(trial), "rounds": str(rounds), DELIVERED: str(rounds)})
        self._end(run, run_status(trial.status), trial.ended)
        return run.info.run_id

    def conclude(self, run: "Run", results: StudyResults) -> None:
        """Send what a study's run lacks in the end."""
        self._keep(run, results.config)
        if not run.data.params and (config := self._config({})) is not None:
            self._params(run, study_params(config))
        tags, metrics = outcome(results.trials, results.best)
        tags[NOTE] = concluded_note(
            run.data.tags.get(NOTE, ""),
            study=results.folder.name,
            experiment=self.store.experiment_id,
            run=run.info.run_id,
            best=results.best,
            measured=results.selection_metric,
        )
        trials = str(results.section.get("trials"))
        if run.data.params.get("study.trials", trials) != trials:  # it was extended, and parameters stay
            tags["study.trials"] = trials
        self._tags(run, tags)
        now, known = int(1000 * (self.state.get("ended") or self.state.get("started") or 0)), run.data.metrics
        self._values(run, [MetricValue(*item, now, 0) for item in metrics.items() if known.get(item[0]) != item[1]])
        self.delivery.counts["files"] += log_study_files(self.store, run.info.run_id, results.folder)
        self._end(run, _STUDY_STATUS.get(self.state["state"], "KILLED"), self.state.get("ended"))

    def _config(self, overrides: Mapping[str, Any]) -> "Config | None":
        """The config of the study, or of a trial; None where it cannot be built any more: a task's module is gone."""
        from flstudy.config import load

        path = self.results.folder.config
        try:
            return load(path, overrides, command="tune")
        except Exception as error:
            log.info("%s makes no config any more: %s", path, one_line(error))
            return None

    def _open(self, trial: Trial, parent: "Run", config: "Config | None") -> "Run":
        world = {name: value for name, value in parent.data.tags.items() if name in ("dataset", "drift", "task")}
        key, name, tags = trial_identity(
            trial,
            study=self.results.name,
            study_id=self.study_id,
            parent=parent.info.run_id,
            tags=world if config is None else config.tags(),
            environment=self._environment(parent),
        )
        return self._made(self.store.get_or_create(key, name, tags, trial.started))

    def _made(self, run_id: str) -> "Run":
        self.delivery.counts["runs"] += 1
        return self.store.client.get_run(run_id)

    def _environment(self, parent: "Run | None") -> dict[str, str]:
        """That of the study, which may be other than that of its delivery."""
        tags = {} if parent is None else parent.data.tags
        known = {name: value for name, value in tags.items() if name.startswith(("version.", "mlflow.source.git."))}
        return self.state.get("environment") or known or environment()

    # ---- values ----------------------------------------------------------------------------------------------------

    def _missing(self, run: "Run", table: "pa.Table", start: float, end: float) -> list[MetricValue]:
        """The records' values whose steps the run does not have, rounds ascending.

        Records have no clock: rounds are laid evenly between ``start`` and ``end``, seconds since 1970.
        """
        last = int(np.max(table["round"].to_numpy()))
        found = [
            MetricValue(name, value, int(1000 * (start + (end - start) * round / last)), round)
            for metric in metric_names(table)
            for round, name, value in self._missing_of(run, table, metric)
        ]
        return sorted(found, key=lambda value: value.step)

    def _missing_of(self, run: "Run", table: "pa.Table", metric: str) -> Iterator[tuple[int, str, float]]:
        (rounds, values), seeds = curve(table, metric), seeds_of(table)
        steps: dict[str, set[int]] = {}
        for round, column in zip(rounds.tolist(), values.T.tolist(), strict=True):
            for name, value in round_values({metric: column}, seeds):
                if name not in steps:
                    steps[name] = self._steps(run, name)
                if round not in steps[name]:
                    yield round, name, value

    def _steps(self, run: "Run", name: str) -> set[int]:
        if name not in run.data.metrics:
            return set()
        return {metric.step for metric in self.store.client.get_metric_history(run.info.run_id, name)}

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _params(self, run: "Run", params: Mapping[str, Any]) -> None:
        lacking = {name: value for name, value in params.items() if name not in run.data.params}
        self._send("parameters", self.store.log_params, run, lacking)

    def _tags(self, run: "Run", tags: Mapping[str, str]) -> None:
        """Those that differ; ends that the run claims and the folder does not are taken back."""
        known = run.data.tags
        wrong = [name for name in BAD_ENDS if TRIAL in known and known.get(name) == "true" and name not in tags]
        # MLflow may have cut a long one.
        differing = {name: value for name, value in tags.items() if known.get(name, "")[:1000] != value[:1000]}
        self._send("tags", self.store.log_tags, run, {**differing, **dict.fromkeys(wrong, "false")})

    def _values(self, run: "Run", values: Sequence[MetricValue]) -> None:
        for batch in in_batches(values, METRICS_PER_CALL):
            self._send("values", self.store.log_metrics, run, batch)

    def _send(self, kind: str, call: Callable[[str, Any], None], run: "Run", content: Any) -> None:
        if content:
            try:
                call(run.info.run_id, content)
                self.delivery.counts[kind] += len(content)
            except Exception as error:
                if not is_refusal(error):
                    raise
                log.warning("MLflow refused a part: %s", one_line(error))  # as it would again

    def _keep(self, run: "Run", config: Mapping[str, Any]) -> None:
        run_id = run.info.run_id
        if "config.yaml" not in {file.path for file in self.store.client.list_artifacts(run_id)}:
            self.store.client.log_dict(run_id, dict(config), "config.yaml")
            self.delivery.counts["files"] += 1

    def _end(self, run: "Run", status: str, ended: float | None) -> None:
        if run.info.status != status:
            self.store.client.set_terminated(run.info.run_id, status, None if ended is None else int(1000 * ended))
            self.delivery.counts["ends"] += 1


def _is_complete(run: "Run", trial: Trial) -> bool:
    """Whether a run has all rounds of the trial and says how it ended."""
    tags, ending = run.data.tags, ending_tags(trial)
    delivered = tags.get(DELIVERED, "")
    rounds = delivered.isdigit() and int(delivered) >= trial.rounds
    ends = {name for name in BAD_ENDS if tags.get(name) == "true"} == {name for name in BAD_ENDS if name in ending}
    return rounds and ends and run.info.status == run_status(trial.status) and all(name in tags for name in ending)
