"""Figures that only the end of a run can tell: its drift's dip and recovery, its sessions' first rounds, its mean
accuracy, its traffic, and the drifts that it has noticed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from flstudy.metrics.drift import DEFAULT, Recovery, dip, recovery_rounds, segments
from flstudy.metrics.registry import SERVERS
from flstudy.metrics.regret import noticed
from flstudy.metrics.sessions import initial_accuracy

CURVES = tuple(f"{split}/{models}" for split in ("valid", "test") for models in ("", SERVERS))
"""Beginnings of the names of accuracies, of the models that devices use and of the server's."""
SUMMED = {
    "time/total_s": "time/round_s",
    "wireless/total_s": "wireless/latency_s",
    "energy/joules": "wireless/energy_j",
}
WATCHED = ("detector/detected", "detector/restarted")  # what `noticed` is told


class RunSummary:
    """Summary of one run, which adds up its rounds.

    Args:
        drifts: rounds of the world's drifts, from 1.
        rounds: of the whole run.
        sessions: rounds with which sessions begin, but for the first.
        rule: when a drift is recovered from.
    """

    def __init__(
        self, drifts: Sequence[int], rounds: int, sessions: Sequence[int] = (), rule: Recovery = DEFAULT
    ) -> None:
        self.rule = rule
        self.drifts, self.segments = tuple(drifts), segments(drifts, rounds)
        self.sessions = segments(sessions, rounds)
        self._curves: dict[str, dict[int, Sequence[float]]] = {name: {} for name in CURVES}
        self._sums: dict[str, dict[int, np.ndarray]] = {name: {} for name in ("traffic/bits", *SUMMED)}
        self._watched: dict[str, dict[int, Sequence[float]]] = {name: {} for name in WATCHED}
        self._epochs: dict[int, Sequence[float]] = {}  # from the first drift on

    def add(self, round: int, metrics: Mapping[str, Sequence[float]]) -> None:
        """Add a round (from 1), a value per replica; a round added again replaces its earlier self."""
        for prefix, curve in self._curves.items():
            if (name := f"{prefix}accuracy") in metrics:
                curve[round] = metrics[name]
        for name, values in self._watched.items():
            if name in metrics:
                values[round] = metrics[name]
        if self.drifts and round >= min(self.drifts) and "fit/epochs" in metrics:
            self._epochs[round] = metrics["fit/epochs"]
        down, up = metrics.get("traffic/down_bytes"), metrics.get("traffic/up_bytes")
        if down is not None and up is not None:
            self._sums["traffic/bits"][round] = 8 * (np.asarray(down, float) + np.asarray(up, float))
        for total, name in SUMMED.items():
            if name in metrics:
                self._sums[total][round] = np.asarray(metrics[name], float)

    def figures(self) -> dict[str, list[float]]:
        """Return the figures of the run by name, a value per replica.

        Those of an accuracy have a ``global_`` twin of the server's models, ``valid/global_dip`` and the like.
        ``valid/dip`` and ``test/dip``: FLASH eq. (4), the lowest accuracy from the first drift to the end;
        ``valid/dip_window`` and ``test/dip_window``: the same of means over ``recovery.window`` evaluations in a row.
        ``valid/recovery`` and ``test/recovery``: rounds to recovery after the last drift (`recovery_rounds`), NaN
        where it never came. All are missing where nothing drifts. ``valid/initial_accuracy`` and
        ``test/initial_accuracy``: of the ten rounds with which a session begins (`initial_accuracy`), the mean over all
        sessions but the first; missing where there are no more. ``valid/mean_accuracy`` and ``test/mean_accuracy``: of
        all evaluations, what Master-FL's Table II calls average accuracy across T rounds. ``fit/drift_epochs``: epochs
        of a job from the first drift on. ``traffic/bits``: down and up, all devices. ``time/total_s``: seconds of
        rounds, evaluations not included. ``wireless/total_s`` and ``energy/joules``: of the devices in their radio
        cell, where there is one. ``detector/…``: detections and restarts of a controller that makes any
        (`regret.noticed`).
        """
        summary = {name: np.sum(list(parts.values()), axis=0).tolist() for name, parts in self._sums.items() if parts}
        for prefix, curve in self._curves.items():
            rounds = np.asarray(sorted(curve), dtype=np.int64)
            accuracy = np.asarray([curve[round] for round in rounds.tolist()]).T
            if rounds.size:
                summary[f"{prefix}mean_accuracy"] = accuracy.mean(-1).tolist()
            if self.segments and rounds.size and rounds[-1] >= self.segments[-1][0]:
                first, (last, until) = self.segments[0][0], self.segments[-1]
                summary[f"{prefix}dip"] = dip(rounds, accuracy, first).tolist()
                summary[f"{prefix}dip_window"] = dip(rounds, accuracy, first, window=self.rule.window).tolist()
                since = self.segments[-2][0] if len(self.segments) > 1 else 1
                recovered = recovery_rounds(rounds, accuracy, last, until, since=since, **asdict(self.rule))
                summary[f"{prefix}recovery"] = recovered.tolist()
            evaluated = [(first, last) for first, last in self.sessions if ((first <= rounds) & (rounds <= last)).any()]
            if evaluated and len(evaluated) == len(self.sessions):
                starts = [initial_accuracy(rounds, accuracy, first, last + 1) for first, last in evaluated]
                summary[f"{prefix}initial_accuracy"] = np.mean(starts, axis=0).tolist()
        if self._epochs:
            summary["fit/drift_epochs"] = np.mean(list(self._epochs.values()), axis=0).tolist()
        if all(self._watched.values()):
            curves = [np.asarray([values[r] for r in sorted(values)]).T for values in self._watched.values()]
            figures = noticed(curves[0], curves[1], self.drifts)
            summary |= {f"detector/{name}": values.tolist() for name, values in figures.items()}
        return summary
