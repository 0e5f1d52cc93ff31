"""Delivery to a store of what it has missed of a study: everything that MLflow should have is in the study's folder.

A trial's run is complete when it says so (the tag flstudy.delivered, set last by whoever delivered), so that a study
that lacks nothing costs one query. Of the others every metric is compared round by round and only what is missing is
sent: doing it twice changes nothing. Runs that were deleted in MLflow are made again.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flstudy.config import ConfigError
from flstudy.config.values import class_tags, trained_items
from flstudy.study.best import decisive_metrics
from flstudy.study.damage import parse_json, read_bounded
from flstudy.study.folder import StudyFolder
from flstudy.study.outline import ConfigOutline
from flstudy.study.records import metric_names, read_records, rounds_of, seeds_of
from flstudy.study.results import StudyResults, load_study
from flstudy.study.trial import Trial
from flstudy.tracking.content import (
    BAD_ENDS,
    DELIVERED,
    NOTE,
    PARENT,
    REFUSED,
    STUDY,
    STUDY_ID,
    TRIAL,
    TrialMetrics,
    concluded_note,
    ending_tags,
    environment,
    outcome,
    refusal_tag,
    run_status,
    study_params,
    study_tags,
    trial_identity,
)
from flstudy.tracking.delivery import MetricDelivery, PendingNote
from flstudy.tracking.models import log_models
from flstudy.tracking.names import mlflow_name, renamings
from flstudy.tracking.runs import log_study_files
from flstudy.tracking.store import MetricValue, Store, is_refusal, one_line
from flstudy.tracking.views import log_views, studies_view, study_view
from flstudy.user_error import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.entities import Run

    from flstudy.config import StudySection

log = logging.getLogger(__name__)

_KINDS = ("runs", "values", "parameters", "tags", "ends", "files", "models")
_PARENT = -1  # stands for the study's own run among the trials' numbers
_STUDY_STATUS = {"finished": "FINISHED", "failed": "FAILED"}  # anything else was stopped or killed


@dataclass
class Delivery:
    """Summary of a delivery to a store.

    Attributes:
        counts: by kind.
        run_ids: the run of every trial, those that lacked nothing included.
        incomplete: trials whose runs still lack something that MLflow took, or could take.
        remarks: sentences about metrics that MLflow has by another name, or refuses.
    """

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_KINDS, 0)))
    run_ids: dict[int, str] = field(default_factory=dict)
    incomplete: set[int] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{count} {name if count > 1 else name[:-1]}" for name, count in self.counts.items() if count]
        return ", ".join(parts) or "nothing was missing"


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
            raise UserError("state.json names no study_id")
    except ValueError as error:
        raise ConfigError(
            f"{folder.path} must be the folder of a study that was started, but {error}: see flstudy studies"
        ) from error
    for reason in results.damage:
        log.warning("%s", reason)
    sync = _Sync(results, state, store)
    parent = sync.parent()
    run_ids = sync.delivery.run_ids = {trial.number: sync.trial(trial, parent) for trial in results.trials}
    trials = tuple(
        replace(trial, run_id=run_ids[trial.number], synced=trial.number not in sync.delivery.incomplete)
        for trial in results.trials
    )
    noted = all(old.synced and old.run_id == new.run_id for old, new in zip(results.trials, trials, strict=True))
    if not noted and state.get("store", store.uri) == store.uri:  # another store has other runs
        folder.write_trials(trials)
    results = replace(results, trials=trials)
    sync.remark()
    sync.conclude(parent, results)
    sync.delivery.counts["models"] += log_models(results, store)
    return sync.delivery


class _Sync:
    """Comparison of a study with its runs, which sends what they lack."""

    def __init__(self, results: StudyResults, state: Mapping[str, Any], store: Store) -> None:
        self.results, self.state, self.store = results, state, store
        self.study_id = state["study_id"]
        self.delivery = Delivery()
        self.decisive = decisive_metrics(results.objectives, results.section.get("constraints") or ())
        self.runs = self._find_runs()
        self._refusals = Counter[str]()  # trials by what their runs say of metrics that MLflow refused

    def _find_runs(self) -> "dict[int, Run]":
        """Return the study's runs by trial; of several runs of one trial the newest."""
        wanted, token = f"tags.`{STUDY_ID}` = '{self.study_id}'", None
        runs: dict[int, Run] = {}
        while True:
            page = self.store.client.search_runs([self.store.experiment_id], wanted, max_results=1000, page_token=token)
            for run in page:
                tags = run.data.tags
                number = tags.get(TRIAL)
                if number is not None or tags.get("flstudy.kind") == "study":
                    runs.setdefault(_PARENT if number is None else int(number), run)
            token = page.token
            if not token:
                return runs

    # ---- runs ------------------------------------------------------------------------------------------------------

    def parent(self) -> "Run":
        """Return the study's run."""
        run = self.runs.get(_PARENT)
        name, section = self.results.name, self._section()
        if section is not None:
            log_views(self.store, {**studies_view(), **study_view(section, self.study_id)})
        if run is not None:
            return run
        tags = {STUDY: name, **self._environment(None)}
        if section is not None:
            tags |= study_tags(section, class_tags(self.results.config))
        key = {STUDY_ID: self.study_id, "flstudy.kind": "study"}
        return self._made(self.store.get_or_create(key, name, tags, self.state.get("started")))

    def trial(self, trial: Trial, parent: "Run") -> str:
        """Send what a trial's run lacks; returns its id."""
        run = self.runs.get(trial.number)
        if run is not None and run.data.tags.get(PARENT) != parent.info.run_id:  # the one that it had was deleted
            self.delivery.counts["tags"] += 1
            self.store.log_tags(run.info.run_id, {PARENT: parent.info.run_id})
        if run is not None and _is_complete(run, trial):
            self._refusals.update(filter(None, [run.data.tags.get(REFUSED)]))
            return run.info.run_id
        values = self._values(trial)
        if run is None:
            run = self._open(trial, parent, values)
        self._params(run, self._hyper_parameters(trial, values))
        note = PendingNote(self.results.folder.metrics_batch_file(trial.number))
        delivery = MetricDelivery(self.store, run.info.run_id, run.data.metrics, note, self._attempt)
        path, rounds = self.results.folder.records(trial.number), trial.rounds
        damage = self.results.damage_of(trial)
        if damage is not None:
            log.warning("%s", damage)
        table = read_records(path) if path.is_dir() and damage is None else None
        if table is not None and table.num_rows:
            rounds = max(rounds, int(np.max(table["round"].to_numpy())))
            end = trial.ended or path.stat().st_mtime
            metrics = TrialMetrics(self.decisive, seeds_of(table), delivery.names)
            missing = delivery.missing(recorded_values(table, metrics, trial.started or end, end))
            self.delivery.counts["values"] += delivery.send(missing)
        recorded = {"config": dict(self.results.config), "overrides": trial.overrides}
        self._keep(run, recorded if values is None else values)
        shortfall = delivery.shortfall()
        if shortfall is not None:
            log.warning("trial %d: %s", trial.number, shortfall)
            self.delivery.incomplete.add(trial.number)
        tags = {**ending_tags(trial), "rounds": str(rounds)}
        if delivery.refused:
            tags[REFUSED] = refusal_tag(delivery.refused)
            self._refusals[tags[REFUSED]] += 1
        self._tags(run, tags if shortfall is not None else {**tags, DELIVERED: str(rounds)})
        self._end(run, run_status(trial.status), trial.ended)
        note.remove()
        return run.info.run_id

    def remark(self) -> None:
        """Say which metrics MLflow has by another name, and which it refuses."""
        for trial in self.results.trials:
            if self.results.folder.records(trial.number).is_dir() and self.results.damage_of(trial) is None:
                table = self.results.records(trial)
                metrics = TrialMetrics(self.decisive, seeds_of(table))
                shown = {name for record in rounds_of(table) for name, _ in metrics.round_values(record.metrics)}
                names = [name for name in metric_names(table) if mlflow_name(name) in shown]
                self.delivery.remarks += renamings(names)
                break  # all trials measure the same
        self.delivery.remarks += [f"MLflow refused of {count} trials {what}" for what, count in self._refusals.items()]

    def conclude(self, run: "Run", results: StudyResults) -> None:
        """Send the final values that a study's run lacks."""
        self._keep(run, results.config)
        if not run.data.params and (section := self._section()) is not None:
            self._params(run, study_params(section, results.rounds, results.seeds))
        tags, metrics = outcome(results.trials, results.best, self.decisive)
        tags[NOTE] = concluded_note(
            run.data.tags.get(NOTE, ""),
            study=results.folder.name,
            study_id=self.study_id,
            experiment=self.store.experiment_id,
            run=run.info.run_id,
            best=results.best,
            measured=results.selection_metric,
        )
        trials = str(results.section.get("trials"))
        if run.data.params.get("study.trials", trials) != trials:  # it was extended, and parameters stay
            tags["study.trials"] = trials
        self._tags(run, tags)
        now, logged = int(1000 * (self.state.get("ended") or self.state.get("started") or 0)), run.data.metrics
        note = PendingNote(results.folder.metrics_batch_file(None))
        delivery = MetricDelivery(self.store, run.info.run_id, logged, note, self._attempt)
        over = sum(trial.is_over for trial in results.trials)  # a study that goes on has later values
        changed = [MetricValue(*item, now, over) for item in metrics.items() if logged.get(item[0]) != item[1]]
        self.delivery.counts["values"] += delivery.send(changed)
        self.delivery.counts["files"] += log_study_files(self.store, run.info.run_id, results.folder)
        self._end(run, _STUDY_STATUS.get(self.state["state"], "KILLED"), self.state.get("ended"))
        note.remove()

    def _section(self) -> "StudySection | None":
        """Return the study's section; None where its values make none, as those of an earlier flstudy may."""
        try:
            return ConfigOutline(self.results.config).study
        except Exception as error:
            log.info("%s makes no config any more: %s", self.results.folder.config, one_line(error))
            return None

    def _values(self, trial: Trial) -> dict[str, Any] | None:
        """Return the complete values of a trial; None where the study's config makes none, as of `_section`."""
        try:
            return self.results.trial_config(trial)
        except Exception as error:
            log.info("%s makes no config any more: %s", self.results.folder.config, one_line(error))
            return None

    def _hyper_parameters(self, trial: Trial, values: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the hyper-parameters that a trial's worker told the study; else those of its config."""
        path = self.results.folder.hyper_parameters(trial.number)
        with contextlib.suppress(OSError, ValueError):  # an earlier flstudy's study has none
            content = parse_json(read_bounded(path))
            if isinstance(content, dict):
                return content
        return trial.overrides if values is None else dict(trained_items(values))

    def _open(self, trial: Trial, parent: "Run", values: Mapping[str, Any] | None) -> "Run":
        world = {name: value for name, value in parent.data.tags.items() if name in ("dataset", "drift", "task")}
        key, name, tags = trial_identity(
            trial,
            study=self.results.name,
            study_id=self.study_id,
            parent=parent.info.run_id,
            tags=world if values is None else class_tags(values),
            environment=self._environment(parent),
        )
        return self._made(self.store.get_or_create(key, name, tags, trial.started))

    def _made(self, run_id: str) -> "Run":
        self.delivery.counts["runs"] += 1
        return self.store.client.get_run(run_id)

    def _environment(self, parent: "Run | None") -> dict[str, str]:
        """Return the environment of the study, which may differ from that of its delivery."""
        tags = {} if parent is None else parent.data.tags
        versions = {name: value for name, value in tags.items() if name.startswith(("version.", "mlflow.source.git."))}
        return self.state.get("environment") or versions or environment()

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _params(self, run: "Run", params: Mapping[str, Any]) -> None:
        lacking = {name: value for name, value in params.items() if mlflow_name(name) not in run.data.params}
        if lacking:
            self.delivery.counts["parameters"] += self._attempt(self.store.log_params, run.info.run_id, lacking) or 0

    def _tags(self, run: "Run", tags: Mapping[str, str]) -> None:
        """Send the tags that differ; ends that the run claims and the folder does not are taken back."""
        run_tags = run.data.tags
        wrong = [name for name in BAD_ENDS if TRIAL in run_tags and run_tags.get(name) == "true" and name not in tags]
        # MLflow may have cut a long one.
        differing = {name: value for name, value in tags.items() if run_tags.get(name, "")[:1000] != value[:1000]}
        changed: dict[str, str] = {**differing, **dict.fromkeys(wrong, "false")}

        def send() -> int:
            self.store.log_tags(run.info.run_id, changed)
            return len(changed)

        self.delivery.counts["tags"] += self._attempt(send) or 0

    def _attempt(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return a call's result; None where MLflow refuses it, as it would again."""
        try:
            return call(*arguments)
        except Exception as error:
            if not is_refusal(error):
                raise
            log.warning("MLflow refused a part: %s", one_line(error))
            return None

    def _keep(self, run: "Run", config: Mapping[str, Any]) -> None:
        run_id = run.info.run_id
        if "config.yaml" not in {file.path for file in self.store.client.list_artifacts(run_id)}:
            self.store.client.log_dict(run_id, dict(config), "config.yaml")
            self.delivery.counts["files"] += 1

    def _end(self, run: "Run", status: str, ended: float | None) -> None:
        if run.info.status != status:
            self.store.client.set_terminated(run.info.run_id, status, None if ended is None else int(1000 * ended))
            self.delivery.counts["ends"] += 1


def recorded_values(table: "pa.Table", metrics: TrialMetrics, start: float, end: float) -> list[MetricValue]:
    """Return the values of a trial's records that MLflow shows, rounds ascending.

    Records have no clock: rounds are laid evenly between ``start`` and ``end``, seconds since 1970.
    """
    last = int(np.max(table["round"].to_numpy()))
    return [
        MetricValue(name, value, int(1000 * (start + (end - start) * record.round / last)), record.round)
        for record in rounds_of(table)
        for name, value in metrics.round_values(record.metrics)
    ]


def _is_complete(run: "Run", trial: Trial) -> bool:
    """Return whether a run has all rounds of the trial and says how it ended."""
    tags, ending = run.data.tags, ending_tags(trial)
    delivered = tags.get(DELIVERED, "")
    rounds = delivered.isdigit() and int(delivered) >= trial.rounds
    ends = {name for name in BAD_ENDS if tags.get(name) == "true"} == {name for name in BAD_ENDS if name in ending}
    return rounds and ends and run.info.status == run_status(trial.status) and all(name in tags for name in ending)
