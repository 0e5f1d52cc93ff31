"""Drift schedules equal their plain transcription; labels are swapped by a table, never in the data."""

import numpy as np
import pytest
import torch

from flstudy.population import Event, IncrementalDrift, LabelSwap, RecurrentDrift, SuddenDrift
from flstudy.population.population import ExampleStore

from ..references import drift as reference
from ..worlds import drifting, world


def ranks(schedule, seed, devices):
    """The order in which devices change, read off an incremental drift of one device at a time."""
    slow = IncrementalDrift(round=2, every=1, step=1 / devices)
    return devices - sum(slow.concept(seed, 2 + i, devices) for i in range(devices))


@pytest.mark.parametrize("seed", [0, 44])
def test_schedules_equal_the_transcription(seed):
    devices = 30
    sudden, recurrent = SuddenDrift(round=50), RecurrentDrift(round=50, back=80)
    slow = IncrementalDrift(round=50, every=10, step=0.2)
    order = ranks(slow, seed, devices)
    assert sorted(order) == list(range(devices))
    for r in range(1, 120):
        assert np.array_equal(sudden.concept(seed, r, devices), reference.sudden(r, 50, devices))
        assert np.array_equal(recurrent.concept(seed, r, devices), reference.recurrent(r, 50, 80, devices))
        theirs = reference.incremental(r, 50, order, every=10, share=0.2)
        assert np.array_equal(slow.concept(seed, r, devices), theirs)


def test_p_drift_is_the_share_that_ever_drifts():
    for share, devices, count in ((0.0, 30, 0), (0.5, 30, 15), (0.5, 5, 3), (0.1, 30, 3), (1.0, 7, 7)):
        sudden = SuddenDrift(round=10, p_drift=share)
        assert sudden.concept(3, 9, devices).sum() == 0
        assert sudden.concept(3, 10, devices).sum() == count
        assert np.array_equal(sudden.concept(3, 10, devices), sudden.concept(3, 900, devices))  # a fixed set
    half = SuddenDrift(round=10, p_drift=0.5)
    assert not np.array_equal(half.concept(0, 10, 30), half.concept(1, 10, 30))
    slow = IncrementalDrift(round=10, p_drift=0.5, every=5, step=0.4)
    assert [slow.concept(0, r, 20).sum() for r in (9, 10, 14, 15, 20, 99)] == [0, 4, 4, 8, 10, 10]


@pytest.mark.parametrize("classes", [2, 5, 10, 47])
def test_labels_are_swapped_in_pairs(classes):
    table = LabelSwap().labels(2, classes)
    assert np.array_equal(table, np.stack([np.arange(classes), reference.swap_table(classes)]))


def test_pairs_can_be_named():
    assert SuddenDrift(round=2, change=LabelSwap(pairs=[(0, 3)])).tables((), 5).labels[1].tolist() == [3, 1, 2, 0, 4]
    with pytest.raises(ValueError, match=r"pairs must hold labels in 0 … 4, got \(0, 5\)"):
        SuddenDrift(round=2, change=LabelSwap(pairs=[(0, 5)])).tables((), 5)


def test_gathering_applies_the_concept_and_copies_nothing():
    y = torch.tensor([0, 1, 2, 3, 4])
    store = ExampleStore(torch.arange(5.0)[:, None], y, LabelSwap().tables(2, (1,), 5).labels)
    rows, concept = torch.tensor([[4, 0, 2], [4, 0, -1]]), torch.tensor([0, 1])
    x, labels = store.gather(rows, concept)
    assert labels.tolist() == [[4, 0, 2], [4, 1, 1]]  # padding reads row 0
    assert labels.tolist()[0] == reference.relabel(y.numpy()[[4, 0, 2]], 0, 5).tolist()
    assert x.squeeze(-1).tolist() == [[4, 0, 2], [4, 0, 0]]
    assert ExampleStore(store.x, y, torch.empty(0, 0)).gather(rows, concept)[1].tolist() == [[4, 0, 2], [4, 0, 0]]


def test_population_knows_concepts_and_events():
    population = drifting().settle((0, 44))
    assert population.concepts(1).sum() == 0
    assert population.concepts(2).sum(1).tolist() == [3, 3]  # half of six
    work = population.cohort(2)
    assert torch.equal(work.batches.concept, population.concepts(2).gather(1, work.jobs.client))
    assert population.events(9) == [Event(2, "sudden drift")]
    assert world().events(9) == []
    assert [event.round for event in IncrementalDrift(round=5, every=3, step=0.4).events()] == [5, 8, 11]
    assert [event.round for event in RecurrentDrift(round=5, back=9).events()] == [5, 9]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SuddenDrift(round=1), r"SuddenDrift: round must lie in \[2, 1e6\], got 1"),
        (lambda: SuddenDrift(round=5, p_drift=1.5), r"SuddenDrift: p_drift must lie in \[0, 1\], got 1\.5"),
        (lambda: SuddenDrift(round=5, p_drift=-0.1), r"p_drift must lie in \[0, 1\], got -0\.1"),
        (lambda: RecurrentDrift(round=5, back=5), r"RecurrentDrift: back must be > round \(5\), got 5"),
        (lambda: IncrementalDrift(round=5, every=0), r"IncrementalDrift: every must lie in \[1, 1e6\], got 0"),
        (lambda: IncrementalDrift(round=5, step=0.0), r"IncrementalDrift: step must lie in \(0, 1\], got 0\.0"),
        (lambda: IncrementalDrift(round=5, step=1.5), r"IncrementalDrift: step must lie in \(0, 1\], got 1\.5"),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
