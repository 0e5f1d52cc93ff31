"""Who speaks for an algorithm, and the hand-computed drift numbers of its row."""

import io

import numpy as np
import pytest
from rich.console import Console

from flstudy.metrics.registry import judged_by
from flstudy.reporting.ranking import rank
from flstudy.reporting.sections.ranking import footnotes, models_cells, result_cells, session_cells
from flstudy.study import load_study


def rows(folder):
    return [(row.trial.algorithm, row.trial.number) for row in rank(load_study(folder)).rows]


def test_numbers_of_the_drift(drifting):
    flash, fedavg = rank(load_study(drifting)).rows
    np.testing.assert_allclose(flash.before, [0.90, 0.92])
    np.testing.assert_allclose(flash.dip, [0.50, 0.60])
    np.testing.assert_allclose(flash.final, [0.88, 0.90])
    # Trailing means of three: 0.50, 0.69, 0.753, 0.88, ...: from round 8 on within 0.02 of the 0.90 before the drift.
    np.testing.assert_array_equal(flash.recovery, [3, 3])
    np.testing.assert_allclose(fedavg.dip, [0.20, 0.40])


def test_recovery_per_seed(tmp_path, write_study, trial):
    steady = [0.9] * 4 + [0.3] * 2 + [0.8] * 14  # trailing mean of three within 0.02 of 0.8 from round 9: 9 - 5
    climbing = [0.9] * 4 + list(np.linspace(0.1, 0.8, 16))
    folder = write_study(
        tmp_path / "s", [trial("0", rounds=20)], curves={"0": [steady, climbing]}, events=[(5, "drift")], rounds=20
    )
    (row,) = rank(load_study(folder)).rows
    np.testing.assert_array_equal(row.recovery, [4, np.nan])


def test_only_trials_that_did_all_rounds_with_a_finite_value_count(drifting):
    assert rows(drifting) == [("Flash", 2), ("FedAvg", 0)]  # not the pruned trial 1 with its 0.95
    notes = rank(load_study(drifting)).notes
    assert notes == (
        "6 trials: 3 finished, 1 pruned, 1 diverged, 1 failed.",
        "No trial of FedYogi did all 10 rounds with a finite result (1 diverged, 1 failed).",
        "Trial 5 (FedYogi) failed: RuntimeError: out of memory",
    )


def test_a_loss_is_minimised(tmp_path, write_study, trial):
    trials = [trial("0", "A", 0.3), trial("1", "A", 0.2), trial("2", "B", 0.1), trial("3", "B", float("nan"))]
    curve = [[0.5] * 10] * 2
    folder = write_study(
        tmp_path / "s",
        trials,
        curves={str(i): curve for i in range(4)},
        study={"objective": {"metric": "valid/loss", "mode": "min"}},
    )
    assert rows(folder) == [("B", 2), ("A", 1)]


def test_a_test_score_never_chooses(tmp_path, write_study, trial):
    trials = [
        trial("0", "A", 0.9, metrics={"valid/accuracy": 0.6, "test/accuracy": 0.9}),
        trial("1", "A", 0.7, metrics={"valid/accuracy": 0.8, "test/accuracy": 0.7}),
        trial("2", "A", 0.99, metrics={"valid/accuracy": None, "test/accuracy": 0.99}),  # it was NaN
    ]
    folder = write_study(
        tmp_path / "s",
        trials,
        curves={"0": [[0.9] * 10] * 2, "1": [[0.7] * 10] * 2},
        study={"objective": {"metric": "test/accuracy", "mode": "max"}},
    )
    ranking = rank(load_study(folder))
    assert ranking.rows[0].trial.number == 1
    assert ranking.selection_metric == "valid/accuracy"
    assert "chosen by valid/accuracy, never by a test score" in ranking.notes[0]


def test_the_first_of_equal_trials_stays(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0"), trial("1")], curves={n: [[0.5] * 10] * 2 for n in "01"})
    assert rows(folder) == [("FedAvg", 0)]


def test_several_drifts_before_the_first_dip_of_all_recovery_after_the_last(tmp_path, write_study, trial):
    curve = [0.9] * 6 + [0.4] + [0.8] * 9 + [0.6] + [0.7] * 11
    folder = write_study(
        tmp_path / "s",
        [trial("0", rounds=28)],
        curves={"0": [curve]},
        events=[(17, "back"), (7, "there"), (99, "after the end")],
        rounds=28,
        seeds=[3],
    )
    (row,) = rank(load_study(folder)).rows
    assert [(drift.round, drift.label) for drift in row.drifts] == [(7, "there"), (17, "back")]
    assert [drift.before.item() for drift in row.drifts] == pytest.approx([0.9, 0.8])
    assert [drift.dip.item() for drift in row.drifts] == pytest.approx([0.4, 0.6])
    # trailing means 0.6, 0.65, 0.667, 0.7: within 0.02 of 0.7 only from round 20 on.
    assert (row.before.item(), row.dip.item(), row.recovery.item()) == pytest.approx((0.9, 0.4, 3))


def test_a_drift_nothing_was_evaluated_before_leaves_that_open(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0")], curves={"0": [[0.5] * 10] * 2}, events=[(1, "drift")])
    (row,) = rank(load_study(folder)).rows
    assert np.isnan(row.before).all()
    np.testing.assert_allclose(row.dip, 0.5)


def test_validation_curves_where_test_is_not_recorded_by_round(tmp_path, write_study, trial):
    both = {"valid/accuracy": [[0.6] * 10] * 2, "test/accuracy": [[0.5] * 10] * 2}
    only = {"valid/accuracy": [[0.7] * 10] * 2}
    trials = [trial("0", "A"), trial("1", "B")]
    ranking = rank(load_study(write_study(tmp_path / "s", trials, curves={"0": both, "1": only})))
    assert ranking.accuracy_metric == "valid/accuracy"
    assert [row.final[0] for row in ranking.rows] == [0.6, 0.7]


def test_lost_records_cost_only_their_own_row_its_numbers(tmp_path, write_study, trial):
    trials = [trial("0", "A", 0.9), trial("1", "B", 0.8)]
    folder = write_study(tmp_path / "s", trials, curves={"1": [[0.5] * 10] * 2}, events=[(5, "drift")])
    ranking = rank(load_study(folder))
    assert [row.trial.algorithm for row in ranking.rows] == ["A", "B"]
    assert np.isnan(ranking.rows[0].final).all()
    assert np.isnan(ranking.rows[0].dip).all()
    assert ranking.notes[0].startswith("A: no records at ")


def test_sessions_are_no_drifts_and_have_a_table(tmp_path, trial, write_study):
    levels = np.array([[0.9] * 12 + [0.1] * 10 + [0.8] * 2 + [0.3, 0.5, 0.4]])
    events = [(13, "session 2"), (20, "drift"), (25, "session 3")]
    folder = write_study(
        tmp_path / "s", [trial("0", rounds=27)], curves={"0": levels}, events=events, rounds=27, seeds=[0]
    )
    ranking = rank(load_study(folder))
    assert [drift.round for drift in ranking.rows[0].drifts] == [20]
    assert ranking.sessions == ((13, 24), (25, 27))
    cells = session_cells(ranking)
    assert cells.header == ("Algorithm", "Mean", "S2", "S3")
    assert cells.rows == (("FedAvg", "25.0", "10.0", "40.0"),)
    alone = write_study(tmp_path / "t", [trial("0")], curves={"0": levels[:, :10]}, seeds=[0])
    assert session_cells(rank(load_study(alone))) is None


def test_what_privacy_a_run_spent_stands_beside_its_accuracy(tmp_path, write_study, trial):
    spent = [{"privacy/epsilon": 3.25}, {"privacy/epsilon": 13.1}, {}]
    names = ("FedAda2", "FedAvg", "LocalOnly")
    trials = [trial(str(k), name, 0.9 - k / 10, metrics=spent[k]) for k, name in enumerate(names)]
    curves = {str(k): np.full((2, 10), 0.5) for k in range(3)}
    ranking = rank(load_study(write_study(tmp_path / "s", trials, curves=curves)))
    assert [row.epsilon for row in ranking.rows[:2]] == [3.25, 13.1]
    cells = result_cells(ranking, "s")
    assert cells.header[-2:] == ("ε", "Final\ntest %")
    assert [row[-2:] for row in cells.rows] == [("3.25", "50.0 ± 0.0"), ("13.1", "50.0 ± 0.0"), ("–", "50.0 ± 0.0")]
    assert all(column == len(cells.header) - 1 for _, column in cells.best)


def judged(folder, write_study, trial, **deployed):
    """A study of algorithms whose devices use these models: .8 by these, .5 by the server's, of which one dips."""
    used, server = [[0.8] * 10] * 2, [[0.5] * 6 + [0.4] * 4] * 2
    trials = [trial(str(n), name, 0.8, deployed=kind) for n, (name, kind) in enumerate(deployed.items())]
    curves = {
        str(n): {"test/accuracy": used, "test/global_accuracy": server if kind == "own" else used}
        for n, kind in enumerate(deployed.values())
    }
    return lambda metric: load_study(
        write_study(folder / metric, trials, curves=curves, study={"objective": {"metric": metric, "mode": "max"}})
    )


def test_a_ranking_says_by_which_model_each_method_was_judged(tmp_path, write_study, trial):
    study = judged(tmp_path, write_study, trial, Ditto="own", FedAvg="global", HypCluster="chosen", Old=None)
    ranking = rank(study("valid/accuracy"))
    cells = models_cells(ranking)
    assert cells is not None
    assert cells.rows == (
        ("Ditto", "each device's own model", "80.0 ± 0.0", "40.0 ± 0.0"),
        ("FedAvg", "the server's model", "80.0 ± 0.0", "80.0 ± 0.0"),
        ("HypCluster", "the server's model that a device chooses", "80.0 ± 0.0", "80.0 ± 0.0"),
        ("Old", "–", "80.0 ± 0.0", "80.0 ± 0.0"),
    )
    lines = Console(width=80, file=io.StringIO(), record=True)
    lines.print(cells)
    assert max(map(len, lines.export_text().splitlines())) <= 80


def test_a_study_of_the_servers_models_is_ranked_and_drawn_by_them(tmp_path, write_study, trial):
    study = judged(tmp_path, write_study, trial, Ditto="own", FedAvg="global")
    ranking = rank(study("valid/global_accuracy"))
    assert ranking.accuracy_metric == "test/global_accuracy"
    assert ranking.shown == "test accuracy of the server's model"
    np.testing.assert_allclose(ranking.rows[0].final, 0.4)
    assert models_cells(ranking) is None
    assert "Every algorithm is judged by the server's model." in footnotes(ranking, 2)


@pytest.mark.parametrize(
    ("deployed", "metric", "words"),
    [
        ("own", "valid/accuracy", "each device's own model"),
        ("own", "valid/global_dip", "the server's model"),
        ("chosen", "test/global_loss", "the server's model that a device chooses"),
        ("own", "auc", "each device's own model"),
        ("own", "train/loss", ""),
        ("global", "traffic/bits", ""),
        ("global", "test/personal_accuracy", ""),
        (None, "valid/accuracy", ""),
    ],
)
def test_a_metric_says_of_which_models_it_is(deployed, metric, words):
    assert judged_by(deployed, metric) == words
