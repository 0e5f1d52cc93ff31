"""Drifts at given rounds, to all devices, with concepts that come back or do not."""

import re

import numpy as np
import pytest

from flstudy.population import Event, LabelSwap, RepeatedDrift

from ..worlds import CLASSES, world

PAIRS = [(0, 1), (2, 3)]


def test_the_paper_s_class_swap_undoes_itself_at_every_other_drift():
    drift = RepeatedDrift(change=LabelSwap(pairs=[(0, 1), (2, 3), (4, 5)]))
    assert drift.rounds == [65, 187, 233, 367, 411, 489]
    concepts = [int(drift.concept(0, number, 3)[0]) for number in (1, 64, 65, 186, 187, 233, 367, 411, 489, 500)]
    assert concepts == [0, 0, 1, 1, 0, 1, 0, 1, 0, 0]
    assert drift.tables((54,), 7).labels.tolist() == [[0, 1, 2, 3, 4, 5, 6], [1, 0, 3, 2, 5, 4, 6]]
    assert drift.events()[:2] == [Event(65, "drift to concept 1"), Event(187, "drift to concept 0")]
    drift.check(20, 500)
    with pytest.raises(ValueError, match=re.escape("population.drift.rounds must be ≤ rounds (400), got 489")):
        drift.check(20, 400)


def test_concepts_that_never_come_back():
    population = world(drift=RepeatedDrift(rounds=[3, 4, 6], cycle=None)).settle((0, 1))
    assert population.count_concepts() == 4 == CLASSES
    assert [population.concepts(index + 1).unique().tolist() for index in range(7)] == [
        [0],
        [0],
        [1],
        [2],
        [2],
        [3],
        [3],
    ]
    table = population.store.table.numpy()
    assert (np.sort(table, 1) == np.arange(CLASSES)).all()
    assert len({tuple(line) for line in table.tolist()}) == 4
    assert [event.round for event in population.drifts(5)] == [3, 4]


def test_no_more_concepts_than_drifts_reach():
    assert RepeatedDrift(rounds=[5], cycle=4).concepts == 2
    assert RepeatedDrift(rounds=[5, 6, 7, 8], cycle=3).concept(0, 8, 2).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": []}, "rounds must be one or more rising numbers, got []"),
        ({"rounds": [1, 5]}, "rounds must lie in [2, 1e6], got [1, 5]"),
        ({"rounds": [5, 5]}, "rounds must be one or more rising numbers, got [5, 5]"),
        ({"rounds": [5], "cycle": 1}, "cycle must lie in [2, 1e6], got 1"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=re.escape(f"RepeatedDrift: {message}")):
        RepeatedDrift(**values)
