"""Sentence on which method leads a study that still runs: it names one only if its lead is more than noise."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flstudy.study import BestTrial, StudyFolder, Trial
from flstudy.study.records import curve, read_records, seeds_of

if TYPE_CHECKING:
    from flstudy.config import Objective

NAMED = 3  # methods that the sentence names at most


class Lead:
    """Lead of a study's best trials, by their last values seed by seed, which it reads from their records once."""

    def __init__(self, folder: StudyFolder, objective: "Objective") -> None:
        self._folder, self._metric, self._higher = folder, objective.selection_metric, objective.higher
        self._values: dict[int, dict[int, float]] = {}  # of a trial by its number: seed to last value

    def sentence(self, best: Iterable[BestTrial]) -> str:
        """Return the sentence on the best trials of the methods; empty while there are not two with records."""
        from flstudy.reporting.sections.comparison import compare  # matplotlib takes a second

        values = {winner.trial.algorithm: self._last(winner.trial) for winner in best}
        values = {algorithm: by_seed for algorithm, by_seed in values.items() if by_seed}
        pairs = compare(values, higher=self._higher)
        if not pairs:
            return ""
        leader = pairs[0].first
        beside = [pair for pair in pairs if pair.first == leader and pair.verdict != "different"]
        if not beside:
            return f"{leader} leads on {self._metric} by more than noise"
        if any(pair.verdict == "cannot tell" for pair in beside):
            return f"too few seeds to tell which method leads on {self._metric}"
        names = [pair.second for pair in beside]
        shown = [*names[:NAMED], *[f"{len(names) - NAMED} more"] * (len(names) > NAMED)]
        runners_up = " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
        return f"no method leads by more than noise: {leader} is beside {runners_up}"

    def _last(self, trial: Trial) -> dict[int, float]:
        """Return the last values by seed; none where the records are on another machine, or damaged."""
        if trial.number not in self._values:
            try:
                table = read_records(self._folder.records(trial.number))
                _, values = curve(table, self._metric)
            except (ValueError, OSError):
                return {}
            self._values[trial.number] = dict(zip(seeds_of(table), values[:, -1].tolist(), strict=True))
        return self._values[trial.number]
