"""Changes: what a concept does to labels and inputs, as a lookup while batches are gathered."""

import math

import numpy as np
import pytest
import torch

from flstudy.population import (
    ComposedSwaps,
    FeatureShift,
    InMemory,
    LabelSwap,
    RepeatedDrift,
    Rotation,
    ScheduledDrift,
    SuddenDrift,
)
from flstudy.population.population import ExampleStore

from ..worlds import CLASSES, DEVICES, examples, world

SHAPE = (2, 3, 3)
IMAGES = torch.arange(4 * 18, dtype=torch.float64).view(4, *SHAPE)


def stack(change, concepts=3, x=IMAGES, classes=5):
    return ExampleStore(x, torch.arange(len(x)), *change.tables(concepts, x.shape[1:], classes))


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_every_concept_swaps_labels_in_pairs_and_differs_from_the_others(classes):
    table = LabelSwap().labels(classes, classes)
    assert len(np.unique(table, axis=0)) == classes
    for line in table:
        assert sorted(line) == list(range(classes))
        assert np.array_equal(line[line], np.arange(classes))  # a swap undoes itself
    with pytest.raises(ValueError, match=rf"{classes} labels allow {classes - 1} new concepts, but the drift has"):
        LabelSwap().labels(classes + 1, classes)


def test_the_last_label_of_an_odd_number_stays():
    assert LabelSwap().labels(2, 5)[1].tolist() == [1, 0, 3, 2, 4]
    assert LabelSwap().labels(3, 9)[2].tolist() == [2, 3, 0, 1, 6, 7, 4, 5, 8]
    assert LabelSwap(pairs=[(4, 1)]).labels(2, 5)[1].tolist() == [0, 4, 2, 3, 1]


def test_composed_swaps_by_hand():
    """Each line is the one above it, whose labels in that drift's pairs have changed names."""
    assert ComposedSwaps().labels(6, 7).tolist() == [
        [0, 1, 2, 3, 4, 5, 6],
        [1, 0, 3, 2, 5, 4, 6],  # (0, 1), (2, 3), (4, 5): the paper's
        [2, 0, 4, 1, 6, 3, 5],  # (1, 2), (3, 4), (5, 6)
        [3, 1, 5, 0, 6, 2, 4],  # (0, 1), (2, 3), (4, 5) again
        [4, 2, 6, 0, 5, 1, 3],
        [5, 3, 6, 1, 4, 0, 2],
    ]
    assert ComposedSwaps(sets=[[(0, 1), (2, 3)], [(0, 2)]]).labels(4, 4).tolist() == [
        [0, 1, 2, 3],
        [1, 0, 3, 2],
        [1, 2, 3, 0],
        [0, 3, 2, 1],
    ]


@pytest.mark.parametrize("classes", [3, 4, 7, 10])
def test_composed_swaps_never_come_back_before_twice_the_labels(classes):
    table = ComposedSwaps().labels(2 * classes, classes)
    assert (np.sort(table, 1) == np.arange(classes)).all()
    assert len(np.unique(table, axis=0)) == 2 * classes
    with pytest.raises(ValueError, match=rf"drift {2 * classes} would bring concept 0 back: name other sets"):
        ComposedSwaps().labels(2 * classes + 1, classes)


def test_repeated_drifts_compose():
    swaps = ComposedSwaps(sets=[[(0, 1), (2, 3)], [(0, 2)]])
    population = world(drift=RepeatedDrift(rounds=[2, 4], cycle=None, change=swaps)).settle((0,))
    x, y = population.store.gather(torch.arange(120)[:, None], population.concepts(5)[0, :1].expand(120))
    assert y.squeeze(1).tolist() == [[1, 2, 3, 0][label] for label in population.store.y.tolist()]
    assert torch.equal(x.squeeze(1), population.store.x)


def test_a_shift_has_the_given_size_and_is_the_same_for_everybody():
    tables = FeatureShift(size=0.7).tables(3, SHAPE, 5)
    assert tables.labels.numel() == tables.order.numel() == 0
    assert tables.shift.shape == (3, *SHAPE)
    assert tables.shift[0].abs().max() == 0
    for vector in tables.shift[1:]:
        assert float(vector.square().mean().sqrt()) == pytest.approx(0.7, rel=1e-5)
    assert not torch.equal(tables.shift[1], tables.shift[2])
    assert torch.equal(tables.shift, FeatureShift(size=0.7).tables(3, SHAPE, 5).shift)
    assert torch.equal(tables.shift[:2], FeatureShift(size=0.7).tables(2, SHAPE, 5).shift)
    assert not torch.equal(tables.shift, FeatureShift(size=0.7, seed=1).tables(3, SHAPE, 5).shift)
    shift = FeatureShift(by_feature=[1.0, -2.0]).tables(3, (2,), 5).shift
    assert shift.tolist() == [[0, 0], [1, -2], [2, -4]]


def test_a_rotation_is_numpy_s():
    order = Rotation().order(4, SHAPE)
    for turns, line in zip((0, 2, 1, 3), order, strict=True):
        turned = np.rot90(IMAGES.numpy(), turns, axes=(2, 3))
        assert np.array_equal(IMAGES.flatten(1).numpy()[:, line].reshape(4, *SHAPE), turned)


@pytest.mark.parametrize("change", [FeatureShift(), Rotation(), LabelSwap()], ids=lambda change: type(change).__name__)
def test_gathering_is_the_same_for_many_devices_for_one_and_mapped(change):
    held = stack(change)
    rows, concept = torch.tensor([[0, 3], [2, -1], [1, 1]]), torch.tensor([0, 1, 2])
    together = held.gather(rows, concept)
    alone = [held.gather(line, device_concept) for line, device_concept in zip(rows, concept, strict=True)]
    mapped = torch.vmap(held.gather)(rows, concept)
    one_each = held.gather(rows.view(6, 1), concept.repeat_interleave(2))  # as evaluation does
    for part in range(2):
        assert torch.equal(together[part], torch.stack([pair[part] for pair in alone]))
        assert torch.equal(together[part], mapped[part])
        assert torch.equal(together[part].flatten(0, 1), one_each[part].squeeze(1))
    assert torch.equal(together[0][0], IMAGES[[0, 3]])  # concept 0 is the data set's own
    changed = together[1] if isinstance(change, LabelSwap) else together[0]
    plain = torch.arange(4)[rows.clamp(min=0)] if isinstance(change, LabelSwap) else IMAGES[rows.clamp(min=0)]
    assert all(not torch.equal(changed[c], plain[c]) for c in (1, 2))
    assert together[0].dtype == IMAGES.dtype


def test_examples_are_not_copied():
    data = examples((1, 4, 4))
    for change in (Rotation(), FeatureShift(), LabelSwap()):
        population = world(dataset=data, drift=SuddenDrift(round=2, change=change)).settle((0, 44))
        assert population.store.x.data_ptr() == data.examples.x.data_ptr()
    plain = world(dataset=data).settle((0,)).store
    assert sum(part.numel() for part in plain[2:]) == 0


def test_a_schedule_with_more_concepts_gets_as_many():
    drift = ScheduledDrift(schedule={0: [(2, 1)], 1: [(2, 2), (4, 0)], 3: [(3, 3)]}, change=Rotation())
    population = world(dataset=examples((1, 4, 4)), drift=drift).settle((0,))
    assert population.store.order.shape == (4, 16)
    assert [population.concepts(index + 1).tolist()[0] for index in range(4)] == [
        [0] * DEVICES,
        [1, 2, 0, 0, 0, 0],
        [1, 2, 0, 3, 0, 0],
        [1, 0, 0, 3, 0, 0],
    ]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: LabelSwap(pairs=[(0, 1), (1, 2)]),
            r"pairs must name each label at most once, got \[\(0, 1\), \(1, 2\)\]",
        ),
        (lambda: LabelSwap(pairs=[(0, 1)]).labels(3, 4), "named pairs make one new concept, but the drift has 2"),
        (lambda: LabelSwap(pairs=[(0, 9)]).labels(2, 4), r"pairs must hold labels in 0 … 3, got \(0, 9\)"),
        (lambda: LabelSwap().labels(2, 0), "the data set must have at least 2 labels, got 0; use FeatureShift"),
        (
            lambda: ComposedSwaps(sets=[[(0, 1), (1, 2)]]),
            r"must hold pairs that name a label at most once, got \[\(0, 1\)",
        ),
        (lambda: ComposedSwaps(sets=[]), "sets must hold one or more lists of pairs, got none"),
        (lambda: ComposedSwaps(sets=[[(0, 9)]]).labels(2, 4), r"sets must hold labels in 0 … 3, got \(0, 9\)"),
        (lambda: ComposedSwaps(sets=[[(0, 1)]]).labels(3, 4), "drift 2 would bring concept 0 back"),
        (lambda: ComposedSwaps().labels(2, 0), "must have at least 2 labels, got 0; use FeatureShift"),
        (lambda: RepeatedDrift(change=ComposedSwaps()), "never come back: cycle must be null, got 2"),
        (lambda: FeatureShift(size=-1.0), r"FeatureShift: size must lie in \[0, 1e12\], got -1\.0"),
        (lambda: FeatureShift(size=math.nan), r"size must lie in \[0, 1e12\], got nan"),
        (lambda: FeatureShift(seed=-1), r"seed must lie in \[0, 2e9\], got -1"),
        (lambda: FeatureShift(by_feature=[1.0]).shift(2, (3,)), "one number for each of 3 features, got 1"),
        (lambda: FeatureShift(by_feature=[math.inf]), "by_feature must lie in"),
        (lambda: Rotation(quarters=[1, 1]), r"quarters must be one or more different numbers, got \[1, 1\]"),
        (lambda: Rotation(quarters=[4]), r"quarters must lie in \[1, 3\], got \[4\]"),
        (
            lambda: Rotation(quarters=[1]).order(3, SHAPE),
            r"quarters must name 2 turns, one for each new concept, got \[1\]",
        ),
        (lambda: Rotation().order(2, (12,)), r"must be square images \(\.\.\., height, width\), got shape \(12,\)"),
        (lambda: Rotation().order(2, (1, 4, 5)), r"got shape \(1, 4, 5\)"),
    ],
)
def test_what_does_not_suit_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_tokens_cannot_shift():
    tokens = InMemory((torch.arange(60).view(30, 2) % CLASSES, torch.arange(30) % CLASSES))
    drift = SuddenDrift(round=2, change=FeatureShift())
    with pytest.raises(ValueError, match=r"inputs are torch\.int64, which cannot shift; use LabelSwap"):
        world(dataset=tokens, partition=None, drift=drift).settle((0,))
