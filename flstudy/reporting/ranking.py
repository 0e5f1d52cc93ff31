"""Which trial speaks for each algorithm, and what a drift did to it.

A trial is chosen by the study's objective on *validation* clients' data, among the trials that did all rounds: a
pruned trial's value is one of an earlier round. The test score of the chosen trial is reported and chooses nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.metrics.drift import accuracy_before, dip, recovery_rounds, segments
from flstudy.reporting.load import StudyResults, Trial

Floats = NDArray[np.float64]
REASONS_SHOWN = 3


class Drift(NamedTuple):
    """One drift as one trial lived through it; each array is [S], NaN where it cannot be told."""

    round: int
    label: str
    before: Floats
    dip: Floats
    recovery: Floats


@dataclass(frozen=True, kw_only=True)
class Row:
    """The best trial of one algorithm."""

    trial: Trial
    selected_on: float  # the validation objective that chose it, mean over replicas
    rounds: NDArray[np.int64]  # [T] evaluated rounds
    accuracy: Floats  # [S, T]
    drifts: tuple[Drift, ...]

    @property
    def final(self) -> Floats:
        """[S] accuracy at the last evaluation."""
        return self.accuracy[:, -1] if self.rounds.size else np.full(1, np.nan)

    @property
    def before(self) -> Floats:
        """[S] accuracy before the first drift."""
        return self.drifts[0].before

    @property
    def dip(self) -> Floats:
        """[S] lowest accuracy from the first drift to the end: FLASH eq. (4) over all drifts."""
        first = self.drifts[0].round
        if not (self.rounds >= first).any():
            return np.full(self.accuracy.shape[:-1], np.nan)
        return dip(self.rounds, self.accuracy, first)

    @property
    def recovery(self) -> Floats:
        """[S] rounds to recovery after the last drift, when the world stands still."""
        return self.drifts[-1].recovery


@dataclass(frozen=True, kw_only=True)
class Ranking:
    rows: tuple[Row, ...]  # best first
    selection_metric: str
    accuracy_metric: str  # of the curves
    notes: tuple[str, ...]  # one sentence each


def rank(results: StudyResults) -> Ranking:
    objective, maximise = results.objective
    metric, notes = objective, []
    if objective.startswith("test/"):
        metric = "valid/" + objective.removeprefix("test/")
        notes.append(
            f"The study searched on {objective}; its best trials are chosen by {metric}, never by a test score."
        )

    best: dict[str, tuple[float, Trial]] = {}
    for trial in results.trials:
        value = trial.objective if metric == objective else trial.metrics.get(metric, math.nan)
        if trial.status != "finished" or trial.rounds < results.rounds or not math.isfinite(value):
            continue
        known = best.get(trial.algorithm)
        if known is None or (value > known[0] if maximise else value < known[0]):
            best[trial.algorithm] = (value, trial)
    chosen = sorted(best.values(), key=lambda pair: -pair[0] if maximise else pair[0])

    accuracy_metric = _accuracy_metric(results, [trial for _, trial in chosen])
    rows = []
    for value, trial in chosen:
        try:
            rounds, accuracy = results.curve(trial, accuracy_metric)
        except (ValueError, OSError) as error:  # one trial's lost records must not cost the others their table
            notes.append(f"{trial.algorithm}: {error}.")
            rounds, accuracy = np.empty(0, np.int64), np.empty((1, 0))
        drifts = _drifts(results, rounds, accuracy)
        rows.append(Row(trial=trial, selected_on=value, rounds=rounds, accuracy=accuracy, drifts=drifts))
    return Ranking(
        rows=tuple(rows),
        selection_metric=metric,
        accuracy_metric=accuracy_metric,
        notes=(*notes, *_counts(results, best)),
    )


def _accuracy_metric(results: StudyResults, trials: Sequence[Trial]) -> str:
    """Test accuracy where every chosen trial recorded it by round, else validation accuracy for all alike."""
    for trial in trials:
        try:
            results.curve(trial, "test/accuracy")
        except (ValueError, OSError):
            try:
                results.curve(trial, "valid/accuracy")
            except (ValueError, OSError):
                continue  # neither: this trial has no say
            return "valid/accuracy"
    return "test/accuracy"


def _drifts(results: StudyResults, rounds: NDArray[np.int64], accuracy: Floats) -> tuple[Drift, ...]:
    labels: dict[int, str] = {}
    for event in results.events:
        labels[event.round] = f"{labels[event.round]}, {event.label}" if event.round in labels else event.label
    unknown = np.full(accuracy.shape[:-1], np.nan)
    drifts, since = [], 1
    for first, last in segments(list(labels), results.rounds):
        earlier = ((rounds >= since) & (rounds < first)).any()
        during = ((rounds >= first) & (rounds <= last)).any()
        drifts.append(
            Drift(
                round=first,
                label=labels[first],
                before=accuracy_before(rounds, accuracy, first, since=since) if earlier else unknown,
                dip=dip(rounds, accuracy, first, last) if during else unknown,
                recovery=recovery_rounds(rounds, accuracy, first, last) if during else unknown,
            )
        )
        since = first
    return tuple(drifts)


def _counts(results: StudyResults, best: dict[str, tuple[float, Trial]]) -> list[str]:
    """What became of the trials that are not in the table."""
    notes = [f"{_plural(len(results.trials), 'trial')}: {_tally(results.counts())}."] if results.trials else []
    for algorithm in dict.fromkeys(trial.algorithm for trial in results.trials):
        if algorithm not in best:
            own = Counter(trial.status for trial in results.trials if trial.algorithm == algorithm)
            notes.append(
                f"No trial of {algorithm} did all {results.rounds} rounds with a finite result ({_tally(own)})."
            )
    failed = [trial for trial in results.trials if trial.status == "failed"]
    for trial in failed[:REASONS_SHOWN]:
        reason = (trial.error or "no reason recorded").strip().splitlines()[-1][:150]
        notes.append(f"Trial {trial.trial} ({trial.algorithm}) failed: {reason}")
    if len(failed) > REASONS_SHOWN:
        notes.append(f"{len(failed) - REASONS_SHOWN} more failed; their reasons are in trials.jsonl.")
    return notes


def _tally(counts: Counter[str]) -> str:
    order = ["finished", "pruned", "diverged", "failed"]
    known = [status for status in order if counts[status]] + sorted(set(counts) - set(order))
    return ", ".join(f"{counts[status]} {status}" for status in known)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
