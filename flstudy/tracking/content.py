"""The content of runs in MLflow: names, tags, parameters and metrics of a study and of its trials.

Running trials and `flstudy.tracking.sync`, which delivers later what a store has missed, both write this content.
"""

import getpass
import importlib.metadata
import math
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flstudy.config.credentials import censored
from flstudy.metrics.registry import METRICS, deviation_over_replicas, judged_by, mean_over_replicas
from flstudy.study.best import BestTrial
from flstudy.study.objectives import objectives_of
from flstudy.study.trial import Status, Trial
from flstudy.tracking.names import mlflow_name
from flstudy.tracking.pages import charts_page, run_page, study_key, table_page

if TYPE_CHECKING:
    from flstudy.config import StudySection

STUDY, STUDY_ID, TRIAL, PARENT = "flstudy.study", "flstudy.study_id", "flstudy.trial", "mlflow.parentRunId"
DELIVERED = "flstudy.delivered"  # the last round, once the run has all that there is up to it
REFUSED = "flstudy.refused"  # metrics that MLflow refused, and why
TEXT_LENGTH = 5000  # of a tag
NOTE = "mlflow.note.content"  # a run's description, in Markdown
BAD_ENDS = (Status.PRUNED, Status.DIVERGED, Status.FAILED, Status.INTERRUPTED)  # a tag each
_METRICS_HEAD = "| metric | role | unit | meaning |"
_STATUS = {Status.FAILED: "FAILED", Status.INTERRUPTED: "KILLED", Status.RUNNING: "KILLED"}
_LIBRARIES = ("torch", "lightning", "ray", "optuna", "mlflow", "flstudy")
_PREDICTIONS = {"correctness", "losses"}  # what metrics of a model's predictions need
REACHED = ("valid/accuracy", "test/accuracy", "valid/dip", "valid/recovery")
"""Metrics of a study's best trial that its own run has, beside those by which the study decides."""
OVERVIEW = "overview.png"
"""A study at a glance, among its report's files."""
_SPLITS = ("train", "valid", "test")
_MAIN = ("train/loss", "valid/accuracy", "test/accuracy", "traffic/up_bytes", "time/round_s")
_ALWAYS = (
    *_MAIN,
    *(f"valid/{what}" for what in ("loss", "accuracy_spread", "mean_accuracy", "dip", "recovery")),
    *(f"test/{what}" for what in ("loss", "accuracy_spread", "mean_accuracy", "dip", "recovery", "personal_accuracy")),
    *("traffic/down_bytes", "traffic/bits", "time/total_s"),
)
_BOOKKEEPING = {name for name, metric in METRICS.items() if not metric.needs} - {*_ALWAYS}  # steps and times
TRIAL_METRICS = 30
"""Number of metrics that MLflow shows of a trial, unless its study decides by more than 11."""


class TrialMetrics:
    """Choice of the metrics of a trial that MLflow shows; records and reports have all of them.

    The metrics by which the study decides and the main ones always have a place. So have the decisive ones' deviations
    and seeds, where there is room for all of these. The other places go to what the method, the world and the module
    measure of their own, in the order in which rounds come, so that a live trial and a later delivery choose the same.

    Args:
        decisive: metrics by which the study decides, objectives first.
        seeds: of the trial.
        names: of the metrics that the run has already.
    """

    def __init__(self, decisive: Iterable[str], seeds: Sequence[int], names: Iterable[str] = ()) -> None:
        self._decisive, self._seeds = list(decisive), seeds
        always = {*self._decisive, *_ALWAYS}
        with_seeds = always.union(*(_seed_names(name, seeds) for name in self._decisive))
        self._always = {mlflow_name(name) for name in (with_seeds if len(with_seeds) <= TRIAL_METRICS else always)}
        self._others = {*names} - self._always

    def round_values(self, metrics: Mapping[str, Sequence[float]]) -> Iterable[tuple[str, float]]:
        """Yield those of a round's `round_values` that MLflow shows."""
        left_out = _BOOKKEEPING.union(*(_seed_names(name, self._seeds) for name in metrics))
        for name, value in round_values(metrics, self._seeds, first=self._decisive):
            shown = name in self._always or name in self._others
            if not shown and name not in left_out and len(self._always) + len(self._others) < TRIAL_METRICS:
                self._others.add(name)
                shown = True
            if shown:
                yield name, value


def round_values(
    metrics: Mapping[str, Sequence[float]], seeds: Sequence[int], first: Sequence[str] = ()
) -> Iterable[tuple[str, float]]:
    """Yield a round's metrics as MLflow has them: the mean over replicas under the metric's name and, of several seeds,
    the deviation of metrics of predictions as ``_std`` and accuracies seed by seed as ``seed44/...``.

    MLflow's overview of a run keeps their order: the ``first``, those of training and evaluations, the rest. Names
    are those of `flstudy.tracking.names.mlflow_name`; of two metrics that would share one, the metric with that name
    has it, else the first."""
    values = list(_named_values(metrics, seeds, first))
    owners = {name: name for name, _ in values if mlflow_name(name) == name}
    for name, value in values:
        accepted = mlflow_name(name)
        if owners.setdefault(accepted, name) == name:
            yield accepted, value


def _named_values(
    metrics: Mapping[str, Sequence[float]], seeds: Sequence[int], first: Sequence[str]
) -> Iterable[tuple[str, float]]:
    def place(name: str) -> tuple[int, bool]:
        return first.index(name) if name in first else len(first), name.partition("/")[0] not in _SPLITS

    for name in sorted(metrics, key=place):  # stable
        values = metrics[name]
        yield name, mean_over_replicas(values)
        if len(values) == len(seeds) > 1:
            yield from zip(_seed_names(name, seeds), [deviation_over_replicas(values), *values], strict=False)


def _seed_names(name: str, seeds: Sequence[int]) -> list[str]:
    """Return the names of a metric's deviation and of its values seed by seed, as far as it has such names."""
    metric = METRICS.get(name)
    if metric is None or not _PREDICTIONS & {*metric.needs} or len(seeds) < 2:
        return []
    by_seed = metric.is_fraction and metric.better == "max"
    return [f"{name}_std", *(f"seed{seed}/{name}" for seed in seeds if by_seed)]


def trial_identity(
    trial: Trial,
    *,
    study: str,
    study_id: str,
    parent: str,
    tags: Mapping[str, str],
    environment: Mapping[str, str],
) -> tuple[dict[str, str], str, dict[str, str]]:
    """Return the identity of a trial's run: the key by which it is found again, its name, its tags.

    Args:
        trial: its number, algorithm and what it confirms.
        study: name.
        study_id: by which its runs are found.
        parent: run id of the study.
        tags: of the config.
        environment: of the study.
    """
    key, name = {STUDY_ID: study_id, TRIAL: str(trial.number)}, f"{trial.number} {trial.algorithm}"
    run_tags = {"flstudy.kind": "trial", PARENT: parent, STUDY: study, **environment, **tags}
    run_tags |= {"algorithm": trial.algorithm, "stage": trial.stage, "diverged": "false"}
    if trial.confirms is not None:
        name, run_tags["confirms"] = f"{name} confirms {trial.confirms}", str(trial.confirms)
    return key, name, run_tags


def study_tags(study: "StudySection", tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags by which a study's run is filtered, and its description.

    Args:
        study: section of its config.
        tags: of its config.
    """
    tags = {**tags, "flstudy.kind": "study", NOTE: study_note(study)}
    # The config's own algorithm would pose as the only one.
    return {**tags, "algorithm": "searched"} if "algorithm" in study.search else tags


def study_note(study: "StudySection") -> str:
    """Return the description of the metrics by which a study decides, and of the main ones beside them, as a table in
    Markdown."""
    roles = {objective.metric: f"objective, {objective.mode}" for objective in objectives_of(study)}
    for metric, bounds in study.constraints.items():
        bound = "constraint, " + ", ".join(f"{kind} {value:g}" for kind, value in bounds.items())
        roles[metric] = f"{roles[metric]}; {bound}" if metric in roles else bound
    rows = [_METRICS_HEAD, "|---|---|---|---|"]
    for name in dict.fromkeys([*roles, *_MAIN]):
        entry = METRICS.get(name)
        unit, sentence = (entry.unit, entry.sentence) if entry else ("", "")
        rows.append(f"| {name} | {roles.get(name, '')} | {unit} | {sentence} |")
    return "\n".join(rows)


def study_params(study: "StudySection", rounds: int, seeds: Sequence[int]) -> dict[str, Any]:
    """Return a study's settings and its search space.

    Args:
        study: section of its config.
        rounds: of a trial.
        seeds: of the search.
    """
    params: dict[str, Any] = {"study.trials": study.trials, "study.rounds": rounds, "study.seeds": list(seeds)}
    params |= {"study.objective": study.objective.metric, "study.mode": study.objective.mode}
    params |= {"study.allocation": study.allocation, "study.confirm.seeds": study.confirm.seeds}
    params |= {f"study.objectives.{goal.metric}": goal.mode for goal in study.objectives}
    params |= {f"study.constraints.{metric}": bounds for metric, bounds in study.constraints.items()}
    return params | {f"study.search.{key}": domain for key, domain in study.search.items()}


def run_status(status: Status) -> str:
    """Return MLflow's status of a trial's run; a trial that was left running was killed."""
    return _STATUS.get(status, "FINISHED")


def ending_tags(trial: Trial) -> dict[str, str]:
    """Return the tags of a trial that is over, or was left running."""
    end = Status.INTERRUPTED if trial.status is Status.RUNNING else trial.status
    return {**({str(end): "true"} if end in BAD_ENDS else {}), **error_tags(trial.error)}


def error_tags(error: str | None) -> dict[str, str]:
    """Return a traceback as tags: its last line as ``error``, all of it as the run's description."""
    text = censored(error or "").strip()
    return {"error": text.splitlines()[-1][:TEXT_LENGTH], NOTE: f"```\n{text[-TEXT_LENGTH:]}\n```"} if text else {}


def refusal_tag(refused: Mapping[str, str]) -> str:
    """Return the metrics that MLflow refused and the first one's reason, as the text of a tag."""
    return f"{', '.join(refused)}: {next(iter(refused.values()))}"[:TEXT_LENGTH]


def outcome(
    trials: Iterable[Trial], best: Sequence[BestTrial], decisive: Iterable[str]
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the final tags and metrics of a study's run: its best trial with the metrics that it reached, each
    algorithm's best value, trials by status."""
    metrics = {f"best/{ranked.trial.algorithm}": ranked.ranking_value for ranked in best}
    tags = {f"trials.{status}": str(count) for status, count in Counter(trial.status for trial in trials).items()}
    if best:
        trial = best[0].trial
        tags |= {"best.trial": str(trial.number), "best.algorithm": trial.algorithm, "best.run_id": str(trial.run_id)}
        last = best[0].reported_trial.metrics
        metrics |= {
            mlflow_name(name): last[name] for name in (*decisive, *REACHED) if math.isfinite(last.get(name, math.nan))
        }
    return tags, metrics


def concluded_note(
    note: str, *, study: str, study_id: str, experiment: str, run: str, best: Sequence[BestTrial], measured: str
) -> str:
    """Return the final description of a study, in Markdown: its ranking with links to the runs, the commands that go on
    from here, and the table of its metrics.

    Args:
        note: its description so far.
        study: name.
        study_id: for the links to its views.
        experiment: id, for the links.
        run: the study's own, for the links.
        best: each algorithm's best trial, in order.
        measured: the metric by which they are ranked.
    """
    rows = [f"| # | algorithm | {measured} | of | trial |", "|--:|---|--:|---|---|"]
    for place, ranked in enumerate(best, 1):
        trial, title = ranked.trial, f"{ranked.trial.number} {ranked.trial.algorithm}"
        link = f"[{title}]({run_page(experiment, trial.run_id)})" if trial.run_id else title
        judge = judged_by(trial.deployed, measured)
        rows.append(f"| {place} | {trial.algorithm} | {ranked.ranking_value:.4g} | {judge} | {link} |")
    if not best:
        rows = ["No trial has done all its rounds within the constraints."]
    key = study_key(study_id)
    links = {
        "At a glance": run_page(experiment, run, f"artifacts/report/{OVERVIEW}"),
        "report": run_page(experiment, run, "artifacts/report/report.html"),
        "all trials": table_page(experiment, key),
        "their charts": charts_page(experiment, key),
    }
    pages = [f"[{name}]({page})" for name, page in links.items()]
    go_on = f"`flstudy report {study}` draws it, `flstudy tune --resume {study} --study.trials N` extends it."
    metrics = note[note.find(_METRICS_HEAD) :] if _METRICS_HEAD in note else ""
    return "\n".join([*rows, "", f"{', '.join(pages)}. {go_on}", "", metrics]).rstrip()


def environment() -> dict[str, str]:
    """Return the tags with the code and the versions that make a run."""
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
        pass  # no git, or no user name
    return tags
