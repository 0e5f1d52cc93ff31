"""Who speaks for an algorithm when trials were trained again on new seeds, and who never leads."""

import numpy as np
import pytest

from flstudy.reporting import write_report
from flstudy.reporting.ranking import rank
from flstudy.study import load_study
from flstudy.study.results import list_studies

NEW = [[0.70] * 10, [0.71] * 10, [0.72] * 10, [0.73] * 10, [0.74] * 10]


def chosen(folder):
    return [(best.trial.number, best.confirmation and best.confirmation.number) for best in load_study(folder).best]


@pytest.mark.slow
def test_the_best_confirmation_speaks_not_the_best_of_the_search(tmp_path, write_study, confirmed):
    trials = confirmed([0.90, 0.89, 0.80], [0.70, 0.72, 0.79])
    curves = {str(i): [[0.5] * 10] * 2 for i in range(3)} | {str(i): NEW for i in (3, 4, 5)}
    folder = write_study(tmp_path / "s" / "one", trials, curves=curves)
    assert chosen(folder) == [(2, 5), (1, 4)]  # on the search's seeds A would lead with trial 0
    first, second = rank(load_study(folder)).rows
    assert second.gap == pytest.approx(0.17)
    assert first.gap == pytest.approx(0.01)
    np.testing.assert_allclose(first.final, [0.70, 0.71, 0.72, 0.73, 0.74])  # of the new seeds
    cells = write_report(folder).tables[0]
    assert cells.header[3:6] == ("Chosen\non %", "New\nseeds %", "Gap")
    assert cells.rows[1][3:6] == ("89.0", "72.0", "+17.0")
    assert cells.rows[0][-1] == "72.0 ± 1.6"
    # The lists say the same: confirmations are no trials of the search.
    (entry,) = list_studies(tmp_path / "s")
    assert entry["counts"] == {"finished": 3}
    assert entry["best"] == {"trial": 2, "algorithm": "B", "value": 0.79}
    assert load_study(folder).find("best").number == 2


def test_the_gap_of_a_loss_is_what_the_search_promised_below(tmp_path, write_study, trial, confirmation):
    folder = write_study(
        tmp_path / "s",
        [trial("0", "A", 0.30), confirmation("1", "0", "A", 0.36)],
        curves={"0": [[0.5] * 10] * 2, "1": NEW},
        study={"objective": {"metric": "valid/loss", "mode": "min"}},
    )
    (row,) = rank(load_study(folder)).rows
    assert row.gap == pytest.approx(0.06)


def test_a_confirmation_that_did_not_end_well_does_not_speak(tmp_path, write_study, trial, confirmation):
    trials = [
        trial("0", "A", 0.9),
        trial("1", "A", 0.8),
        confirmation("2", "0", "A", None, status="diverged", rounds=4),
        confirmation("3", "1", "A", 0.6),
        trial("4", "B", 0.7),
        confirmation("5", "4", "B", None, status="failed", rounds=0),
    ]
    folder = write_study(tmp_path / "s", trials, curves={"3": NEW, "4": [[0.5] * 10] * 2})
    assert chosen(folder) == [(4, None), (1, 3)]
    notes = rank(load_study(folder)).notes
    assert notes[0].startswith("Not confirmed on new seeds: B.")
    assert "3 confirmations on 5 new seeds: 1 finished, 1 diverged, 1 failed." in notes
    assert "3 trials: 3 finished." in notes


def test_what_is_outside_the_constraints_never_leads(tmp_path, write_study, trial, confirmation):
    trials = [
        trial("0", "A", 0.95, feasible=False),
        trial("1", "A", 0.50),
        trial("2", "B", 0.99, feasible=False),
        trial("3", "C", 0.60),
        trial("4", "C", 0.55),
        confirmation("5", "3", "C", 0.90, feasible=False),
        confirmation("6", "4", "C", 0.54),
    ]
    folder = write_study(tmp_path / "s", trials, curves={"1": [[0.5] * 10] * 2, "6": NEW})
    assert chosen(folder) == [(4, 6), (1, None)]
    assert (
        "No trial of B did all 10 rounds with a finite result within the constraints (1 finished; 1 outside "
        "study.constraints)." in rank(load_study(folder)).notes
    )


def test_a_confirmation_of_a_study_that_searched_on_a_test_score_is_judged_on_validation(
    tmp_path, write_study, trial, confirmation
):
    def metrics(valid):
        return {"metrics": {"valid/accuracy": valid}}

    trials = [
        trial("0", "A", 0.9, **metrics(0.8)),
        trial("1", "A", 0.8, **metrics(0.7)),
        confirmation("2", "0", "A", 0.99, **metrics(0.5)),
        confirmation("3", "1", "A", 0.1, **metrics(0.6)),
    ]
    folder = write_study(
        tmp_path / "s",
        trials,
        curves={"2": NEW, "3": NEW},
        study={"objective": {"metric": "test/accuracy", "mode": "max"}},
    )
    assert chosen(folder) == [(1, 3)]
