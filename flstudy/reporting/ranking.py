"""The best trial of each algorithm: its curves, and what a drift did to it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.metrics.drift import DEFAULT, Recovery, accuracy_before, dip, recovery_rounds, segments
from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.selection import Chosen, choose, selection_metric

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

    trial: Trial  # of the search
    selected_on: float  # its validation objective on the seeds of the search, mean over them
    confirmation: Trial | None = None  # the same configuration on new seeds, from which all below is then
    fresh: float = math.nan  # the validation objective on the new seeds
    gap: float = math.nan  # what the search's seeds promised beyond that, in the objective's direction
    rounds: NDArray[np.int64]  # [T] evaluated rounds
    accuracy: Floats  # [S, T]
    drifts: tuple[Drift, ...]

    @property
    def speaker(self) -> Trial:
        """Whose curves these are."""
        return self.trial if self.confirmation is None else self.confirmation

    @property
    def final(self) -> Floats:
        """[S] accuracy at the last evaluation."""
        return self.accuracy[:, -1] if self.rounds.size else np.full(1, np.nan)

    @property
    def epsilon(self) -> float:
        """Privacy that the run spent; NaN where it had none."""
        return self.speaker.metrics.get("privacy/epsilon", math.nan)

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
    sessions: tuple[tuple[int, int], ...] = ()  # first and last rounds of the second session and those after it
    rule: Recovery = DEFAULT  # when a drift is recovered from

    @property
    def confirmed(self) -> bool:
        """Whether any row was trained again on new seeds."""
        return any(row.confirmation is not None for row in self.rows)


def rank(results: StudyResults) -> Ranking:
    """Ranks the algorithms of a study by their chosen trials (`selection.choose`)."""
    objective, higher = results.objective
    metric, notes = selection_metric(results), []
    if metric != objective:
        notes.append(
            f"The study searched on {objective}; its best trials are chosen by {metric}, never by a test score."
        )
    chosen = choose(results)
    plain = [one.trial.algorithm for one in chosen if one.confirmation is None]
    if plain and len(plain) < len(chosen):
        notes.append(
            f"Not confirmed on new seeds: {', '.join(plain)}. Their values are those that chose them, so they look "
            "better than they are beside the others."
        )
    accuracy_metric = _accuracy_metric(results, [one.speaker for one in chosen])
    rows = []
    for one in chosen:
        try:
            rounds, accuracy = results.curve(one.speaker, accuracy_metric)
        except (ValueError, OSError) as error:  # one trial's lost records must not cost the others their table
            notes.append(f"{one.trial.algorithm}: {error}.")
            rounds, accuracy = np.empty(0, np.int64), np.empty((1, 0))
        rows.append(
            Row(
                trial=one.trial,
                selected_on=one.value,
                confirmation=one.confirmation,
                fresh=one.fresh,
                gap=one.value - one.fresh if higher else one.fresh - one.value,
                rounds=rounds,
                accuracy=accuracy,
                drifts=_drifts(results, rounds, accuracy),
            )
        )
    return Ranking(
        rows=tuple(rows),
        selection_metric=metric,
        accuracy_metric=accuracy_metric,
        notes=(*notes, *_counts(results, chosen)),
        sessions=tuple(segments([event.round for event in results.events if event.session], results.rounds)),
        rule=results.recovery,
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
        if event.session:
            continue
        labels[event.round] = f"{labels[event.round]}, {event.label}" if event.round in labels else event.label
    unknown, rule = np.full(accuracy.shape[:-1], np.nan), results.recovery
    drifts, since = [], 1
    for first, last in segments(list(labels), results.rounds):
        earlier = ((rounds >= since) & (rounds < first)).any()
        during = ((rounds >= first) & (rounds <= last)).any()
        drifts.append(
            Drift(
                round=first,
                label=labels[first],
                before=accuracy_before(rounds, accuracy, first, window=rule.steady, since=since)
                if earlier
                else unknown,
                dip=dip(rounds, accuracy, first, last) if during else unknown,
                recovery=recovery_rounds(rounds, accuracy, first, last, **asdict(rule)) if during else unknown,
            )
        )
        since = first
    return tuple(drifts)


def _counts(results: StudyResults, chosen: Sequence[Chosen]) -> list[str]:
    """What became of the trials that are not in the table."""
    notes = [f"{plural(len(results.searched), 'trial')}: {_tally(results.counts())}."] if results.searched else []
    again = results.confirmations
    if again:
        seeds = max(len(results.seeds_of(trial)) for trial in again)
        tally = _tally(Counter(trial.status for trial in again))
        notes.append(f"{plural(len(again), 'confirmation')} on {plural(seeds, 'new seed')}: {tally}.")
    shown = {one.trial.algorithm for one in chosen}
    for algorithm in dict.fromkeys(trial.algorithm for trial in results.searched):
        if algorithm not in shown:
            own = [trial for trial in results.searched if trial.algorithm == algorithm]
            outside = sum(trial.status == "finished" and not trial.feasible for trial in own)
            tally = _tally(Counter(trial.status for trial in own))
            tally += f"; {outside} outside study.constraints" if outside else ""
            within = " within the constraints" if outside else ""
            wanted = f"all {results.rounds} rounds with a finite result{within}"
            notes.append(f"No trial of {algorithm} did {wanted} ({tally}).")
    failed = [trial for trial in results.trials if trial.status == "failed"]
    for trial in failed[:REASONS_SHOWN]:
        notes.append(f"Trial {trial.trial} ({trial.algorithm}) failed: {reason(trial)}")
    if len(failed) > REASONS_SHOWN:
        notes.append(f"{len(failed) - REASONS_SHOWN} more failed; their reasons are in trials.jsonl.")
    return notes


def reason(trial: Trial) -> str:
    """The last line of what a failed trial raised."""
    return ((trial.error or "").strip() or "no reason recorded").splitlines()[-1][:150]


def _tally(counts: Counter[str]) -> str:
    order = ["finished", "pruned", "diverged", "failed"]
    known = [status for status in order if counts[status]] + sorted(set(counts) - set(order))
    return ", ".join(f"{counts[status]} {status}" for status in known)


def plural(count: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
