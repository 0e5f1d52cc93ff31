"""Data sets come from wherever the process keeps them, bit for bit as loaded, and are never written to."""

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import Flash
from flstudy.population import Digits, Dirichlet, Examples, Partition, Synthetic
from flstudy.population.dataset_cache import DatasetCache, installed, key, load_examples, read_examples
from flstudy.tuning.sharing import map_examples

from ..worlds import CLASSES, FEATURES, difference, drifting, examples, run, state

SMALL = Synthetic(features=FEATURES, labels=CLASSES, log_mean=0.0, log_std=0.0, extra=20)


def settled(dataset, seeds=(3, 5), **changes):
    return Population(dataset, **{"clients": 4, "participants": 2, **changes}).settle(seeds)


def same(population, other):
    """Whether two populations hold the same examples and give them to the same devices."""
    assert all(torch.equal(a, b) for a, b in zip(population.store, other.store, strict=True))
    pairs = zip(population.members, other.members, strict=True)
    assert all(
        np.array_equal(a[split], b[split])
        for devices, others in pairs
        for a, b in zip(devices, others, strict=True)
        for split in ("train", "valid", "test")
    )
    return True


@pytest.mark.parametrize("dataset", [SMALL, Digits()], ids=["a seeded one", "an unseeded one"])
@pytest.mark.parametrize("partition", [None, Dirichlet(alpha=1.0, min_size=3)])
def test_kept_examples_are_those_of_loading(dataset, partition):
    plain, cache = settled(dataset, partition=partition), DatasetCache()
    with installed(cache):
        first, second = (settled(dataset, partition=partition) for _ in range(2))
    assert same(plain, first)
    assert same(plain, second)
    assert first.store.x.data_ptr() == second.store.x.data_ptr()  # not even stacked anew
    assert len(cache.own) == 1
    assert same(plain, settled(dataset, partition=partition))  # the source was for a while


def test_keys_tell_apart_what_is_loaded_differently():
    seeded = [key(Synthetic(alpha=a), seeds, n) for a in (0.5, 1.0) for seeds in ((0,), (0, 1), (1, 0)) for n in (5, 6)]
    assert len(set(seeded)) == 12
    assert key(Synthetic(alpha=0.5), (0,), 5) == key(Synthetic(), (0,), 5)
    assert key(Digits(), (0,), 5) == key(Digits(), (44,), 5)  # every seed's digits are the same
    assert key(Digits(), (0,), 5) != key(Digits(), (0, 44), 5)
    assert key(examples(), (0,), 6) is None  # in memory already


class Odd(Digits):
    """Says not in plain values what it loads."""

    def __init__(self):
        super().__init__()
        self.table, self.loads = torch.eye(2), 0

    def load(self, seed, clients):
        self.loads += 1
        return Examples(self.table.repeat(20, 1), torch.arange(40) % 2, None)


def test_what_cannot_be_compared_is_loaded_every_time():
    odd = Odd()
    with installed(DatasetCache()):
        settled(odd)
        settled(odd)
    assert odd.loads == 2


def test_a_keeper_asks_elsewhere_first_and_keeps_within_its_limit():
    there = read_examples(SMALL, (0,), 4)
    asked = []

    def elsewhere(wanted):
        asked.append(wanted)
        return there if wanted == key(SMALL, (0,), 4) else None

    cache = DatasetCache(elsewhere, limit=1)
    with installed(cache):
        assert load_examples(SMALL, [0], 4) is there
        assert load_examples(SMALL, [0], 4) is there
        assert len(asked) == 1
        loaded = load_examples(SMALL, [1], 4)
        assert load_examples(SMALL, [1], 4) is loaded
        load_examples(SMALL, [2], 4)
        assert list(cache.own) == [key(SMALL, (2,), 4)]


def protected(loads, folder):
    """The same examples in memory that the operating system lets nobody write to, as Ray's store is."""
    parts = []
    for name in ("x", "y", "owner", "split"):
        part = getattr(loads, name)
        if part is not None:
            np.save(folder / f"{name}.npy", part.numpy())
        parts.append(None if part is None else np.load(folder / f"{name}.npy", mmap_mode="r"))
    return map_examples(parts, loads.starts, loads.stops)


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*not writable.*")
@pytest.mark.parametrize("executor", ["vectorized", "threads", "sequential", "trainer"])
def test_nothing_writes_to_examples(executor, tmp_path):
    """A write would kill the process."""
    settings = {"algorithm": Flash(lr=0.1), "rounds": 2, "seeds": (0, 44), "executor": executor, "evaluate": True}
    settings["precision"] = "32-true"  # that of the examples: another one would copy them
    worlds = [drifting(dataset=SMALL, partition=None) for _ in range(2)]
    plain = run(population=worlds[0], **settings)
    with installed(lambda *wanted: protected(read_examples(*wanted), tmp_path)):
        shared = run(population=worlds[1], **settings)
    assert difference(state(plain), state(shared)) == 0


def test_a_partition_that_writes_to_the_labels_is_refused():
    class Rude(Partition):
        def assign(self, labels, clients, rng):
            labels[:] = 0
            return labels

    with pytest.raises(ValueError, match="read-only"):
        settled(Digits(), partition=Rude())
