"""A DataLoader is what it yields: the examples of its sampler, each as often as it is drawn in an epoch."""

import itertools
import warnings

import lightning as L
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from flstudy import Population
from flstudy.population import InMemory

COUNT = 60
X, Y = torch.arange(COUNT, dtype=torch.float32).unsqueeze(1), torch.arange(COUNT) % 3
DATA = TensorDataset(X, Y)
PARTS = {"train": range(40), "valid": range(40, 50), "test": range(50, 60)}


class Sampled(L.LightningDataModule):
    """Three loaders of one data set, as people write them."""

    def __init__(self, make, parts=PARTS):
        super().__init__()
        self.make, self.parts = make, parts

    def train_dataloader(self):
        return self.make(self.parts["train"])

    def val_dataloader(self):
        return self.make(self.parts["valid"])

    def test_dataloader(self):
        return self.make(self.parts["test"])


class Batches(Sampler):
    """Batches of one's own, in which some indices stand twice."""

    def __init__(self, indices):
        self.indices = list(indices)

    def __iter__(self):
        yield [self.indices[-1]]
        yield from (self.indices[k : k + 7] for k in range(0, len(self.indices), 7))


class Endless(Sampler):
    def __iter__(self):
        return itertools.cycle(range(COUNT))


WAYS = {
    "SubsetRandomSampler": lambda part: DataLoader(DATA, batch_size=7, sampler=SubsetRandomSampler(part)),
    "seeded": lambda part: DataLoader(DATA, sampler=SubsetRandomSampler(part, torch.Generator().manual_seed(3))),
    "Subset": lambda part: DataLoader(Subset(DATA, part), batch_size=7, shuffle=True),
    "drop_last": lambda part: DataLoader(Subset(DATA, part), batch_size=7, shuffle=True, drop_last=True),
    "a list": lambda part: DataLoader(DATA, batch_size=7, sampler=list(part)),
    "BatchSampler": lambda part: DataLoader(DATA, batch_sampler=BatchSampler(SubsetRandomSampler(part), 7, False)),
    "RandomSampler": lambda part: DataLoader(Subset(DATA, part), sampler=RandomSampler(range(len(part)))),
    "SequentialSampler": lambda part: DataLoader(Subset(DATA, part), sampler=SequentialSampler(range(len(part)))),
}


def in_split(data, place):
    examples = data.examples
    rows = examples.split == place
    assert torch.equal(examples.y[rows], (examples.x[rows, 0] % 3).long())
    return sorted(examples.x[rows, 0].int().tolist())


@pytest.mark.parametrize("way", WAYS)
def test_each_split_holds_what_its_loader_yields(way):
    state = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = InMemory(Sampled(WAYS[way]))
    assert torch.equal(torch.random.get_rng_state(), state)
    for place, part in enumerate(PARTS.values()):
        assert in_split(data, place) == list(part)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_loader_gives_the_same_examples_in_the_same_order(way):
    torch.manual_seed(0)
    data = InMemory(Sampled(WAYS[way]))
    torch.manual_seed(1)
    assert torch.equal(data.examples.x, InMemory(Sampled(WAYS[way])).examples.x)


def test_examples_that_a_sampler_yields_twice_count_twice():
    data = InMemory(Sampled(lambda part: DataLoader(DATA, batch_sampler=Batches(part))))
    assert in_split(data, 0) == sorted([*PARTS["train"], 39])


def test_a_sampler_of_a_part_yields_that_part():
    """torch's own, whose indices are read where they are fewer than the examples."""
    data = InMemory(Sampled(lambda part: DataLoader(DATA, sampler=SequentialSampler(range(len(part))))))
    assert [in_split(data, place) for place in range(3)] == [list(range(len(part))) for part in PARTS.values()]


def test_devices_hold_no_more_than_their_splits():
    population = Population(Sampled(WAYS["SubsetRandomSampler"]), clients=4, participants=4).settle((0,))
    assert population.members[0].counts.sum(0).tolist() == [40, 10, 10]


def test_loaders_are_data_by_split_and_by_client():
    loaders = {name: WAYS["SubsetRandomSampler"](part) for name, part in PARTS.items()}
    for place, part in enumerate(PARTS.values()):
        assert in_split(InMemory(loaders), place) == list(part)
    data = InMemory([tuple(loaders.values()), tuple(loaders.values())])
    assert data.examples.owner.bincount().tolist() == [COUNT, COUNT]


@pytest.mark.parametrize(
    ("parts", "shared"),
    [
        ({**PARTS, "valid": range(30, 50)}, "10 examples are in train and in valid"),
        ({**PARTS, "test": range(40, 60)}, "10 examples are in valid and in test"),
        (dict.fromkeys(PARTS, range(COUNT)), "60 examples are in train and in test"),
    ],
)
@pytest.mark.parametrize("way", ["SubsetRandomSampler", "Subset"])
def test_splits_that_share_examples_are_told(parts, shared, way):
    with pytest.warns(UserWarning, match=shared):
        InMemory(Sampled(WAYS[way], parts))


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(DATA)


@pytest.mark.parametrize(
    ("loader", "sentence"),
    [
        (
            lambda part: DataLoader(DATA, sampler=WeightedRandomSampler(torch.ones(COUNT), COUNT)),
            "train loader of Sampled draws other examples in each epoch by its WeightedRandomSampler, .* loss weigh",
        ),
        (
            lambda part: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),
            "draws other examples in each epoch by its RandomSampler",
        ),
        (
            lambda part: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=9)),
            "draws other examples in each epoch by its RandomSampler",
        ),
        (
            lambda part: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA, num_samples=9), 3, False)),
            "draws other examples in each epoch by its RandomSampler",
        ),
        (lambda part: DataLoader(DATA, sampler=Endless()), "has a Endless without an end: let it yield one epoch"),
        (lambda part: DataLoader(DATA, sampler=[3, COUNT]), "must lie from 0 to 59, got 3 to 60"),
        (lambda part: DataLoader(Streamed()), "the train loader of Sampled must be .* map-style dataset, got Streamed"),
        (lambda part: [1, 2, 3], "the train loader of Sampled must be .* map-style dataset, got int"),
    ],
)
def test_what_no_device_can_hold_is_refused(loader, sentence):
    with pytest.raises(ValueError, match=sentence):
        InMemory(Sampled(loader))


def test_a_loader_alone_is_told_what_is_wrong():
    with pytest.raises(ValueError, match="dataset: a loader must be a DataLoader of a map-style dataset, got Streamed"):
        InMemory(DataLoader(Streamed()))
