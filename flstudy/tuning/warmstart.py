"""What another study has done already: a search may begin with it, instead of training the same once more."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flstudy.config.config import load
from flstudy.study.objectives import objective_values, violations
from flstudy.study.space import Space
from flstudy.tuning.folder import StudyFolder, TrialSummary

if TYPE_CHECKING:
    from flstudy.config import Config

WHOLE = ("finished", "diverged")  # a trial that a scheduler stopped was stopped by another study's rules


def take_over(other: Path, folder: StudyFolder, config: "Config") -> list[TrialSummary]:
    """Copies trials of the study in the folder ``other`` into ``folder``, a new study's, and returns them, numbered
    from 0.

    A trial is taken over if it ended by itself, its values lie in this study's search space, and this study would
    train it with the same config to the last value. None are, if the studies have different objectives. Whether both
    ran the same version of flstudy is not asked.

    Raises:
        ConfigError: if ``other`` holds no study.
    """
    theirs = load(other / "study.yaml", command="tune")
    if (theirs.study.objective, theirs.study.objectives) != (config.study.objective, config.study.objectives):
        return []
    source, domains = StudyFolder(other), Space.parse(config.study.search).domains
    taken: list[TrialSummary] = []
    for trial in source.read_trials():
        searched = trial.stage == "search" and trial.status in WHOLE and set(trial.overrides) <= set(domains)
        if not searched or not source.records(trial.trial).is_dir():
            continue
        if not all(domains[key].contains(value) for key, value in trial.overrides.items()):
            continue
        if config.with_overrides(trial.overrides).flat() != theirs.with_overrides(trial.overrides).flat():
            continue
        number = len(taken)
        shutil.copytree(source.records(trial.trial), folder.records(number))
        if source.model(trial.trial).is_file():
            folder.model(number).parent.mkdir(exist_ok=True)
            shutil.copy(source.model(trial.trial), folder.model(number))
        metrics = {name: math.nan if value is None else value for name, value in trial.metrics.items()}
        broken = trial.status == "diverged"
        taken.append(
            replace(
                trial,
                trial=number,
                values=objective_values(config.study, trial.objective or 0.0, metrics, broken=broken),
                feasible=broken or max(violations(config.study, metrics), default=0.0) <= 0.0,
                source=f"{source.name}/{trial.trial}",
                synced=False,  # MLflow has it in the other study only
                run_id=None,
            )
        )
    folder.write_trials(taken)
    return taken
