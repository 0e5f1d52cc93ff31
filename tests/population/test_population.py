"""The world: splits, participation, and sentences for what cannot be."""

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.population import Dirichlet, InMemory, LabelSwap, SuddenDrift

from ..worlds import DEVICES, SIZES, Ragged, drifting, examples, world


def test_splits_are_disjoint_complete_and_of_the_asked_size():
    population = world(valid=0.3, test=0.1).settle((0, 44))
    for devices in population.members:
        owned = []
        for size, device in zip(SIZES, devices, strict=True):
            parts = [device[split].tolist() for split in ("train", "valid", "test")]
            owned += [row for part in parts for row in part]
            assert sum(map(len, parts)) == size
            assert len(parts[1]) == max(1, round(0.3 * size))
            assert len(parts[2]) == max(1, round(0.1 * size))
        assert sorted(owned) == list(range(sum(SIZES)))
    first, other = population.members
    assert first[3]["train"].tolist() != other[3]["train"].tolist()  # each seed deals anew


@pytest.mark.parametrize("size", [3, 4, 5])
def test_tiny_devices_have_one_example_of_each_kind(size):
    data = examples(count=size * DEVICES)
    population = world(dataset=data, partition=Ragged([size] * DEVICES), valid=0.4, test=0.4).settle((0,))
    for device in population.members[0]:
        assert min(len(device[split]) for split in ("train", "valid", "test")) >= 1
        assert sum(len(rows) for rows in device.values()) == size


def test_census_holds_every_example_of_a_split_with_its_device():
    population = world().settle((0, 44))
    for split in ("valid", "test"):
        examples = population.device_data.evaluation_index(split, 1)
        for s, devices in enumerate(population.members):
            pairs = set(zip(examples.rows[s].tolist(), examples.device[s].tolist(), strict=True)) - {(-1, -1)}
            assert pairs == {(row, k) for k, device in enumerate(devices) for row in device[split].tolist()}
    clients = torch.tensor([[4, 0], [1, 1]])
    rows = population.device_data.examples_of("test", clients, 1)
    for s, j in np.ndindex(2, 2):
        mine = rows[s, j][rows[s, j] >= 0].tolist()
        assert mine == population.members[s][int(clients[s, j])]["test"].tolist()


@pytest.mark.slow
def test_participation_is_uniform_without_replacement():
    population = world(participants=2).settle((0, 44))
    counts, together, rounds = np.zeros((2, DEVICES)), np.zeros((DEVICES, DEVICES)), 1500
    for index in range(rounds):
        client = population.cohort(index + 1).jobs.client
        assert client.shape == (2, 2)
        for s in range(2):
            a, b = client[s].tolist()
            assert a != b
            counts[s, [a, b]] += 1
            together[a, b] += 1
    assert np.abs(counts / rounds - 1 / 3).max() < 5 * np.sqrt(2 / 9 / rounds)
    pairs = together[together > 0]
    assert len(pairs) == 15  # all pairs occur, about equally often
    assert np.abs(pairs / (2 * rounds) - 1 / 15).max() < 5 * np.sqrt(1 / 15 / (2 * rounds))


def test_all_take_part_when_all_are_asked():
    assert world().settle((0,)).cohort(10).jobs.client.tolist() == [list(range(DEVICES))]


def test_rounds_count_from_one_and_N_is_the_number_of_devices():
    work = drifting().settle((0, 44)).cohort(5)
    assert work.round.number.tolist() == [5, 5]
    assert work.round.num_devices.tolist() == [DEVICES, DEVICES]


def test_settling_is_idempotent_and_follows_the_seeds():
    population = world().settle((0,))
    before = population.store.x
    assert population.settle((0,)).store.x is before
    assert population.settle((0, 1)).cohort(1).jobs.client.shape[0] == 2


def test_a_torch_data_set_or_two_tensors_will_do():
    x, y = torch.randn(60, 3), torch.arange(60) % 3
    for data in ((x, y), torch.utils.data.TensorDataset(x, y), InMemory((x, y))):
        population = Population(data, clients=4, participants=2).settle((0,))
        assert torch.equal(population.store.x, x)
        assert population.dataset.classes == 3
        assert population.dataset.shape == (3,)


GOOD = {"clients": DEVICES, "participants": 3}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"participants": 7}, r"Population: participants must be ≤ clients \(6\), got 7"),
        ({"participants": 0}, r"Population: participants must lie in \[1, 1e6\], got 0"),
        ({"clients": 0}, r"Population: clients must lie in \[1, 1e6\], got 0"),
        ({"batch_size": 0}, r"Population: batch_size must lie in \[1, 1e6\], got 0"),
        ({"epochs": 0}, r"Population: epochs must lie in \[1, 1e6\], got 0"),
        ({"steps": 0}, r"Population: steps must lie in \[1, 1e6\], got 0"),
        ({"valid": 0.0}, r"Population: valid must lie in \(0, 1\), got 0\.0"),
        ({"test": 1.0}, r"Population: test must lie in \(0, 1\), got 1\.0"),
        ({"valid": 0.5, "test": 0.5}, r"valid \+ test must be < 1 to leave training data, got 1\.0"),
        ({"dataset": "digits"}, "dataset must be a flstudy dataset, .* got str"),
        ({"dataset": (torch.zeros(3, 2), torch.zeros(4))}, "as many inputs as labels, at least one, got 3 and 4"),
        ({"dataset": (torch.zeros(0, 2), torch.zeros(0))}, "as many inputs as labels, at least one, got 0 and 0"),
    ],
)
def test_bad_values_are_refused(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        world(**{**GOOD, **values})


def test_what_the_data_cannot_give_is_refused_before_the_first_round():
    with pytest.raises(ValueError, match=r"clients must be ≤ the number of examples \(120\), got 200"):
        world(clients=200, participants=1, partition=None).settle((0,))
    with pytest.raises(
        ValueError, match=r"device.* 0 \(2\).* fewer than 3 examples \(train, valid, test\): leave such"
    ):
        world(partition=Ragged((2, 19, 17, 22, 27, 33))).settle((0,))
    with pytest.raises(ValueError, match="pairs must hold labels in 0 … 3"):
        world(drift=SuddenDrift(round=2, change=LabelSwap(pairs=[(3, 4)]))).settle((0,))
    with pytest.raises(ValueError, match="lower min_size or the number of clients, or raise alpha"):
        world(partition=Dirichlet(alpha=0.1, min_size=20)).settle((0,))
