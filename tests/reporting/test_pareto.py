"""The trials that none beats in everything."""

import numpy as np
import pytest

from flstudy.reporting.sections.pareto import front_cells, pareto_front, undominated
from flstudy.study import load_study

STUDY = {
    "objective": {"metric": "valid/accuracy", "mode": "max"},
    "objectives": [{"metric": "traffic/bits", "mode": "min"}],
}


def test_undominated_against_every_pair():
    values = np.random.default_rng(2).integers(0, 6, (60, 3)).astype(float)
    expected = [
        not any(all(other >= row) and any(other > row) for j, other in enumerate(values) if j != i)
        for i, row in enumerate(values)
    ]
    assert undominated(values).tolist() == expected
    assert 0 < sum(expected) < 60
    assert undominated(np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])).tolist() == [True, True, False]  # equal ones


def test_the_front_of_a_study(tmp_path, write_study, trial, confirmation):
    def with_values(name, accuracy, bits, **more):
        return trial(name, "A", accuracy, values=[accuracy, bits], **more)

    trials = [
        with_values("0", 0.9, 100.0),
        with_values("1", 0.8, 50.0),
        with_values("2", 0.7, 60.0),  # beaten by 1
        with_values("3", 0.99, 1.0, feasible=False),
        with_values("4", 0.99, 1.0, status="pruned", rounds=3),
        with_values("5", 0.95, 100.0),  # beats 0
        with_values("6", 0.5, None),
        confirmation("7", "0", "A", 0.99, values=[0.99, 0.5]),
    ]
    front = pareto_front(load_study(write_study(tmp_path / "s", trials, study=STUDY)))
    assert [point.number for point in front.trials] == [0, 1, 2, 5]
    assert [point.number for point in front.best] == [5, 1]
    cells = front_cells(front)
    assert cells.header[2:4] == ("Accuracy (validation), %\n(more is better)", "Traffic, bits\n(less is better)")
    assert cells.rows[0] == ("5", "A", "95.0", "100", "lr 0.1")


def test_one_objective_or_no_trial_has_no_front(tmp_path, write_study, trial):
    assert pareto_front(load_study(write_study(tmp_path / "one", [trial("0", values=[0.5])]))) is None
    assert pareto_front(load_study(write_study(tmp_path / "none", [], study=STUDY))) is None


def test_the_front_of_a_larger_study_holds_its_best(searched):
    front = pareto_front(load_study(searched))
    accuracies = [point.values[0] for point in front.trials]
    assert front.best[0].values[0] == max(accuracies)
    assert front.best[-1].values[1] == min(point.values[1] for point in front.trials)
    assert max(accuracies) < 0.99  # the one outside the constraints is not there
    values = [point.values for point in front.best]
    assert values == sorted(values, reverse=True)
    assert [bits for _, bits in values] == pytest.approx(sorted((bits for _, bits in values), reverse=True))
