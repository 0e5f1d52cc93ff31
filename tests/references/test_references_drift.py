"""Self-checks of Synthetic(alpha, beta), the drift schedules and the drift measures."""

import numpy as np

from . import drift, synthetic


def test_synthetic_by_hand():
    assert list(synthetic.sizes([0.0, 0.5, -2.5])) == [54 + 50, 148 + 50, 50]  # e^4 = 54.6, e^5 = 148.4, e^-1
    weight, bias = synthetic.model(2.0, np.eye(2), np.zeros(2), alpha=0.25)
    np.testing.assert_allclose(weight, [[1.5, 0.5], [0.5, 1.5]])
    np.testing.assert_allclose(bias, [0.5, 0.5])
    np.testing.assert_allclose(synthetic.model(2.0, np.eye(2), np.zeros(2), 0.25, "variance")[1], [1.0, 1.0])
    x = synthetic.inputs(1.0, np.array([0.0, 1.0]), np.array([[1.0, 0.0], [0.0, 1.0]]), beta=0.5)
    np.testing.assert_allclose(x, [[1.5, 1.5], [0.5, 1.5 + 2**-0.6]])
    _, y = synthetic.device(2.0, np.eye(2), np.zeros(2), 1.0, np.zeros(2), np.array([[3.0, 0], [0, 3.0]]), 0.25, 0.5)
    assert list(y) == [0, 1]


def test_synthetic_covariance(rng):
    x = synthetic.inputs(0.0, np.zeros(60), rng.normal(size=(20000, 60)), beta=1.0)
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.06)


def test_swap_table():
    assert list(drift.swap_table(6)) == [1, 0, 3, 2, 5, 4]
    assert list(drift.swap_table(5)) == [1, 0, 3, 2, 4]
    assert list(drift.swap_table(1)) == [0]
    for classes in (2, 10, 47, 62):
        table = drift.swap_table(classes)
        assert list(table[table]) == list(range(classes))
    assert list(drift.relabel(np.array([0, 0, 4, 3]), np.array([0, 1, 1, 1]), 5)) == [0, 1, 4, 2]


def test_concept_schedules():
    assert [drift.sudden(r, 500, 3).sum() for r in (1, 499, 500, 1000)] == [0, 0, 3, 3]
    assert [drift.recurrent(r, 500, 800, 3).sum() for r in (499, 500, 799, 800)] == [0, 3, 3, 0]
    ranks = np.random.default_rng(0).permutation(30)
    changed = [drift.incremental(r, 500, ranks).sum() for r in (499, 500, 599, 600, 700, 800, 900, 5000)]
    assert changed == [0, 6, 6, 12, 18, 24, 30, 30]
    early, late = drift.incremental(600, 500, ranks), drift.incremental(700, 500, ranks)
    assert (late >= early).all()  # who has changed stays changed


def test_dip_and_recovery():
    rounds = np.arange(10, 130, 10)
    accuracy = np.array([0.5, 0.8, 0.8, 0.8, 0.2, 0.5, 0.7, 0.8, 0.7, 0.8, 0.8, 0.8])
    assert drift.dip(rounds, accuracy, 50, 120) == 0.2
    assert (drift.dip(rounds, accuracy, 30, 50), drift.dip(rounds, accuracy, 60, 80)) == (0.2, 0.5)  # both ends count
    # b = mean of .5, .8, .8, .8 = .725, l = .8: .7 at round 70 is within .05 of b, and nothing after it is below
    assert drift.recovery(rounds, accuracy, 50, tolerance=0.05, steady=4) == 20
    assert drift.recovery(rounds, accuracy, 50, tolerance=0.05) == 50  # b = .8, which .7 at round 90 does not keep
    assert drift.recovery(rounds, accuracy, 45, tolerance=0.15) == 25  # counted from the drift, not the evaluation
    assert drift.recovery(rounds, accuracy, 50, until=90, tolerance=0.05) == 30
    assert drift.recovery(rounds, accuracy, 200) is None
    # window 2 after the drift: .2 .35 .6 .75 .75 .75 .8 .8, nothing from before it
    assert drift.recovery(rounds, accuracy, 50, window=2, tolerance=0.06) == 30
    assert drift.recovery(rounds, accuracy, 50, window=2, tolerance=0.31) == 20
    falling = np.array([0.9, 0.6, 0.3, 0.0])
    assert drift.recovery(range(4), falling, 0, window=3, tolerance=0.1) is None
    assert drift.recovery(range(4), falling, 0, window=3, tolerance=0.1, steady=3) is None
