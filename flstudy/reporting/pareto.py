"""The Pareto front of a study with several objectives: trials that none beats in everything."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flstudy.reporting.load import StudyResults, Trial


@dataclass(frozen=True, kw_only=True)
class Front:
    """Trials of the search that did all rounds within the constraints."""

    objectives: tuple[tuple[str, bool], ...]  # (metric, whether higher is better)
    trials: tuple[Trial, ...]
    on_front: tuple[bool, ...]

    @property
    def best(self) -> tuple[Trial, ...]:
        """The trials of the front, the best one in the first objective first."""
        found = [trial for trial, on in zip(self.trials, self.on_front, strict=True) if on]
        higher = self.objectives[0][1]
        return tuple(sorted(found, key=lambda trial: -trial.values[0] if higher else trial.values[0]))


def front(results: StudyResults) -> Front | None:
    """None where the study has one objective, or no trial to show."""
    objectives = results.objectives
    trials = tuple(
        trial
        for trial in results.searched
        if trial.status == "finished"
        and trial.rounds >= results.rounds
        and trial.feasible
        and len(trial.values) == len(objectives)
        and np.isfinite(trial.values).all()
    )
    if len(objectives) < 2 or not trials:
        return None
    signs = np.array([1.0 if higher else -1.0 for _, higher in objectives])
    on = undominated(signs * np.array([trial.values for trial in trials]))
    return Front(objectives=tuple(objectives), trials=trials, on_front=tuple(on.tolist()))


def undominated(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[T, M] -> [T]: no other row is at least as high everywhere and higher somewhere. Equal rows do not beat
    each other."""
    found = np.empty(len(values), bool)
    for row, own in enumerate(values):
        found[row] = not ((values >= own).all(1) & (values > own).any(1)).any()
    return found
