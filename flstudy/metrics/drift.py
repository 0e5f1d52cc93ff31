"""Effect of a concept drift on accuracy: the level before it, the dip, the rounds to recovery.

Reference: Panchal et al., FLASH, ICML 2023, eq. (4) and Tables 2 and 7. The paper defines the dip; its "rounds till
recovery" ("reach a steady state after a concept drift") has no formula, so `recovery_rounds` states one, by which a
model that rises beyond its earlier level without a steady state has recovered, too.

Every function takes one evaluation curve: `rounds [T]`, the increasing rounds (from 1) at which accuracy was measured,
and `accuracy [..., T]` as fractions in [0, 1], replicas leading; it returns `[...]`. A drift at round r means that
round r is the first one trained and evaluated under the new concept, and the evaluation recorded as round r is made
after that round's server step. A replica whose accuracy is NaN (it diverged) gets NaN, never an exception. A curve of
another form, or without an evaluation in the rounds that are asked for, raises UserError.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flstudy.user_error import UserError

Floats = NDArray[np.float64]
_SLACK = 1e-6  # accuracies averaged in float32 may exceed 1 by a rounding error


def _positive(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"{name} must be an integer >= 1, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """Rule of when accuracy has recovered from a drift (`recovery_rounds`); windows count evaluations, not rounds."""

    window: int = 3
    """Evaluations over which accuracy is smoothed, for the recovery and for the dip over a window."""
    tolerance: float = 0.02
    """Largest distance, a fraction of accuracy, at which smoothed accuracy stays: below the level before the drift, or
    from the steady state."""
    steady: int = 5
    """Evaluations whose mean is a level: the last before a drift, and the last of a concept, its steady state."""

    def __post_init__(self) -> None:
        _positive("recovery.window", self.window)
        _positive("recovery.steady", self.steady)
        if not 0 < self.tolerance < 1:
            raise UserError(
                f"recovery.tolerance must be in (0, 1), a fraction of accuracy, got {self.tolerance}: 0.02 is usual"
            )


DEFAULT = Recovery()
"""For short studies, evaluated every round or every few rounds."""

PAPER = Recovery(window=100, tolerance=0.01, steady=100)
"""FLASH averages its curves "across 100 rounds of interval" (Figure 3), here an evaluation a round; tolerance: ours."""


def segments(events: Sequence[int], last_round: int) -> list[tuple[int, int]]:
    """Return the stretches [r1, r2], both included, that follow each drift: up to the round before the next one, or the
    end.

    Two events at one round are one drift. Events after `last_round` never happened and are left out.

    Raises:
        UserError: for an event before round 1.
    """
    starts = sorted({int(event) for event in events if event <= last_round})
    if starts and starts[0] < 1:
        raise UserError(f"events must be rounds >= 1, got {starts[0]}")
    ends = [start - 1 for start in starts[1:]] + [last_round]
    return list(zip(starts, ends, strict=True)) if starts else []


def accuracy_before(
    rounds: ArrayLike, accuracy: ArrayLike, drift: int, *, window: int = DEFAULT.steady, since: int = 1
) -> Floats:
    """Return the mean accuracy of the last `window` evaluations before round `drift`, of all of them where there are
    fewer.

    `since`: first round that counts, the previous drift's round where there was one (older ones had another concept).
    """
    _positive("window", window)
    _positive("drift", drift)
    _, before = _stretch(rounds, accuracy, since, drift - 1)
    return np.asarray(before[..., -window:].mean(-1))


def dip(rounds: ArrayLike, accuracy: ArrayLike, drift: int, until: int | None = None, *, window: int = 1) -> Floats:
    """Return FLASH's eq. (4): dip^(r1, r2) = min{acc^(r) : r in [r1, r2]}, the lowest accuracy (so higher is better).

    r1 is `drift`; r2 is `until`, included, by default the last evaluation. With a further drift at round e give
    `until=e - 1` (see `segments`): round e belongs to the next concept.

    With a `window` acc^(r) is the mean of that many evaluations in a row, all of them in [r1, r2] (the mean of all,
    where there are fewer). All labels of a swap are wrong in its first round whatever a server does; how far accuracy
    stays down over some rounds tells methods apart, and the paper's own curves are means over 100 rounds (its Fig. 3).
    """
    _positive("drift", drift)
    _positive("window", window)
    _, after = _stretch(rounds, accuracy, drift, until)
    if window > 1:
        after = _trailing_mean(after, window)[..., min(window, after.shape[-1]) - 1 :]  # windows that are whole
    return np.asarray(after.min(-1))  # np.min hands NaN on


def recovery_rounds(
    rounds: ArrayLike,
    accuracy: ArrayLike,
    drift: int,
    until: int | None = None,
    *,
    since: int = 1,
    window: int = DEFAULT.window,
    tolerance: float = DEFAULT.tolerance,
    steady: int = DEFAULT.steady,
) -> Floats:
    """Return the rounds from the drift until accuracy is back where it was, or has settled under the new concept.

    Let s_r be the mean of the last `window` evaluations up to round r, of fewer at the start, none of them from before
    the drift; b the level before it (`accuracy_before`, of `steady` evaluations); l the steady state, the mean of the
    last `steady` evaluations up to `until`. Then, over the evaluations in [drift, until],

        back     = min {r : s_q ≥ b - tolerance for every q ≥ r} - drift
        settled  = min {r : |s_q - l| ≤ tolerance for every q ≥ r} - drift
        recovery = min {back, settled}.

    So it is 0 for a model that the drift does not throw back, also one that rises on and on. NaN where neither comes:
    l is made of the last evaluations, so that to be near it from one of them on says no more than that a curve ends
    near its own end; settled has to come at or before the first of them, and needs `steady` evaluations.

    Note that the measure asks how fast, not how well: read it beside the final accuracy.

    Args:
        rounds: of the evaluations.
        accuracy: their values.
        drift: the round from which the new concept holds.
        until: the last round before the next drift; None: the last evaluation.
        since: first round that counts for b, as in `accuracy_before`; without an evaluation there nothing is back.
        window, tolerance, steady: as in `Recovery`.
    """
    _positive("drift", drift)
    Recovery(window=window, tolerance=tolerance, steady=steady)  # refuses what makes no sense
    after_rounds, after = _stretch(rounds, accuracy, drift, until)
    smooth, length = _trailing_mean(after, window), after.shape[-1]
    bound = tolerance + 1e-12  # the slack keeps a curve that sits exactly on the tolerance inside it

    def begun(good: NDArray[np.bool_], latest: int) -> Floats:
        """Return the rounds from the drift to the evaluation, ``latest`` at most, from which all are good; else NaN."""
        stays = np.logical_and.accumulate(good[..., ::-1], axis=-1)[..., ::-1]
        return np.where(stays[..., latest], (after_rounds[stays.argmax(-1)] - drift).astype(float), np.nan)

    back = settled = np.full(after.shape[:-1], np.nan)
    evaluated = np.asarray(rounds)
    if ((evaluated >= since) & (evaluated < drift)).any():
        before = accuracy_before(rounds, accuracy, drift, window=steady, since=since)
        back = begun(smooth >= before[..., None] - bound, length - 1)
    if length >= steady:
        level = after[..., -steady:].mean(-1, keepdims=True)
        settled = begun(np.abs(smooth - level) <= bound, length - steady)
    return np.fmin(back, settled)


def _trailing_mean(values: Floats, window: int) -> Floats:
    """Return [..., T] -> [..., T]: mean of the last `window` values up to each position, of fewer at the start."""
    total = np.cumsum(values, axis=-1)
    total[..., window:] -= total[..., :-window].copy()
    return total / np.minimum(np.arange(1, values.shape[-1] + 1), window)


def _stretch(rounds: ArrayLike, accuracy: ArrayLike, first: int, last: int | None) -> tuple[NDArray[np.int64], Floats]:
    """Return the checked curve between two rounds, both included."""
    r, a = np.asarray(rounds), np.asarray(accuracy, dtype=float)
    if r.ndim != 1 or not r.size or not np.issubdtype(r.dtype, np.integer):
        raise UserError(f"rounds must be a non-empty vector of integers, got shape {r.shape} of {r.dtype}")
    if r[0] < 1 or (np.diff(r) <= 0).any():
        raise UserError(f"rounds must be >= 1 and strictly increasing, got {r.tolist()[:10]}")
    if a.shape[-1:] != r.shape:
        raise UserError(f"accuracy must have one value per round, shape [..., {r.size}], got shape {a.shape}")
    outside = (a < 0) | (a > 1 + _SLACK)
    if outside.any():
        raise UserError(f"accuracy must be a fraction in [0, 1] (or NaN), got {a[outside][0]}")
    last = int(r[-1]) if last is None else last
    inside = (r >= first) & (r <= last)
    if not inside.any():
        raise UserError(
            f"rounds must have an evaluation in [{first}, {last}], got {r[0]} to {r[-1]} ({r.size} of them)"
        )
    return r[inside].astype(np.int64), a[..., inside]
