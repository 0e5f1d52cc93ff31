"""Measures of how fast a federation learns as a session begins (device sessions: Chang et al. 2025, sec. VI).

Curves are accuracies [..., T] at evaluated ``rounds`` [T], from 1 and rising; a session is given by its first round,
``begin``, and the first of the next, ``until``, or None where there is none. Every function returns [...], and raises
UserError for a curve of another form, or one without an evaluation in the session.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flstudy.user_error import UserError

Floats = NDArray[np.float64]


def initial_accuracy(
    rounds: ArrayLike, accuracy: ArrayLike, begin: int, until: int | None = None, *, first: int = 10
) -> Floats:
    """Return the mean accuracy of a session's first rounds (Tables II and III: ten).

    Args:
        first: how many rounds of the session count, those that were evaluated, ≥ 1.

    Raises:
        UserError: if none of them was evaluated.
    """
    if first < 1:
        raise UserError(f"first must be ≥ 1, got {first}")
    last = begin + first if until is None else min(begin + first, until)
    _, inside = _session(rounds, accuracy, begin, last)
    return inside.mean(-1)  # type: ignore[no-any-return]


def final_accuracy(rounds: ArrayLike, accuracy: ArrayLike, begin: int, until: int | None = None) -> Floats:
    """Return the accuracy in the last evaluated round of a session."""
    _, inside = _session(rounds, accuracy, begin, until)
    return inside[..., -1]  # type: ignore[no-any-return]


def time_to_accuracy(
    rounds: ArrayLike, accuracy: ArrayLike, target: ArrayLike, begin: int, until: int | None = None
) -> Floats:
    """Return T_ρ, eq. (31): the session's first round, counted from 1 in it, at which the accuracy reaches ``target``.

    ∞ where it never does; NaN where the curve or the target is none. The target [...] is such as ρ times the best
    accuracy of the proposed method in this session (`best_accuracy`).
    """
    number, inside = _session(rounds, accuracy, begin, until)
    wanted = np.asarray(target, dtype=float)
    reached = inside >= wanted[..., None]
    taken = number[reached.argmax(-1)] - begin + 1.0
    counted = np.where(reached.any(-1), taken, np.inf)
    return np.where(np.isnan(wanted) | np.isnan(inside).any(-1), np.nan, counted)


def best_accuracy(rounds: ArrayLike, accuracy: ArrayLike, begin: int, until: int | None = None) -> Floats:
    """Return Acc*, the highest accuracy within a session."""
    return _session(rounds, accuracy, begin, until)[1].max(-1)  # type: ignore[no-any-return]


def accumulated_gain(
    rounds: ArrayLike, accuracy: ArrayLike, baseline: ArrayLike, begin: int, until: int | None = None
) -> Floats:
    """Return G_total, eq. (32): Σ_t (Acc(t) - Acc_baseline(t)) over a session's rounds.

    Where only every k-th round was evaluated an evaluation stands for the rounds since the one before it, so that the
    sum is over rounds whatever k. Both curves are of the same rounds.
    """
    number, ours = _session(rounds, accuracy, begin, until)
    _, theirs = _session(rounds, baseline, begin, until)
    return ((ours - theirs) * np.diff(number, prepend=begin - 1)).sum(-1)  # type: ignore[no-any-return]


def _session(rounds: ArrayLike, accuracy: ArrayLike, begin: int, until: int | None) -> tuple[NDArray[np.int64], Floats]:
    """Return the checked part of a curve within a session."""
    number, values = np.asarray(rounds), np.asarray(accuracy, dtype=float)
    if number.ndim != 1 or (np.diff(number) <= 0).any():
        raise UserError(f"rounds must be a rising vector, got shape {number.shape}")
    if values.shape[-1:] != number.shape:
        raise UserError(f"accuracy must have one value per round, shape [..., {number.size}], got {values.shape}")
    inside = (number >= begin) & (number < (np.inf if until is None else until))
    if not inside.any():
        raise UserError(f"no round of the session [{begin}, {until or 'end'}) was evaluated")
    return number[inside], values[..., inside]
