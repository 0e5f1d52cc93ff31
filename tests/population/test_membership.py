"""Who owns what as arrays: made for those who are asked for or kept for all, by owners or by ranges, it is the same."""

import tracemalloc

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.population import ClassIntroduction, Dataset, Dirichlet, Examples, InMemory, membership
from flstudy.population.datasets.base import SPLITS, Ranges
from flstudy.population.population import drawn_devices, keys_of, lowest
from flstudy.population.streams import random_bits

SEEDS = (0, 44)


class Side(Dataset):
    """Devices of given numbers of examples by split, side by side; said by ranges or by owners."""

    shape, classes = (2,), 4

    def __init__(self, counts, *, by_range):
        self.counts, self.by_range = np.asarray(counts), by_range

    def load(self, seed, clients):
        sizes = self.counts.sum(1)
        x, y = torch.zeros(int(sizes.sum()), 2), torch.arange(int(sizes.sum())) % 4
        ranges = Ranges(sizes.cumsum() - sizes, self.counts)
        if self.by_range:
            return Examples(x, y, None, ranges=ranges)
        split = ranges.split(len(y))
        return Examples(
            x, y, torch.from_numpy(ranges.owner(len(y))), None if split is None else torch.from_numpy(split)
        )


def all_of(population, round=1):
    """Everything that a population says of a round."""
    data, cohort = population.device_data, population.cohort(round)
    held = [data.held(s, k, split, round) for s in range(2) for k in range(population.clients) for split in SPLITS]
    indices = [part for split in SPLITS for part in data.evaluation_index(split, round)]
    of_some = [data.examples_of(split, cohort.jobs.client, round) for split in SPLITS]
    return [*map(torch.from_numpy, held), *indices, *of_some, *cohort.jobs, *cohort.batches, cohort.sizes]


def same(tensors, other):
    return all(torch.equal(a, b) for a, b in zip(tensors, other, strict=True))


def pooled(**changes):
    rng = np.random.default_rng(1)
    dataset = InMemory((torch.zeros(400, 2), torch.from_numpy(rng.integers(0, 4, 400))))
    usual = {"clients": 7, "participants": 3, "partition": Dirichlet(alpha=0.5, min_size=9), "batch_size": 8}
    return Population(dataset, **{**usual, **changes}).settle(SEEDS)


@pytest.mark.parametrize("drift", [None, ClassIntroduction(rounds=[2, 3], groups=[[0, 1], [2], [3]])])
def test_what_is_made_for_those_asked_for_is_what_is_kept_for_all(monkeypatch, drift):
    cached = pooled(drift=drift)
    monkeypatch.setattr(membership, "KEPT", 0)
    monkeypatch.setattr(membership, "TOGETHER", 60)
    asked = pooled(drift=drift)
    for round in (1, 2, 3):
        assert same(all_of(cached, round), all_of(asked, round))
        assert np.array_equal(cached.available(round), asked.available(round))


@pytest.mark.parametrize("counts", [[[9, 0, 0], [4, 0, 0], [30, 0, 0]], [[5, 2, 1], [2, 1, 3], [9, 4, 4]]])
def test_ranges_say_what_owners_and_splits_say(counts):
    ranged, other = (
        Population(Side(counts, by_range=by_range), clients=3, participants=2).settle(SEEDS)
        for by_range in (True, False)
    )
    assert same(all_of(ranged), all_of(other))


def test_ranges_name_as_many_devices_as_there_are():
    counts = [[9, 0, 0], [4, 0, 0], [30, 0, 0]]
    with pytest.raises(ValueError, match="clients must be 3, the number of owners that the data set names, got 2"):
        Population(Side(counts, by_range=True), clients=2, participants=1).settle(SEEDS)
    with pytest.raises(ValueError, match="clients must be 3, the number of owners that the data set names, got 4"):
        Population(Side(counts, by_range=True), clients=4, participants=1).settle(SEEDS)


def test_of_equal_keys_the_first_are_drawn():
    few = np.random.default_rng(0).integers(0, 5, (4, 300)).astype(np.uint64) << np.uint64(60)
    many = np.random.default_rng(0).integers(0, 2**63, (4, 300)).astype(np.uint64)
    for keys in (few, many):
        for count in (1, 7, 300):
            expected = np.sort(np.argsort(keys, axis=1, kind="stable")[:, :count], axis=1)
            assert np.array_equal(lowest(keys, count, 300), expected)


def test_of_many_devices_the_same_are_drawn_though_few_are_looked_at():
    words = random_bits(np.array([0, 44, 56]), "participation", 3)
    there = np.random.default_rng(0).random((3, 50_000)) < 0.7
    there[2] = False
    there[2, 49_000:49_500] = True
    for count in (1, 10, 400):
        expected = np.argsort(keys_of(words, there), axis=1, kind="stable")[:, :count]
        assert np.array_equal(drawn_devices(words, there, count, 500), np.sort(expected, axis=1))
        few = there[:, -1000:]
        expected = np.argsort(keys_of(words, few), axis=1, kind="stable")[:, :count]
        assert np.array_equal(drawn_devices(words, few, count, 500), np.sort(expected, axis=1))


def test_of_equal_random_words_the_first_come_first():
    group, key = np.repeat([0, 1, 2], 4), np.array([3, 3, 1, 1] * 3, dtype=np.uint64)  # equal in all high bits
    assert membership.ordered(group, key).tolist() == [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9]


def test_a_large_population_costs_a_few_numbers_a_device():
    counts = np.zeros((200_000, 3), dtype=np.int64)
    counts[:, 0] = 5 + np.arange(200_000) % 7
    counts[3, 0] = 5_000  # the longest one costs itself only
    population = Population(Side(counts, by_range=True), clients=200_000, participants=10)
    tracemalloc.start()
    population.settle(SEEDS)
    population.cohort(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    examples = 24 * int(counts.sum())  # which the data set itself makes, in bytes: x, y
    assert peak - examples < 300 * 200_000
