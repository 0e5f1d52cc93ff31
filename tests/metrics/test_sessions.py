"""Accuracy after a transition, time to accuracy and accumulated gain, by hand."""

import numpy as np
import pytest

from flstudy.metrics.sessions import (
    accumulated_gain,
    best_accuracy,
    final_accuracy,
    initial_accuracy,
    time_to_accuracy,
)

ROUNDS = np.arange(1, 13)
CURVE = np.array([[0.1, 0.2, 0.3, 0.4, 0.2, 0.5, 0.6, 0.7, 0.1, 0.3, 0.3, 0.9]])


def test_the_first_rounds_of_a_session():
    assert initial_accuracy(ROUNDS, CURVE, 5, 9, first=2).tolist() == pytest.approx([0.35])
    assert initial_accuracy(ROUNDS, CURVE, 5, 9).tolist() == pytest.approx([0.5])  # it has only four
    assert initial_accuracy(ROUNDS, CURVE, 9, first=3).tolist() == pytest.approx([0.7 / 3])


def test_the_last_round_of_a_session_is_its_last_evaluated():
    assert final_accuracy(ROUNDS, CURVE, 5, 9).tolist() == [0.7]
    assert final_accuracy(ROUNDS, CURVE, 9).tolist() == [0.9]
    assert final_accuracy(ROUNDS[::2], CURVE[:, ::2], 5, 9).tolist() == [0.6]
    with pytest.raises(ValueError, match="no round of the session"):
        final_accuracy(ROUNDS[:4], CURVE[:, :4], 5, 9)


def test_time_to_accuracy_counts_from_the_session_s_first_round():
    assert best_accuracy(ROUNDS, CURVE, 5, 9).tolist() == [0.7]
    assert time_to_accuracy(ROUNDS, CURVE, [0.95 * 0.7], 5, 9).tolist() == [4]
    assert time_to_accuracy(ROUNDS, CURVE, [0.5], 5, 9).tolist() == [2]
    assert time_to_accuracy(ROUNDS, CURVE, [0.2], 5, 9).tolist() == [1]
    assert time_to_accuracy(ROUNDS, CURVE, [0.71], 5, 9).tolist() == [np.inf]
    assert np.isnan(time_to_accuracy(ROUNDS, CURVE, [np.nan], 5, 9)).all()
    several = time_to_accuracy(ROUNDS, np.concatenate([CURVE, CURVE / 2]), [0.5, 0.5], 5, 9)
    assert several.tolist() == [2, np.inf]


def test_accumulated_gain_is_a_sum_over_rounds_however_often_they_are_evaluated():
    gain = accumulated_gain(ROUNDS, CURVE, CURVE - 0.1, 5, 9)
    assert gain.tolist() == pytest.approx([0.4])
    every_second = slice(1, None, 2)
    assert accumulated_gain(
        ROUNDS[every_second], CURVE[:, every_second], CURVE[:, every_second] - 0.1, 5, 9
    ).tolist() == pytest.approx([0.4])
    assert accumulated_gain(ROUNDS, CURVE, 2 * CURVE, 9).tolist() == pytest.approx([-1.6])


def test_bad_input():
    with pytest.raises(ValueError, match="no round of the session"):
        best_accuracy(ROUNDS, CURVE, 13)
    with pytest.raises(ValueError, match="rising vector"):
        best_accuracy([2, 1], CURVE[:, :2], 1)
    with pytest.raises(ValueError, match="one value per round"):
        best_accuracy([1, 2], CURVE, 1)
    with pytest.raises(ValueError, match="first must be ≥ 1"):
        initial_accuracy(ROUNDS, CURVE, 1, first=0)
