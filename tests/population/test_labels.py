"""Partitions by label for groups of devices."""

import re

import numpy as np
import pytest

from flstudy.population import Digits, Distinct, Half, LabelGroups, PartialOverlap, TwoShard
from flstudy.population.partition import NOBODY

from ..worlds import world

RNG = np.random.default_rng
LABELS = RNG(3).permutation(np.repeat(np.arange(10), np.arange(60, 160, 10)))


def held(owner, clients):
    """The labels of each device."""
    return [sorted(set(LABELS[owner == k].tolist())) for k in range(clients)]


@pytest.mark.parametrize(
    ("overlap", "first", "second"),
    [
        (0.0, range(5), range(5, 10)),
        (0.2, range(5), range(4, 9)),  # label 9 is nobody's: G = 5, O = 1
        (1 / 3, range(6), range(4, 10)),
        (0.8, range(8), range(2, 10)),
        (0.9, range(9), range(1, 10)),
    ],
)
def test_sets_overlap_as_asked(overlap, first, second):
    assert LabelGroups(overlap=overlap).sets(10) == [first, second]
    owner = LabelGroups(overlap=overlap, alpha=None).assign(LABELS, 8, RNG(0))
    for group, labels in ((owner[(owner >= 0) & (owner < 4)], first), (owner[owner >= 4], second)):
        assert len(group) > 0
        rows = np.isin(owner, np.unique(group))
        assert set(LABELS[rows].tolist()) == set(labels)
    common = np.intersect1d(first, second)
    for label in common:  # shared equally
        count = [np.count_nonzero((label == LABELS) & np.isin(owner, part)) for part in (range(4), range(4, 8))]
        assert abs(count[0] - count[1]) <= 1
    reached = set(first) | set(second)
    assert set(LABELS[owner == NOBODY].tolist()) == set(range(10)) - reached


def test_inside_a_group_devices_have_equally_many_examples_by_dirichlet():
    owner = LabelGroups(alpha=0.1).assign(LABELS, 8, RNG(0))
    for group, low in ((range(4), 0), (range(4, 8), 5)):
        sizes = np.bincount(owner, minlength=8)[list(group)]
        assert sizes.max() - sizes.min() <= 1
        assert set(LABELS[np.isin(owner, group)].tolist()) == set(range(low, low + 5))
    assert min(len(labels) for labels in held(owner, 8)) < 5  # α = .1: not everybody has all


def test_half_partial_overlap_two_shard_and_distinct():
    assert held(Half().assign(LABELS, 4, RNG(0)), 4) == [[0, 1, 2, 3, 4]] * 2 + [[5, 6, 7, 8, 9]] * 2
    assert held(PartialOverlap().assign(LABELS, 4, RNG(0)), 4) == [list(range(6))] * 2 + [list(range(4, 10))] * 2
    assert held(Distinct().assign(LABELS, 5, RNG(0)), 5) == [[2 * k, 2 * k + 1] for k in range(5)]
    even = Half().assign(LABELS, 4, RNG(0))
    for label in range(5):
        counts = np.bincount(even[label == LABELS], minlength=4)[:2]
        assert abs(counts[0] - counts[1]) <= 1


def test_two_shards_of_two_labels_are_with_two_devices_at_random():
    shared = []
    for seed in range(100):
        two = TwoShard().assign(LABELS, 10, RNG(seed))
        assert all(len(labels) == 2 for labels in held(two, 10))
        for k in range(10):
            shards = np.bincount(two[k == LABELS], minlength=10)
            assert np.count_nonzero(shards) == 2
            assert shards.max() - shards[shards > 0].min() <= 1
        first, second = ({*np.unique(LABELS[np.isin(two, group)])} for group in (range(5), range(5, 10)))
        shared.append(len(first & second))
    assert np.mean(shared) == pytest.approx(50 / 9, abs=0.3)  # two devices of ten are in different groups
    assert len({tuple(TwoShard().assign(LABELS, 10, RNG(seed))) for seed in range(9)}) == 9


def test_bad_input():
    for make, sentence in (
        (lambda: LabelGroups(overlap=1.0), "overlap must lie in [0, 1), got 1.0"),
        (lambda: LabelGroups(alpha=0.0), "alpha must lie in (0, 1e12], got 0.0"),
        (lambda: LabelGroups(groups=1), "groups must lie in [2, 1e4], got 1"),
        (lambda: LabelGroups(groups=12).sets(10), "leaves a session without labels of its own: 10 labels are too few"),
        (lambda: LabelGroups().assign(LABELS, 1, RNG(0)), "2 groups need as many clients, got 1"),
        (lambda: TwoShard().assign(LABELS, 4, RNG(0)), "clients must divide the number of labels (10), got 4"),
        (
            lambda: TwoShard().assign(LABELS, 1, RNG(0)),
            "clients must be 2 or more, since a batch has two devices",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            make()


def test_examples_that_are_nobody_s_are_left_out():
    population = world(dataset=Digits(), clients=8, participants=8, partition=LabelGroups(overlap=0.2)).settle((0,))
    rows = np.concatenate([part for device in population.members[0] for part in device.values()])
    assert len(np.unique(rows)) == len(rows) == int((population.store.y < 9).sum())
