"""Past trials as Ray's schedulers see trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flstudy.study import StudyFolder, Trial
from flstudy.study.records import curve, metric_names, read_records, records_damage
from flstudy.tuning.proposals import Proposal, proposal_of


@dataclass(frozen=True, eq=False)  # Ray keeps trials as keys
class PastTrial:
    """A trial of an earlier start of the study, or of another study, as Ray's schedulers see trials."""

    trial_id: str
    config: Proposal
    reports: Sequence[tuple[int, float]]  # (round, objective), rounds ascending
    over: bool = True


def read_history(folder: StudyFolder, trials: Sequence[Trial], metric: str) -> list[PastTrial]:
    """Return the trials with their reports of the objective, read from their records.

    A trial that is over has all its reports. A trial that goes on has those up to its snapshot: it will make the later
    ones again.
    """
    histories = []
    for trial in trials:
        last_round = trial.rounds if trial.is_over else snapshot_rounds(folder.snapshot(trial.number))
        reported: dict[int, float] = {}
        records = folder.records(trial.number)
        if last_round and records.is_dir() and records_damage(records) is None:
            table = read_records(records)
            if metric in metric_names(table):
                rounds, values = curve(table, metric)
                pairs = zip(rounds, values.mean(0), strict=True)
                reported = {int(r): float(v) for r, v in pairs if r <= last_round and np.isfinite(v)}
        if trial.is_over and trial.rounds and np.isfinite(trial.objective):
            reported[trial.rounds] = trial.objective
        if trial.is_over or reported:
            past = PastTrial(f"past-{trial.number}", proposal_of(trial), sorted(reported.items()), trial.is_over)
            histories.append(past)
    return histories


def snapshot_rounds(path: Path) -> int:
    """Return the number of rounds after which a snapshot was written; 0 where there is none that can be read, so that
    the trial starts anew."""
    import torch

    try:
        return int(torch.load(path, map_location="cpu", mmap=True, weights_only=True)["epoch"]) + 1
    except Exception:  # a damaged one may raise whatever pickle and zip can
        return 0
