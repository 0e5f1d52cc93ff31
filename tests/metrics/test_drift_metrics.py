"""Dip, recovery and the level before a drift, against numbers worked out by hand."""

from dataclasses import asdict

import numpy as np
import pytest

from flstudy.metrics.drift import PAPER, Recovery, accuracy_before, dip, recovery_rounds, segments

from ..references import drift as reference

# Evaluated every second round; a drift at round 9 first shows in the evaluation of round 10.
ROUNDS = [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
CURVE = [0.50, 0.70, 0.80, 0.90, 0.30, 0.50, 0.70, 0.80, 0.80, 0.80]


def test_accuracy_before_is_the_mean_of_the_last_evaluations_before_the_drift():
    assert accuracy_before(ROUNDS, CURVE, 9, window=2) == pytest.approx(0.85)
    assert accuracy_before(ROUNDS, CURVE, 9, window=100) == pytest.approx(0.725)  # all four
    assert accuracy_before(ROUNDS, CURVE, 9, window=100, since=6) == pytest.approx(0.85)


def test_the_drift_round_itself_belongs_to_the_new_concept():
    assert accuracy_before(ROUNDS, CURVE, 10, window=1) == pytest.approx(0.90)
    assert dip(ROUNDS, CURVE, 10) == pytest.approx(0.30)
    assert accuracy_before(ROUNDS, CURVE, 11, window=1) == pytest.approx(0.30)
    assert dip(ROUNDS, CURVE, 11) == pytest.approx(0.50)


def test_dip_is_the_lowest_accuracy_of_the_stretch_both_ends_included():
    assert dip(ROUNDS, CURVE, 9) == pytest.approx(0.30)
    assert dip(ROUNDS, CURVE, 2, 8) == pytest.approx(0.50)
    assert dip(ROUNDS, CURVE, 2, 10) == pytest.approx(0.30)


def test_the_dip_over_a_window_is_the_lowest_mean_of_evaluations_in_a_row():
    curve = [0.9, 0.9, 0.0, 0.6, 0.9, 0.3, 0.3]
    for window, lowest in ((1, 0.0), (2, 0.3), (3, 0.5), (5, 0.42), (9, 0.42)):  # nothing from before the drift
        assert dip(np.arange(1, 8), curve, 3, window=window) == pytest.approx(lowest)
    assert np.isnan(dip(np.arange(1, 8), [*curve[:-1], np.nan], 3, window=2))
    with pytest.raises(ValueError, match="window must be an integer >= 1, got 0"):
        dip(ROUNDS, CURVE, 9, window=0)


def test_recovery_without_smoothing():
    # level = mean(0.8, 0.8) = 0.8; within 0.05 from round 16 on: 16 - 9.
    assert recovery_rounds(ROUNDS, CURVE, 9, window=1, tolerance=0.05, steady=2) == 7
    # within 0.1, the boundary included, from round 14 on.
    assert recovery_rounds(ROUNDS, CURVE, 9, window=1, tolerance=0.1, steady=2) == 5


def test_recovery_smooths_with_a_trailing_mean_that_starts_at_the_drift():
    # trailing means of two: 0.3, 0.4, 0.6, 0.75, 0.8, 0.8: within 0.05 of 0.8 from round 16, of 0.04 from round 18.
    assert recovery_rounds(ROUNDS, CURVE, 9, window=2, tolerance=0.05, steady=2) == 7
    assert recovery_rounds(ROUNDS, CURVE, 9, window=2, tolerance=0.04, steady=2) == 9
    # The first evaluation after the drift stands alone: 0.9 from before it does not lift 0.3.
    flat = [0.9, 0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]
    assert recovery_rounds(ROUNDS, flat, 10, window=4, tolerance=0.01, steady=2) == 0


def test_recovery_counts_from_the_last_time_the_curve_leaves_the_band():
    relapse = [0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.2, 0.8, 0.8, 0.8]
    assert recovery_rounds(ROUNDS, relapse, 10, window=1, tolerance=0.05, steady=2) == 6


def test_a_curve_still_climbing_or_diverged_or_too_short_never_recovers():
    climbing = np.linspace(0.1, 0.9, 10)
    assert np.isnan(recovery_rounds(ROUNDS, climbing, 2, window=1, tolerance=0.02, steady=4))
    assert np.isnan(recovery_rounds(ROUNDS, [*CURVE[:-1], np.nan], 9, window=1, tolerance=0.1, steady=2))
    assert np.isnan(recovery_rounds(ROUNDS, CURVE, 17, since=17, window=1, tolerance=0.1, steady=3))  # two are left


RISING = list(np.linspace(0.5, 0.77, 10))
"""Ten evaluations before a drift, .77 the last; the mean of the last five is .71."""
CASES = {
    "falls and rises beyond its level, at the end still": (RISING + list(np.linspace(0.3, 0.91, 20)), 13),
    "rises on as if nothing were": (RISING + list(np.linspace(0.78, 0.95, 20)), 0),
    "stays where it was": ([0.7] * 30, 0),
    "falls within the tolerance": ([0.7] * 10 + [0.69] * 20, 0),
    "falls and settles below": ([0.7] * 10 + [0.2, 0.4] + [0.6] * 18, 2),
    "falls and settles above": ([0.5] * 10 + [0.2, 0.4] + [0.8] * 18, 2),
    "falls for good": ([0.7] * 10 + [0.3] * 20, 0),
    "overshoots and settles": ([0.7] * 10 + [0.2, 0.9, 0.9] + [0.6] * 17, 3),
    "is back and falls once more": ([0.7] * 10 + [0.7] * 5 + [0.2] + [0.7] * 14, 6),
    "is back in the last evaluation": ([0.7] * 10 + [0.2] * 19 + [0.7], 19),
    "rises at the end still, below its level": ([0.9] * 10 + list(np.linspace(0.1, 0.7, 20)), np.nan),
    "falls at the end": ([0.7] * 10 + list(np.linspace(0.69, 0.1, 20)), np.nan),
    "falls on and on": ([0.7] * 10 + list(np.linspace(0.6, 0.3, 20)), np.nan),
    "diverges": ([0.7] * 10 + [0.6] * 19 + [np.nan], np.nan),
}


@pytest.mark.parametrize(("curve", "rounds"), CASES.values(), ids=CASES)
def test_a_model_that_rises_has_recovered_and_one_that_moves_below_its_level_has_not(curve, rounds):
    recovery = recovery_rounds(np.arange(1, 31), curve, 11, window=1, tolerance=0.02, steady=5)
    np.testing.assert_equal(recovery, float(rounds))


def test_the_report_s_case():
    """78.9 % before the drift, 91.0 % at the end, still rising: it is back long before."""
    curve = [0.789] * 30 + list(0.91 - 0.7 * np.exp(-np.arange(30) / 9))
    assert recovery_rounds(np.arange(1, 61), curve, 31) == 16


def test_recovery_is_that_of_the_formula_as_it_is_printed():
    rng, rounds = np.random.default_rng(0), np.arange(2, 62, 2)
    for _ in range(200):
        accuracy = np.clip(rng.uniform(0.3, 0.9) + np.cumsum(rng.normal(0, 0.03, 30)), 0, 1)
        drift, window, steady = int(rng.integers(1, 61)), int(rng.integers(1, 5)), int(rng.integers(1, 8))
        expected = reference.recovery(rounds, accuracy, drift, window=window, tolerance=0.05, steady=steady)
        recovery = recovery_rounds(rounds, accuracy, drift, window=window, tolerance=0.05, steady=steady)
        assert recovery == expected or (np.isnan(recovery) and expected is None)


def test_recovery_stops_at_the_next_drift():
    again = [0.9, 0.9, 0.3, 0.9, 0.9, 0.9, 0.1, 0.1, 0.5, 0.9]
    (first, second) = segments([5, 13], 20)
    assert (first, second) == ((5, 12), (13, 20))
    assert recovery_rounds(ROUNDS, again, *first, window=1, tolerance=0.01, steady=2) == 3  # back at round 8
    # The last evaluation is where the mean of rounds 10 and 12 was, that of 8 and 10 another concept's.
    assert recovery_rounds(ROUNDS, again, *second, since=first[0], window=1, tolerance=0.01, steady=2) == 7
    assert np.isnan(recovery_rounds(ROUNDS, again, *second, since=13, window=1, tolerance=0.01, steady=2))


def test_replicas_lead_and_equal_single_curves():
    rng = np.random.default_rng(0)
    curves = rng.uniform(0.4, 0.6, (2, 3, 10))
    for measure in (
        lambda a: accuracy_before(ROUNDS, a, 9),
        lambda a: dip(ROUNDS, a, 9),
        lambda a: recovery_rounds(ROUNDS, a, 9, tolerance=0.15, window=2, steady=3),
    ):
        stacked = measure(curves)
        assert stacked.shape == (2, 3)
        single = [[measure(curves[i, j]) for j in range(3)] for i in range(2)]
        np.testing.assert_allclose(stacked, np.array(single), equal_nan=True)


def test_the_paper_preset_averages_over_100_evaluations():
    rounds = np.arange(1, 1001)
    accuracy = np.where(rounds < 401, 0.9, np.where(rounds < 501, 0.4, 0.8))
    # Trailing mean of 100 is 0.8 - 0.4 * (stale ones)/100: within 0.01 once at most 2 of the 0.4s remain, at round 598.
    assert recovery_rounds(rounds, accuracy, 401, **asdict(PAPER)) == 598 - 401


def test_segments():
    assert segments([], 10) == []
    assert segments([7, 3, 7, 50], 10) == [(3, 6), (7, 10)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dip([1, 1], [0.1, 0.2], 1), "rounds must be >= 1 and strictly increasing"),
        (lambda: dip([1.0, 2.0], [0.1, 0.2], 1), "rounds must be a non-empty vector of integers"),
        (lambda: dip([1, 2], [0.1, 0.2, 0.3], 1), r"accuracy must have one value per round, shape \[..., 2\]"),
        (lambda: dip([1, 2], [91.5, 92.0], 1), r"accuracy must be a fraction in \[0, 1\] \(or NaN\), got 91.5"),
        (lambda: dip([1, 2], [0.1, 0.2], 3), r"an evaluation in \[3, 2\], got 1 to 2"),
        (lambda: dip([1, 2], [0.1, 0.2], 0), "drift must be an integer >= 1, got 0"),
        (lambda: accuracy_before([1, 2], [0.1, 0.2], 1), r"an evaluation in \[1, 0\]"),
        (lambda: accuracy_before([1, 2], [0.1, 0.2], 2, window=0), "window must be an integer >= 1, got 0"),
        (lambda: recovery_rounds([1, 2], [0.1, 0.2], 2, steady=-1), "steady must be an integer >= 1, got -1"),
        (lambda: recovery_rounds([1, 2], [0.1, 0.2], 2, tolerance=2), r"tolerance must be in \(0, 1\)"),
        (lambda: segments([0, 4], 9), "events must be rounds >= 1, got 0"),
    ],
)
def test_bad_input_names_the_value_and_its_domain(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ({"window": 0}, "recovery.window must be an integer >= 1, got 0"),
        ({"steady": 2.5}, "recovery.steady must be an integer >= 1, got 2.5"),
        ({"tolerance": 2.0}, r"recovery.tolerance must be in \(0, 1\), a fraction of accuracy, got 2.0: 0.02 is usual"),
    ],
)
def test_a_rule_that_cannot_be_met_is_refused(named, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recovery(**named)
