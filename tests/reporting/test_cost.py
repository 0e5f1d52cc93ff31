"""What was spent, from whatever tells it."""

import math

import numpy as np
import pytest

from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.cost import (
    algorithm_costs,
    budget_notes,
    cost_cells,
    failed_trials,
    failure_cells,
    format_amount,
    format_hours,
    trial_cost,
)
from flstudy.study import load_study

ROUNDS = {
    "time/round_s": np.full((2, 10), 3.0),
    "time/evaluation_s": np.full((2, 10), 0.6),
    "traffic/down_bytes": np.array([[100.0] * 10, [300.0] * 10]),
    "traffic/up_bytes": np.full((2, 10), 50.0),
}


def test_a_finished_trial_tells_its_totals(tmp_path, write_study, trial):
    metrics = {"time/total_s": 7200.0, "traffic/bits": 5000.0, "energy/joules": 30.0}
    folder = write_study(tmp_path / "s", [trial("0", metrics=metrics)], curves={"0": ROUNDS})
    results = load_study(folder)
    spent = trial_cost(results, results.trials[0])
    assert (spent.hours, spent.bits, spent.joules) == (2.0, 5000.0, 30.0)


def test_of_another_the_rounds_are_added_up(tmp_path, write_study, trial):
    clock = {"started": 100.0, "ended": 1900.0}
    trials = [trial("0"), trial("1", status="pruned", **clock), trial("2", attempts=2, **clock), trial("3")]
    results = load_study(write_study(tmp_path / "s", trials, curves=dict.fromkeys("012", ROUNDS)))
    summed, clocked, again, lost = (trial_cost(results, entry) for entry in results.trials)
    assert summed.hours == pytest.approx(36 / 3600)
    assert summed.bits == 8 * (10 * 200 + 10 * 50)  # mean over the two seeds
    assert clocked.hours == 0.5
    assert again.hours == pytest.approx(36 / 3600)  # between two starts the clock says nothing
    assert math.isnan(lost.hours)
    assert math.isnan(lost.bits)


def test_by_algorithm(searched):
    costs = {cost.algorithm: cost for cost in algorithm_costs(Findings(results=load_study(searched)))}
    flash = costs["Flash"]
    assert (flash.trials, flash.confirmations) == (14, 2)
    assert flash.rounds == 11 * 10 + 2 + 4 + 0 + 2 * 10
    # 11 trials of 36 s, one pruned of 36 s by the clock, two confirmations of 60 s; nothing is known of the others
    assert flash.hours == pytest.approx((11 * 36 + 36 + 2 * 60) / 3600)
    assert flash.run_bits == 8 * 10 * 1500
    assert flash.bits == 11 * 3 * 120000 + 2 * 5 * 8 * 15000
    assert math.isnan(flash.joules)
    cells = cost_cells(tuple(costs.values()))
    assert "Energy" not in cells.header
    assert cells.rows[0][:4] == ("Flash", "14", "2", "136")


def test_energy_is_a_column_where_it_was_measured(tmp_path, write_study, trial):
    trials = [trial("0", metrics={"energy/joules": 1500.0}), trial("1", "B")]
    results = load_study(write_study(tmp_path / "s", trials))
    cells = cost_cells(algorithm_costs(Findings(results=results)))
    assert cells.header[-1] == "Energy"
    assert [row[-1] for row in cells.rows] == ["3 kJ", "–"]  # of both seeds


def test_unequal_searches_are_told(tmp_path, write_study, trial):
    trials = [trial(str(i), "A") for i in range(6)] + [trial("6", "B")]
    unequal = Findings(results=load_study(write_study(tmp_path / "s", trials)))
    assert "different numbers of trials (A 6, B 1)" in budget_notes(unequal)[0]
    alike = Findings(results=load_study(write_study(tmp_path / "t", trials[4:])))
    assert budget_notes(alike) == []


def test_a_study_of_private_runs_says_that_tuning_spends_more(tmp_path, write_study, trial):
    trials = [trial("0", metrics={"privacy/epsilon": 3.0}), trial("1", "B")]
    (note,) = budget_notes(Findings(results=load_study(write_study(tmp_path / "s", trials))))
    assert note.startswith("ε is of one run each")


def test_failures(searched, tmp_path, write_study, trial):
    (failed,) = failed_trials(load_study(searched))
    cells = failure_cells([failed])
    assert cells.rows == ((str(failed.number), "Flash", "failed", "2", "RuntimeError: out of <memory> & 100 %"),)
    lost = load_study(write_study(tmp_path / "s", [trial("0", attempts=3), trial("1")]))
    assert [row[:4] for row in failure_cells(failed_trials(lost)).rows] == [("0", "FedAvg", "finished", "3")]
    assert failure_cells([]) is None


def test_amounts():
    assert [format_amount(value, "bit") for value in (12.0, 1234.0, 5.6e9, math.nan)] == [
        "12 bit",
        "1.23 kbit",
        "5.6 Gbit",
        "–",
    ]
    assert [format_hours(value) for value in (0.0123, 1.234, math.nan)] == ["0.012", "1.23", "–"]
