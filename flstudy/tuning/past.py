"""What trials reported in an earlier start of the study, or in another study, for a scheduler that is to know it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flstudy.study.records import curve, metric_names, read_records
from flstudy.tuning.arms import Proposal, proposal_of
from flstudy.tuning.folder import StudyFolder, TrialSummary


@dataclass(frozen=True, eq=False)
class Past:
    """A trial that ended in an earlier start of the study, or in another study, as schedulers see trials."""

    trial_id: str
    config: Proposal
    told: Sequence[tuple[int, float]]  # (round, objective), rounds ascending


def told_before(folder: StudyFolder, past: Sequence[TrialSummary], metric: str) -> list[Past]:
    """What the trials that ended have reported of the objective, read from their records."""
    found = []
    for trial in past:
        if not trial.ended:
            continue
        told: dict[int, float] = {}
        if folder.records(trial.trial).is_dir():
            table = read_records(folder.records(trial.trial))
            if metric in metric_names(table):
                rounds, values = curve(table, metric)
                told = {int(r): float(v) for r, v in zip(rounds, values.mean(0), strict=True) if np.isfinite(v)}
        if trial.rounds and trial.objective is not None:
            told[trial.rounds] = trial.objective
        found.append(Past(f"past-{trial.trial}", proposal_of(trial), sorted(told.items())))
    return found
