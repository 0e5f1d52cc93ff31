"""Streams: independent, named, and the same whoever else asks."""

import numpy as np
import pytest

from flstudy.population.streams import generator, random_bits, torch_seed


def test_names_give_different_words():
    words = random_bits(np.arange(20)[:, None, None], "a", np.arange(50)[None, :, None], np.arange(100)[None, None, :])
    assert np.unique(words).size == 20 * 50 * 100
    assert np.unique(np.concatenate([words.ravel(), random_bits(np.arange(100_000), "b", 0, 0)])).size == 200_000
    assert random_bits(1, "a", 2, 3) != random_bits(1, "a", 3, 2)  # the place of a counter matters
    assert random_bits(1, "a", 2) != random_bits(2, "a", 1)
    assert random_bits(0, "a") != random_bits(0, "b")
    assert random_bits(0, "a", 0) != random_bits(0, "a", 0, 0)


def test_a_word_depends_on_its_own_name_only():
    devices = np.random.default_rng(0).permutation(1000)
    together = random_bits(7, "batches", 3, devices)
    assert all(together[i] == random_bits(7, "batches", 3, int(devices[i])) for i in range(0, 1000, 37))
    assert np.array_equal(np.sort(together), np.sort(random_bits(7, "batches", 3, np.arange(1000))))


@pytest.mark.slow
def test_words_are_uniform_and_uncorrelated():
    count = 200_000
    for words in (
        random_bits(0, "x", np.arange(count)),
        random_bits(np.arange(count), "x"),
        random_bits(3, "x", np.arange(count), 5),
    ):
        u = words / 2.0**64
        assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * count)  # four standard deviations
        histogram = np.bincount((u * 100).astype(int), minlength=100)
        chi2 = ((histogram - count / 100) ** 2 / (count / 100)).sum()
        assert chi2 < 99 + 5 * np.sqrt(2 * 99)
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(count)  # neighbours
        set_bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
        assert np.abs(set_bits.mean(0) - 0.5).max() < 5 / np.sqrt(4 * count)
    a, b = (random_bits(seed, "x", np.arange(count)) / 2.0**64 for seed in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(count)


def test_generators_are_those_of_their_name():
    first, again, other = (generator(seed, "partition", 4).random(8) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert 0 <= torch_seed(5, "init") < 2**63
    assert torch_seed(5, "init") != torch_seed(5, "dropout")
