"""What an algorithm's tuning is worth, and which hyper-parameter decides."""

import numpy as np
import pytest

from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import place_in, searched_domains
from flstudy.reporting.sections.sensitivity import importance_cells, sensitivities, sensitivity_cells
from flstudy.study import load_study


def study(tmp_path, write_study, trial, values, search, **config):
    trials = [
        trial(str(i), "A", value, overrides={"algorithm": "A", **given}) for i, (value, given) in enumerate(values)
    ]
    settings = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": search} | config
    return Findings(results=load_study(write_study(tmp_path / "s", trials, study=settings)))


def test_quantiles_of_the_trials_that_did_all_rounds(searched):
    found = {one.algorithm: one for one in sensitivities(Findings(results=load_study(searched)))}
    results = load_study(searched)
    for algorithm, one in found.items():
        own = [
            t.objective for t in results.searched if t.algorithm == algorithm and t.status == "finished" and t.feasible
        ]
        assert one.complete == len(own)
        assert (one.best, one.median, one.worst) == pytest.approx((max(own), np.median(own), np.quantile(own, 0.25)))
    assert found["Flash"].trials == 14
    assert found["Flash"].diverged == pytest.approx(1 / 14)
    cells = sensitivity_cells(tuple(found.values()), "valid/accuracy")
    assert cells.rows[2][:4] == ("FedAvg", "13", "11", "8")
    assert cells.rows[0][7].startswith("lr ")


def test_the_worst_quarter_of_a_loss_is_the_high_one(tmp_path, write_study, trial):
    values = [(float(value), {}) for value in (1, 2, 3, 4, 5)]
    results = study(tmp_path, write_study, trial, values, {}, objective={"metric": "valid/loss", "mode": "min"})
    (one,) = sensitivities(results)
    assert (one.best, one.median, one.worst) == (1, 3, 4)


def test_the_hyper_parameter_that_decides_is_the_important_one(searched):
    found = sensitivities(Findings(results=load_study(searched)))
    for one in found:
        assert next(iter(one.importances)) == "algorithm.lr"
        assert sum(one.importances.values()) == pytest.approx(1)
        assert one.note is None
    assert set(found[2].importances) == {"algorithm.lr", "algorithm.momentum"}
    assert set(found[0].importances) == {"algorithm.lr", "algorithm.tau"}
    cells = importance_cells(found)
    assert "PED-ANOVA" in cells.title
    assert sum(float(row[2]) for row in cells.rows if row[0] == "Flash") == pytest.approx(100, abs=1)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_importances_of_a_known_function(tmp_path, write_study, trial, mode):
    rng = np.random.default_rng(1)
    sign = 1 if mode == "max" else -1
    values = []
    for _ in range(60):
        x, y, z = 10 ** rng.uniform(-3, 0), rng.uniform(0, 1), int(rng.integers(1, 9))
        given = {"algorithm.x": x, "algorithm.y": y, "algorithm.z": z, "algorithm.c": str(rng.choice(["a", "b"]))}
        values.append((sign * -((np.log10(x) + 1) ** 2) + 0.05 * y, given))
    search = {
        "algorithm.x": {"loguniform": [1e-3, 1]},
        "algorithm.y": {"uniform": [0, 1]},
        "algorithm.z": {"randint": [1, 9]},
        "algorithm.c": {"choice": ["a", "b"]},
    }
    results = study(tmp_path, write_study, trial, values, search, objective={"metric": "valid/loss", "mode": mode})
    (one,) = sensitivities(results)
    assert set(one.importances) == set(search)
    assert one.importances["algorithm.x"] > 0.5


def test_few_trials_or_keys_have_no_importances_and_a_reason(tmp_path, write_study, trial):
    search = {"algorithm.x": {"uniform": [0, 1]}}
    few = study(tmp_path, write_study, trial, [(0.1 * i, {"algorithm.x": 0.1 * i}) for i in range(5)], search)
    (one,) = sensitivities(few)
    assert one.importances == {}
    assert one.note == "A: importances need 8 trials that did all rounds, and it has 5."
    many = study(tmp_path / "b", write_study, trial, [(0.1 * i, {"algorithm.x": 0.1 * i}) for i in range(9)], search)
    (one,) = sensitivities(many)
    assert one.note == "A: importances compare hyper-parameters, and only 1 varied."
    assert importance_cells((one,)) is None


def test_values_have_a_place_in_their_domain(tmp_path, write_study):
    search = {
        "algorithm": {"choice": ["A", "B"]},
        "a": {"loguniform": ["1e-4", "1"]},
        "b": {"quniform": [0, 1, 0.3]},
        "c": {"randint": [2, 5]},
        "d": {"choice": [[1, 2], "x", None]},
    }
    found = searched_domains(load_study(write_study(tmp_path / "s", [], study={"search": search})))
    assert list(found) == ["a", "b", "c", "d"]
    assert place_in(found["a"], 0.01) == pytest.approx(0.5)
    assert place_in(found["b"], 0.9) == 1  # its grid ends there
    assert [place_in(found["c"], value) for value in (2, 3, 4)] == [0, 0.5, 1]  # 5 is excluded
    assert np.isnan(place_in(found["c"], 5))
    assert place_in(found["d"], [1, 2]) == 0
    assert place_in(found["d"], None) == 1
    assert np.isnan(place_in(found["a"], 2.0))


@pytest.mark.parametrize("whole", [3, 4])
def test_an_algorithm_with_few_full_trials_is_said_to_have_too_few(tmp_path, write_study, trial, whole):
    """A median and a quarter of three trials are no finding."""
    trials = [trial(str(place), "A", 0.5 + place / 10) for place in range(whole)]
    trials += [trial(str(whole + place), "A", 0.9, status="pruned", rounds=3) for place in range(5)]
    (one,) = sensitivities(Findings(results=load_study(write_study(tmp_path / "s", trials))))
    (row,) = sensitivity_cells([one], "valid/accuracy").rows
    enough = whole >= 4
    assert row[1:3] == (str(whole + 5), str(whole))
    assert (row[5:7] == ("–", "–")) is not enough
    assert (row[7] == "not enough full trials") is not enough
    assert np.isnan([one.median, one.worst]).any() != enough
