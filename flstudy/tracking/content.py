"""The content of runs in MLflow: names, tags, parameters and metrics of a study and of its trials.

A trial that runs and `flstudy.tracking.sync`, which delivers later what a store has missed, write the same by this.
"""

import getpass
import importlib.metadata
import math
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flstudy.metrics.registry import mean_over_replicas

if TYPE_CHECKING:
    from flstudy.config import Config

STUDY, STUDY_ID, TRIAL, PARENT = "flstudy.study", "flstudy.study_id", "flstudy.trial", "mlflow.parentRunId"
DELIVERED = "flstudy.delivered"  # the last round, once the run has all that there is up to it
TEXT_LENGTH = 5000  # of a tag
BAD_ENDS = ("pruned", "diverged", "failed", "interrupted")  # a tag each
_STATUS = {"failed": "FAILED", "interrupted": "KILLED", "running": "KILLED"}
_LIBRARIES = ("torch", "lightning", "ray", "optuna", "mlflow", "flstudy")
_EVALUATION = ("valid/", "test/")


def round_values(metrics: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> Iterable[tuple[str, float]]:
    """A round's metrics as MLflow has them: the mean over replicas under the metric's name, the spread of evaluations
    as ``_std``, and accuracies seed by seed as ``seed44/...``."""
    for name, values in metrics.items():
        yield name, mean_over_replicas(values)
        if len(values) > 1 and name.startswith(_EVALUATION):
            finite = all(math.isfinite(value) for value in values)
            yield f"{name}_std", statistics.stdev(values) if finite else math.nan
        if name.endswith("accuracy") and len(values) == len(seeds):
            for seed, value in zip(seeds, values, strict=True):
                yield f"seed{seed}/{name}", value


def trial_name(number: int, algorithm: str, of: int | None = None) -> str:
    """Of a trial's run; ``of``: the trial that it confirms."""
    return f"{number} {algorithm}" + ("" if of is None else f" confirms {of}")


def trial_tags(
    study: str, algorithm: str, tags: Mapping[str, str], environment: Mapping[str, str], of: int | None = None
) -> dict[str, str]:
    """Tags of a trial's run beside its key; ``tags`` are its config's, ``of`` the trial that it confirms."""
    stage = {"stage": "search"} if of is None else {"stage": "confirm", "confirms": str(of)}
    return {STUDY: study, **environment, **tags, "algorithm": algorithm, **stage}


def study_tags(config: "Config") -> dict[str, str]:
    """What a study's run is filtered by."""
    tags = {**config.tags(), "flstudy.kind": "study"}
    # The config's own algorithm would pose as the only one.
    return {**tags, "algorithm": "searched"} if "algorithm" in config.study.search else tags


def study_params(config: "Config") -> dict[str, Any]:
    """A study's settings and its search space."""
    study = config.study
    params: dict[str, Any] = {"study.trials": study.trials, "study.rounds": config.rounds, "study.seeds": config.seeds}
    params |= {"study.objective": study.objective.metric, "study.mode": study.objective.mode}
    params |= {"study.allocation": study.allocation, "study.confirm.seeds": study.confirm.seeds}
    params |= {f"study.objectives.{goal.metric}": goal.mode for goal in study.objectives}
    params |= {f"study.constraints.{metric}": bounds for metric, bounds in study.constraints.items()}
    return params | {f"study.search.{key}": domain for key, domain in study.search.items()}


def run_status(status: str) -> str:
    """MLflow's status of a trial's run; a trial that was left running was killed."""
    return _STATUS.get(status, "FINISHED")


def error_tags(error: str | None) -> dict[str, str]:
    """A traceback as tags: its last line as ``error``, all of it as the run's description."""
    if error is None or not error.strip():
        return {}
    text = error.strip()
    return {"error": text.splitlines()[-1][:TEXT_LENGTH], "mlflow.note.content": f"```\n{text[-TEXT_LENGTH:]}\n```"}


def environment() -> dict[str, str]:
    """Tags with the code and the versions that make a run."""
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
