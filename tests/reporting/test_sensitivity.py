"""What an algorithm's tuning is worth, and which hyper-parameter decides."""

import numpy as np
import pytest

from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import place_in, searched_domains
from flstudy.reporting.sections.sensitivity import importance_cells, sensitivities, sensitivity_cells
from flstudy.study import load_study


def study(tmp_path, write_study, trial, values, search, **config):
    trials = [
        trial(str(i), "A", value, overrides={"algorithm": "A", **chosen}) for i, (value, chosen) in enumerate(values)
    ]
    settings = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": search} | config
    return Findings(results=load_study(write_study(tmp_path / "s", trials, study=settings)))


def test_quantiles_of_the_trials_that_did_all_rounds(searched):
    by_algorithm = {
        sensitivity.algorithm: sensitivity for sensitivity in sensitivities(Findings(results=load_study(searched)))
    }
    results = load_study(searched)
    for algorithm, sensitivity in by_algorithm.items():
        objectives = [
            t.objective for t in results.searched if t.algorithm == algorithm and t.status == "finished" and t.feasible
        ]
        assert sensitivity.complete == len(objectives)
        assert (sensitivity.best, sensitivity.median, sensitivity.worst) == pytest.approx(
            (max(objectives), np.median(objectives), np.quantile(objectives, 0.25))
        )
    assert by_algorithm["Flash"].trials == 14
    assert by_algorithm["Flash"].diverged == pytest.approx(1 / 14)
    cells = sensitivity_cells(tuple(by_algorithm.values()), "valid/accuracy")
    assert cells.rows[2][:4] == ("FedAvg", "13", "11", "8")
    assert cells.rows[0][7].startswith("lr ")


def test_the_worst_quarter_of_a_loss_is_the_high_one(tmp_path, write_study, trial):
    values = [(float(value), {}) for value in (1, 2, 3, 4, 5)]
    results = study(tmp_path, write_study, trial, values, {}, objective={"metric": "valid/loss", "mode": "min"})
    (sensitivity,) = sensitivities(results)
    assert (sensitivity.best, sensitivity.median, sensitivity.worst) == (1, 3, 4)


def test_the_hyper_parameter_that_decides_is_the_important_one(searched):
    ranked = sensitivities(Findings(results=load_study(searched)))
    for sensitivity in ranked:
        assert next(iter(sensitivity.importances)) == "algorithm.lr"
        assert sum(sensitivity.importances.values()) == pytest.approx(1)
        assert sensitivity.note is None
    assert set(ranked[2].importances) == {"algorithm.lr", "algorithm.momentum"}
    assert set(ranked[0].importances) == {"algorithm.lr", "algorithm.tau"}
    cells = importance_cells(ranked)
    assert "PED-ANOVA" in cells.title
    assert sum(float(row[2]) for row in cells.rows if row[0] == "Flash") == pytest.approx(100, abs=1)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_importances_of_a_known_function(tmp_path, write_study, trial, mode):
    rng = np.random.default_rng(1)
    sign = 1 if mode == "max" else -1
    values = []
    for _ in range(60):
        x, y, z = 10 ** rng.uniform(-3, 0), rng.uniform(0, 1), int(rng.integers(1, 9))
        chosen = {"algorithm.x": x, "algorithm.y": y, "algorithm.z": z, "algorithm.c": str(rng.choice(["a", "b"]))}
        values.append((sign * -((np.log10(x) + 1) ** 2) + 0.05 * y, chosen))
    search = {
        "algorithm.x": {"loguniform": [1e-3, 1]},
        "algorithm.y": {"uniform": [0, 1]},
        "algorithm.z": {"randint": [1, 9]},
        "algorithm.c": {"choice": ["a", "b"]},
    }
    results = study(tmp_path, write_study, trial, values, search, objective={"metric": "valid/loss", "mode": mode})
    (sensitivity,) = sensitivities(results)
    assert set(sensitivity.importances) == set(search)
    assert sensitivity.importances["algorithm.x"] > 0.5


def test_few_trials_or_keys_have_no_importances_and_a_reason(tmp_path, write_study, trial):
    search = {"algorithm.x": {"uniform": [0, 1]}}
    few = study(tmp_path, write_study, trial, [(0.1 * i, {"algorithm.x": 0.1 * i}) for i in range(5)], search)
    (sensitivity,) = sensitivities(few)
    assert sensitivity.importances == {}
    assert sensitivity.note == "A: importances need 8 trials that did all rounds, and it has 5."
    many = study(tmp_path / "b", write_study, trial, [(0.1 * i, {"algorithm.x": 0.1 * i}) for i in range(9)], search)
    (sensitivity,) = sensitivities(many)
    assert sensitivity.note == "A: importances compare hyper-parameters, and only 1 varied."
    assert importance_cells((sensitivity,)) is None


def test_values_have_a_place_in_their_domain(tmp_path, write_study):
    search = {
        "algorithm": {"choice": ["A", "B"]},
        "a": {"loguniform": ["1e-4", "1"]},
        "b": {"quniform": [0, 1, 0.3]},
        "c": {"randint": [2, 5]},
        "d": {"choice": [[1, 2], "x", None]},
    }
    domains = searched_domains(load_study(write_study(tmp_path / "s", [], study={"search": search})))
    assert list(domains) == ["a", "b", "c", "d"]
    assert place_in(domains["a"], 0.01) == pytest.approx(0.5)
    assert place_in(domains["b"], 0.9) == 1  # its grid ends there
    assert [place_in(domains["c"], value) for value in (2, 3, 4)] == [0, 0.5, 1]  # 5 is excluded
    assert np.isnan(place_in(domains["c"], 5))
    assert place_in(domains["d"], [1, 2]) == 0
    assert place_in(domains["d"], None) == 1
    assert np.isnan(place_in(domains["a"], 2.0))


@pytest.mark.parametrize("whole", [3, 4])
def test_an_algorithm_with_few_full_trials_is_said_to_have_too_few(tmp_path, write_study, trial, whole):
    """A median and a quarter of three trials are no finding."""
    trials = [trial(str(place), "A", 0.5 + place / 10) for place in range(whole)]
    trials += [trial(str(whole + place), "A", 0.9, status="pruned", rounds=3) for place in range(5)]
    (sensitivity,) = sensitivities(Findings(results=load_study(write_study(tmp_path / "s", trials))))
    (row,) = sensitivity_cells([sensitivity], "valid/accuracy").rows
    enough = whole >= 4
    assert row[1:3] == (str(whole + 5), str(whole))
    assert (row[5:7] == ("–", "–")) is not enough
    assert (row[7] == "not enough full trials") is not enough
    assert np.isnan([sensitivity.median, sensitivity.worst]).any() != enough
