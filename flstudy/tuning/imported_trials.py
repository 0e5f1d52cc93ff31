"""Trials of another study that a new one takes over."""

import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from flstudy.config.composition import trial_config
from flstudy.config.values import trained_items
from flstudy.study import Space, Status, StudyFolder, StudyResults, Trial, load_study
from flstudy.study.objectives import objective_values, objectives_of, violations
from flstudy.study.records import records_damage

if TYPE_CHECKING:
    from flstudy.config import Config


def import_trials(other: StudyFolder, folder: StudyFolder, config: "Config") -> tuple[list[Trial], Counter[str]]:
    """Copy trials of another study into a new one's folder.

    A trial is imported if it finished or diverged, its records are whole, and its values lie in this study's search
    space. Both studies must also train it with the same config. None is imported if the studies have different
    objectives. The versions of flstudy that the studies ran are not compared. Nothing of the other study is built.

    Returns:
        The imported trials, numbered from 0, and the reasons why others were not, each with its number of trials.

    Raises:
        UserError: if ``other`` holds no study.
    """
    theirs, space = load_study(other), Space.of_study(config.study)
    imported, refused = list[Trial](), Counter[str]()
    for trial in theirs.trials:
        if trial.is_confirmation:
            continue
        if (reason := _not_imported(trial, theirs, config, space)) is not None:
            refused[reason] += 1
            continue
        number = len(imported)
        shutil.copytree(other.records(trial.number), folder.records(number))
        for path_of in (StudyFolder.model, StudyFolder.by_device):
            if path_of(other, trial.number).is_file():
                path_of(folder, number).parent.mkdir(exist_ok=True)
                shutil.copy(path_of(other, trial.number), path_of(folder, number))
        imported.append(
            replace(
                trial,
                number=number,
                values=objective_values(config.study, trial.objective, trial.metrics, broken=trial.is_broken),
                feasible=trial.is_broken or max(violations(config.study, trial.metrics), default=0.0) <= 0.0,
                source=f"{other.name}/{trial.number}",
                synced=False,  # MLflow has it in the other study only
                run_id=None,
            )
        )
    folder.write_trials(imported)
    return imported, refused


def _not_imported(trial: Trial, theirs: StudyResults, config: "Config", space: Space) -> str | None:
    """Return the reason why a study does not import another's trial; None where it does."""
    if theirs.objectives != objectives_of(config.study):
        return "the studies have different objectives"
    if trial.status not in (Status.FINISHED, Status.DIVERGED):  # a scheduler stops by another study's rules
        return f"it is {trial.status}"
    chosen = trial.overrides.get("algorithm")
    if "algorithm" in space.domains and not space.domains["algorithm"].contains(chosen):
        return f"there is no arm {chosen or trial.algorithm} here"
    domains = space.of(chosen)
    for key, value in trial.overrides.items():
        if key not in domains:
            return f"{key} is not searched here"
        if not domains[key].contains(value):
            return f"its {key} lies outside {domains[key]}"
    records = theirs.folder.records(trial.number)
    if not records.is_dir() or records_damage(records) is not None:
        return "its records are damaged"
    mine = config.with_overrides(trial.overrides).flat()
    its = dict(trained_items(trial_config(theirs.config, trial.overrides)))
    for key in {**its, **mine}:
        if its.get(key) != mine.get(key):
            return f"{key} is {its.get(key)} there, {mine.get(key)} here"
    return None
