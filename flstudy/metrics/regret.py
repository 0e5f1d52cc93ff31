"""Costs of a moving world to a method that has to notice it: dynamic regret, detections, restarts.

Reference: Ganguly & Aggarwal, Master-FL, IEEE/ACM ToN 2024, eq. (7) and Definitions 1 and 2. Curves are [..., T] over
rounds 1 … T, replicas leading; what a controller logs under ``detector/`` has that form. F_t and its optimum come from
`optimum`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flstudy.metrics.drift import segments
from flstudy.user_error import UserError

Floats = NDArray[np.float64]


def dynamic_regret(losses: ArrayLike, optima: ArrayLike) -> Floats:
    """Return R_[1,t] for every t, eq. (7): the sums [..., T] of F_τ(x_τ) - min F_τ over τ ≤ t.

    Args:
        losses: [..., T] F_t(x_t).
        optima: [..., T], or [T] for all replicas: min_x F_t(x).

    Raises:
        UserError: for curves of different lengths.
    """
    suffered, least = np.asarray(losses, float), np.asarray(optima, float)
    if suffered.shape[-1:] != least.shape[-1:] or not suffered.ndim:
        raise UserError(
            f"losses and optima must cover the same rounds, [..., T], got {suffered.shape} and {least.shape}"
        )
    return np.cumsum(suffered - least, axis=-1)


def variation(losses: ArrayLike) -> Floats:
    """Return Δ_t of Definition 1 for t = 2 … T, [..., T - 1], from the losses [..., M, T] of M models: max |F_t -
    F_(t-1)|.

    The definition takes the largest over all models, so that this is a lower bound, the better the more models there
    are; their sum is Δ.

    Raises:
        UserError: for losses of another form, or of a single round.
    """
    of_models = np.asarray(losses, float)
    if of_models.ndim < 2 or of_models.shape[-1] < 2:
        raise UserError(f"losses must be [..., models, T ≥ 2], got shape {of_models.shape}")
    return np.abs(np.diff(of_models, axis=-1)).max(-2)  # type: ignore[no-any-return]


def count_changes(variations: ArrayLike, tolerance: float = 0.0) -> NDArray[np.int64]:
    """Return [...]: L of Definition 2, the number of rounds in which Δ_t [..., T - 1] is above the tolerance (0 as
    defined).

    Raises:
        UserError: for a negative tolerance.
    """
    if not tolerance >= 0:
        raise UserError(f"tolerance must be ≥ 0, got {tolerance}")
    return np.sum(np.asarray(variations, float) > tolerance, axis=-1)


class Detections(NamedTuple):
    """Delays and false alarms of the detections of drifts."""

    delay: Floats  # [..., D] rounds from each drift to the first detection under it, 0 in its own round; NaN: missed
    false_alarms: NDArray[np.int64]  # [...] detections that are nobody's first


def detections(detected: ArrayLike, drifts: Sequence[int], within: int | None = None) -> Detections:
    """Match detections [..., T] (0 none, of any kind otherwise) with drifts: the first from a drift on, before the next
    drift, is that drift's; all others are false alarms.

    Args:
        detected: [..., T], such as ``detector/detected``.
        drifts: rounds (from 1) of the drifts; those after T never happened.
        within: latest rounds after a drift that count as its; None: until the next drift.

    Raises:
        UserError: for a negative ``within``.
    """
    if within is not None and within < 0:
        raise UserError(f"within must be ≥ 0, got {within}")
    fired = np.asarray(detected, float) > 0
    delays = []
    for first, last in segments(drifts, fired.shape[-1]):
        until = last if within is None else min(last, first + within)
        inside = fired[..., first - 1 : until]
        delays.append(np.where(inside.any(-1), inside.argmax(-1).astype(float), np.nan))
    delay = np.stack(delays, -1) if delays else np.empty((*fired.shape[:-1], 0))
    return Detections(delay, fired.sum(-1) - np.isfinite(delay).sum(-1))


def count_restarts(restarted: ArrayLike) -> Mapping[str, NDArray[np.int64]]:
    """Return the numbers [...] of a method's restarts, by cause, from ``detector/restarted`` [..., T]."""
    causes = np.asarray(restarted)
    return {"block": (causes == 1).sum(-1), "detection": (causes == 2).sum(-1)}


def noticed(detected: ArrayLike, restarted: ArrayLike, drifts: Sequence[int]) -> dict[str, Floats]:
    """Return the figures of a whole run, by name, each [...]: ``detections``, some drift's and no drift's;
    ``false_alarms``, no drift's alone; ``delay``, rounds from a drift to its detection, mean over the drifts that were
    detected, NaN where none was (missing where nothing drifts); ``restarts_block`` and ``restarts_detection``.

    Args:
        detected: ``detector/detected`` [..., T].
        restarted: ``detector/restarted`` [..., T].
        drifts: rounds (from 1) of the drifts.
    """
    fired = np.asarray(detected, float) > 0
    matched = detections(fired, drifts)
    hit = np.isfinite(matched.delay)
    delay = np.where(hit, matched.delay, 0.0).sum(-1) / np.where(hit.any(-1), hit.sum(-1), np.nan)
    return {
        "detections": fired.sum(-1).astype(float),
        "false_alarms": matched.false_alarms.astype(float),
        **({"delay": delay} if matched.delay.shape[-1] else {}),
        **{f"restarts_{cause}": count.astype(float) for cause, count in count_restarts(restarted).items()},
    }
