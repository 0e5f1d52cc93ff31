"""Ranking of a study's algorithms: the best trial of each, its curves, and the effects of drifts on it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flstudy.metrics.drift import DEFAULT, Floats, Recovery, accuracy_before, dip, recovery_rounds, segments
from flstudy.metrics.registry import is_fraction, is_of_server, judged_by, of_server
from flstudy.reporting.looks import looks_of
from flstudy.reporting.style import Look
from flstudy.reporting.tables import mean_and_spread, plural
from flstudy.study import Status, StudyResults, Trial
from flstudy.study.damage import DamageError
from flstudy.study.results import WorldEvent

REASONS_SHOWN = 3
ACCURACIES = ("test/accuracy", "valid/accuracy", "test/global_accuracy", "valid/global_accuracy")
TUNING_SPENDS = (
    "ε is of one run each: trying trials on devices' data and choosing among them spends more of the privacy budget, "
    "which is not counted here."
)
Analysis = TypeVar("Analysis")


class DriftEffect(NamedTuple):
    """Effect of one drift on one trial; each array is [S], NaN where it is not known."""

    round: int
    label: str
    before: Floats
    dip: Floats
    recovery: Floats


@dataclass(frozen=True, kw_only=True)
class RankedTrial:
    """Best trial of one algorithm, with the curves of its confirmation if it has one."""

    algorithm: str
    trial: Trial  # of the search
    confirmation: Trial | None  # the same configuration on new seeds
    reported_trial: Trial  # the trial with these curves
    value: float  # of the selection metric on the seeds of the search
    confirmed_value: float  # of the selection metric on the new seeds
    gap: float  # by how much `value` is better than `confirmed_value`; NaN without new seeds
    epsilon: float  # privacy budget ε that the run spent; NaN where it was not private
    rounds: NDArray[np.int64]  # [T] evaluated rounds
    accuracy: Floats  # [S, T] of the ranking's accuracy_metric
    errors: Floats | None = None  # [S, T] standard errors of values measured on a panel of devices
    final: Floats  # [S] at the last evaluation
    judged_by: str  # the models that the ranking's accuracy_metric is of, in words; '' where it is unknown
    server: Floats  # [S] the ranking's accuracy_metric of the server's models, at the last evaluation
    drifts: tuple[DriftEffect, ...]

    @property
    def before(self) -> Floats:
        """Accuracy [S] before the first drift."""
        return self.drifts[0].before

    @property
    def dip(self) -> Floats:
        """Lowest accuracy [S] from the first drift to the end: FLASH eq. (4) over all drifts."""
        first = self.drifts[0].round
        if not (self.rounds >= first).any():
            return np.full(self.accuracy.shape[:-1], np.nan)
        return dip(self.rounds, self.accuracy, first)

    @property
    def recovery(self) -> Floats:
        """Rounds to recovery [S] after the last drift, when the world stands still."""
        return self.drifts[-1].recovery


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Best trials of a study's algorithms, ranked."""

    rows: tuple[RankedTrial, ...]  # best first
    selection_metric: str
    accuracy_metric: str  # of the curves; without a recorded accuracy the metric that chose the trials, on test data
    notes: tuple[str, ...]  # one sentence each
    higher: bool = True  # whether a higher value of the accuracy_metric is better
    sessions: tuple[tuple[int, int], ...] = ()  # first and last rounds of the second session and those after it
    rule: Recovery = DEFAULT  # when a trial has recovered from a drift

    @property
    def confirmed(self) -> bool:
        """Return whether any row was trained again on new seeds."""
        return any(row.confirmation is not None for row in self.rows)

    @property
    def kind(self) -> str:
        """Data of the accuracies: test, or validation."""
        return "test" if self.accuracy_metric.startswith("test/") else "validation"

    @property
    def judges(self) -> tuple[str, ...]:
        """The kinds of models by which the algorithms are judged, in words, each once; '' where it is unknown."""
        return tuple(dict.fromkeys(row.judged_by for row in self.rows))

    @property
    def shows_accuracy(self) -> bool:
        """Return whether the curves show an accuracy."""
        return self.accuracy_metric in ACCURACIES

    @property
    def shown(self) -> str:
        """Quantity that the curves show, in words: an accuracy, or a metric of the task's own by its name."""
        accuracy = "accuracy of the server's model" if is_of_server(self.accuracy_metric) else "accuracy"
        return f"{self.kind} {accuracy}" if self.shows_accuracy else self.accuracy_metric

    def final(self, row: RankedTrial) -> str:
        """Return the final value of a trial's curves with its spread; shares in percent, without the sign."""
        return self.spread(row.final)

    def spread(self, values: Floats) -> str:
        """Return the values [S] of the accuracy_metric as their mean and spread; shares in percent, without the
        sign."""
        return mean_and_spread(values, self.scale, ".1f" if self.unit else ".3g")

    @property
    def scale(self) -> int:
        """Factor by which values of the curves are multiplied to be shown: shares are in percent."""
        return 100 if is_fraction(self.accuracy_metric) else 1

    @property
    def unit(self) -> str:
        """Unit of the numbers shown, after a space."""
        return " %" if is_fraction(self.accuracy_metric) else ""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings of a report: a study, its ranking, and the analyses that several sections share."""

    results: StudyResults
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def ranking(self) -> Ranking:
        return rank(self.results)

    def once(self, analysis: "Callable[[Findings], Analysis]") -> Analysis:
        """Return the result of a section's analysis of this study, computed when the first section asks for it."""
        if analysis not in self._made:
            self._made[analysis] = analysis(self)
        return self._made[analysis]  # type: ignore[no-any-return]

    @cached_property
    def events(self) -> list[WorldEvent]:
        """Drifts and sessions within the study's rounds."""
        return [event for event in self.results.events if event.round <= self.results.rounds]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """Look of each algorithm in every figure: the ranked ones first, in the ranking's order."""
        ranked = [row.trial.algorithm for row in self.ranking.rows]
        return looks_of([*ranked, *(trial.algorithm for trial in self.results.searched)])


def rank(results: StudyResults) -> Ranking:
    """Rank the algorithms of a study by their best trials."""
    metric, higher, notes = results.selection_metric, results.objective.higher, []
    if metric != results.objective.metric:
        notes.append(
            f"The study searched on {results.objective.metric}; its best trials are chosen by {metric}, never by a "
            "test score."
        )
    unconfirmed = [best.trial.algorithm for best in results.best if best.confirmation is None]
    if unconfirmed and len(unconfirmed) < len(results.best):
        notes.append(
            f"Not confirmed on new seeds: {', '.join(unconfirmed)}. Their values are those that chose them, so they "
            "look better than they are beside the others."
        )
    accuracy_metric = curves_metric(results, metric)
    rows = []
    for best in results.best:
        try:
            rounds, accuracy = results.curve(best.reported_trial, accuracy_metric)
            errors = results.standard_errors(best.reported_trial, accuracy_metric)
        except (ValueError, OSError) as error:  # one trial's lost records must not cost the others their table
            if not isinstance(error, DamageError):  # reported by a section of its own
                notes.append(f"{best.trial.algorithm}: {error}.")
            rounds, accuracy, errors = np.empty(0, np.int64), np.empty((1, 0)), None
        rows.append(
            RankedTrial(
                **best._asdict(),
                algorithm=best.trial.algorithm,
                reported_trial=best.reported_trial,
                gap=best.value - best.confirmed_value if higher else best.confirmed_value - best.value,
                epsilon=best.reported_trial.metrics.get("privacy/epsilon", math.nan),
                rounds=rounds,
                accuracy=accuracy,
                errors=errors,
                final=accuracy[:, -1] if rounds.size else np.full(1, np.nan),
                judged_by=judged_by(best.reported_trial.deployed, accuracy_metric),
                server=_final_of_server(results, best.reported_trial, accuracy_metric),
                drifts=_drift_effects(results, rounds, accuracy) if accuracy_metric in ACCURACIES else (),
            )
        )
    return Ranking(
        rows=tuple(rows),
        selection_metric=metric,
        accuracy_metric=accuracy_metric,
        higher=higher or accuracy_metric in ACCURACIES,
        notes=(*notes, *_notes_on_others(results)),
        sessions=tuple(segments([event.round for event in results.events if event.session], results.rounds)),
        rule=results.recovery,
    )


def _final_of_server(results: StudyResults, trial: Trial, metric: str) -> Floats:
    """Return the last values [S] of a metric of the server's models; NaN where they are not recorded."""
    curves = recorded(results, trial, metric if is_of_server(metric) else of_server(metric))
    return curves[0][1][:, -1] if curves and curves[0][0].size else np.full(1, np.nan)


def curves_metric(results: StudyResults, selection: str) -> str:
    """Return the metric of the curves: test accuracy where every best trial recorded it by round, else validation
    accuracy for all, of the server's models if these were selected by; where there is neither, the metric by which
    trials were selected, on test data if it is recorded there."""
    accuracies = [name for name in ACCURACIES if is_of_server(name) == is_of_server(selection)]
    trials = [best.reported_trial for best in results.best]
    presence = {name: [bool(recorded(results, trial, name)) for trial in trials] for name in accuracies}
    if any(map(any, presence.values())) or not results.best:
        lacks_test = any(
            there and not tested for tested, there in zip(*(presence[name] for name in accuracies), strict=True)
        )
        return accuracies[lacks_test]
    tested = selection.replace("valid/", "test/", 1)
    for name in (tested, selection):
        if name not in ACCURACIES and all(recorded(results, trial, name) for trial in trials):
            return name
    return accuracies[0]


def recorded(results: StudyResults, trial: Trial, *metrics: str) -> list[tuple[NDArray[np.int64], Floats]]:
    """Return the rounds [T] and values [S, T] of each metric; an empty list where the records lack one of them, or are
    lost."""
    try:
        return [results.curve(trial, metric) for metric in metrics]
    except (ValueError, OSError):
        return []


def _drift_effects(results: StudyResults, rounds: NDArray[np.int64], accuracy: Floats) -> tuple[DriftEffect, ...]:
    labels: dict[int, str] = {}
    for event in results.events:
        if not event.session:
            labels[event.round] = f"{labels[event.round]}, {event.label}" if event.round in labels else event.label
    unknown, rule = np.full(accuracy.shape[:-1], np.nan), results.recovery
    effects, since = [], 1
    for first, last in segments(list(labels), results.rounds):
        earlier = ((rounds >= since) & (rounds < first)).any()
        during = ((rounds >= first) & (rounds <= last)).any()
        before = accuracy_before(rounds, accuracy, first, window=rule.steady, since=since) if earlier else unknown
        lowest = dip(rounds, accuracy, first, last) if during else unknown
        recovered = unknown
        if during:
            recovered = recovery_rounds(rounds, accuracy, first, last, since=since, **asdict(rule))
        effects.append(DriftEffect(first, labels[first], before, lowest, recovered))
        since = first
    return tuple(effects)


def _notes_on_others(results: StudyResults) -> list[str]:
    """Return the sentences on the trials that are not in the table."""
    searched, again = results.searched, results.confirmations
    notes = [f"{tried(results)}: {_tally(searched)}."] if searched else []
    if again:
        seeds = max(len(results.seeds_of(trial)) for trial in again)
        notes.append(f"{plural(len(again), 'confirmation')} on {plural(seeds, 'new seed')}: {_tally(again)}.")
    ranked = {best.trial.algorithm for best in results.best}
    for algorithm in dict.fromkeys(trial.algorithm for trial in searched if trial.algorithm not in ranked):
        trials = [trial for trial in searched if trial.algorithm == algorithm]
        outside = sum(trial.status is Status.FINISHED and not trial.feasible for trial in trials)
        tally = _tally(trials) + (f"; {outside} outside study.constraints" if outside else "")
        wanted = f"all {results.rounds} rounds with a finite result" + (" within the constraints" if outside else "")
        notes.append(f"No trial of {algorithm} did {wanted} ({tally}).")
    failed = [trial for trial in results.trials if trial.status is Status.FAILED]
    for trial in failed[:REASONS_SHOWN]:
        notes.append(f"Trial {trial.number} ({trial.algorithm}) failed: {failure_reason(trial)}")
    if len(failed) > REASONS_SHOWN:
        notes.append(f"{len(failed) - REASONS_SHOWN} more failed; their reasons are in trials.jsonl.")
    return notes


def tried(results: StudyResults) -> str:
    """Return the number of trials of a study's search, and how often they were proposed if that is more."""
    trials, proposals = plural(len(results.searched), "trial"), sum(trial.times_proposed for trial in results.searched)
    return trials if proposals == len(results.searched) else f"{trials} of {proposals} proposals"


def failure_reason(trial: Trial) -> str:
    """Return the error of a failed trial, cut where it is long."""
    return trial.reason[:150] or "no reason recorded"


def _tally(trials: Sequence[Trial]) -> str:
    counts = Counter(trial.status for trial in trials)
    order = [Status.FINISHED, Status.PRUNED, Status.DIVERGED, Status.FAILED]
    statuses = [status for status in order if counts[status]] + sorted(set(counts) - set(order))
    return ", ".join(f"{counts[status]} {status}" for status in statuses)
