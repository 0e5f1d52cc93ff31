"""Repair of trials with damaged files when a study goes on: damage costs no more than the trial that it belongs to.

A trial that is over keeps its result, which stands in trials.jsonl: training it again would only bring back its curve,
and the values that it told the search must stay. A trial that is not over starts anew if its snapshot, or the records
of the rounds before it, cannot be read.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from flstudy.study.damage import checkpoint_damage
from flstudy.study.folder import StudyFolder
from flstudy.study.records import records_damage
from flstudy.study.trial import Trial


def repair(folder: StudyFolder, trials: Iterable[Trial]) -> list[str]:
    """Make a study's trials fit to go on; returns a sentence for each that has lost something."""
    sentences = []
    for trial in trials:
        records = folder.records(trial.number)
        if not trial.is_over:
            damage = begin_anew(records, folder.snapshot(trial.number))
            if damage is not None:
                sentences.append(f"trial {trial.number} starts anew: {damage}")
        elif (damage := records_damage(records)) is not None:
            sentences.append(no_curve_message(trial, damage))
    return sentences


def begin_anew(records: Path, snapshot: Path) -> str | None:
    """Remove a trial's files if it cannot go on from them; returns their damage, None where there is none."""
    damage = records_damage(records) or (checkpoint_damage(snapshot) if snapshot.is_file() else None)
    if damage is not None:
        snapshot.unlink(missing_ok=True)
        shutil.rmtree(records, ignore_errors=True)
    return damage


def no_curve_message(trial: Trial, damage: str) -> str:
    """Return a sentence about a trial that is over and whose records are damaged."""
    return f"trial {trial.number} keeps its result but has no curve: {damage}"
