"""What the end of a run tells, against the drift metrics and plain sums."""

import math

import numpy as np
import pytest
import torch

from flstudy.federation.evaluation import Column, over_devices
from flstudy.metrics.drift import Recovery
from flstudy.metrics.registry import METRICS
from flstudy.metrics.run_summary import RunSummary


def summary_of(drifts, rounds=10, levels=None):
    levels = levels or [0.9] * 4 + [0.5] + [0.88] * 5
    run = RunSummary(drifts, rounds)
    for round, level in enumerate(levels, start=1):
        traffic = {"traffic/down_bytes": [10.0, 10.0], "traffic/up_bytes": [5.0, 6.0], "time/round_s": [0.5, 0.5]}
        run.add(round, {"valid/accuracy": [level, level - 0.1], **traffic})
    return run


def test_the_radio_cell_s_seconds_and_joules_add_up():
    whole = RunSummary([], 2)
    for round, (seconds, joules) in enumerate([([1.0, 2.0], [10.0, 20.0]), ([0.5, 0.5], [1.0, 1.0])], start=1):
        whole.add(round, {"wireless/latency_s": seconds, "wireless/energy_j": joules})
    assert whole.figures() == {"wireless/total_s": [1.5, 2.5], "energy/joules": [11.0, 21.0]}


def test_a_run_without_drift_has_sums_only():
    figures = summary_of([]).figures()
    mean = {"valid/mean_accuracy": [pytest.approx(0.85), pytest.approx(0.75)]}
    assert figures == {"traffic/bits": [10 * 8 * 15.0, 10 * 8 * 16.0], "time/total_s": [5.0, 5.0], **mean}
    assert RunSummary([], 5).figures() == {}


def test_dip_and_recovery_are_those_of_the_curve():
    figures = summary_of([5], rounds=14, levels=[0.9] * 4 + [0.5] + [0.88] * 9).figures()
    assert figures["valid/dip"] == [0.5, 0.4]
    assert all(np.array(figures["valid/dip_window"]) >= figures["valid/dip"])
    assert figures["valid/recovery"] == [3.0, 3.0]  # the mean of rounds 6 to 8 is at the level, that of 5 to 7 is not
    assert "test/dip" not in figures
    assert all(METRICS[name].measured == "run" for name in figures)
    strict = RunSummary([5], 14, rule=Recovery(window=1, steady=8))
    for round, level in enumerate([0.9] * 4 + [0.5] + [0.88] * 9, start=1):
        strict.add(round, {"valid/accuracy": [level]})
    assert strict.figures()["valid/recovery"] == [1.0]


def test_local_epochs_count_from_the_first_drift_on():
    run = RunSummary([3, 5], 6)
    for round, epochs in enumerate([8, 8, 6, 4, 5, 3], start=1):
        run.add(round, {"fit/epochs": [float(epochs), 2.0]})
    assert run.figures() == {"fit/drift_epochs": [4.5, 2.0]}


def test_a_round_told_again_replaces_itself():
    run = summary_of([5])
    run.add(5, {"valid/accuracy": [0.7, 0.7], "time/round_s": [1.5, 0.5]})
    assert run.figures()["valid/dip"] == [0.7, 0.7]
    assert run.figures()["time/total_s"] == [6.0, 5.0]


def test_no_evaluation_after_the_last_drift_means_no_figure():
    assert "valid/dip" not in summary_of([5, 12], rounds=20).figures()
    climbing = summary_of([5], levels=[0.9] * 4 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).figures()
    assert climbing["valid/dip"] == [0.1, 0.0]
    assert math.isnan(climbing["valid/recovery"][0])


def test_the_first_ten_rounds_of_each_session_but_the_first():
    levels = [0.9] * 12 + [0.1 * k for k in range(1, 7)] + [0.8] * 2 + [0.2, 0.4]
    run = RunSummary([], 22, sessions=[13, 21])
    for round, level in enumerate(levels, start=1):
        run.add(round, {"test/accuracy": [level]})
    first = (sum(levels[12:20])) / 8  # the session is over before its tenth round
    assert run.figures()["test/initial_accuracy"] == [pytest.approx((first + 0.3) / 2)]
    assert "test/dip" not in run.figures()  # a session is no drift
    stopped = RunSummary([], 22, sessions=[13, 21])
    for round, level in enumerate(levels[:20], start=1):
        stopped.add(round, {"test/accuracy": [level]})
    assert "test/initial_accuracy" not in stopped.figures()  # it would be the mean of easier sessions


def test_devices_that_are_not_there_do_not_count():
    values = torch.tensor([[0.1, 0.5, torch.nan, 0.9], [0.2, torch.nan, 0.4, 0.6]])
    there = np.array([[True, True, False, True], [True, False, True, True]])
    means = over_devices([Column("a", values, there)])
    assert means["a"] == pytest.approx([0.5, 0.4])
    assert means["a_spread"] == pytest.approx([(0.32 / 3) ** 0.5, (0.08 / 3) ** 0.5])
    few = np.array([[True, True, False, True], [True, False, False, True]])
    means = over_devices([Column("b", None), Column("a", values, few), Column("c", values[:, :1], with_spread=False)])
    assert list(means) == ["a", "a_spread", "c"]
    assert means["a"] == pytest.approx([0.5, 0.4])
    assert means["a_spread"] == pytest.approx([(0.32 / 3) ** 0.5, 0.2])
    assert means["c"] == pytest.approx([0.1, 0.2])
    everybody = np.ones((2, 4), dtype=bool)
    assert np.isnan(over_devices([Column("a", values, everybody)])["a"]).all()  # diverged is not absent


def test_mean_accuracy_is_that_of_the_evaluations():
    run = RunSummary([], 9)
    for round, level in ((3, [0.5, 0.2]), (6, [0.7, 0.4]), (9, [0.9, 0.9])):
        run.add(round, {"test/accuracy": level})
    assert run.figures() == {"test/mean_accuracy": [pytest.approx(0.7), pytest.approx(0.5)]}


def test_detections_and_restarts_of_a_whole_run():
    """Drifts in rounds 4 and 8: the first replica notices the first after two rounds, says so once more, and raises a
    false alarm before; the second notices nothing."""
    run = RunSummary([4, 8], 10)
    for round in range(1, 11):
        detected = [{2: 1.0, 6: 2.0, 7: 3.0}.get(round, 0.0), 0.0]
        restarted = [{3: 2.0, 5: 1.0, 7: 2.0, 8: 2.0}.get(round, 0.0), float(round in (2, 4))]
        run.add(round, {"detector/detected": detected, "detector/restarted": restarted})
    figures = run.figures()
    assert figures.pop("detector/delay") == [2.0, pytest.approx(math.nan, nan_ok=True)]
    assert figures == {
        "detector/detections": [3.0, 0.0],
        "detector/false_alarms": [2.0, 0.0],
        "detector/restarts_block": [1.0, 2.0],
        "detector/restarts_detection": [3.0, 0.0],
    }
    assert all(METRICS[name].measured == "run" for name in figures)
    still = RunSummary([], 1)
    still.add(1, {"detector/detected": [1.0], "detector/restarted": [0.0]})
    assert still.figures()["detector/false_alarms"] == [1.0]
    assert "detector/delay" not in still.figures()
