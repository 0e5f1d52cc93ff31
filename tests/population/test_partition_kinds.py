"""Partitions by label say what they can divide by: integers, quantiles of real numbers, patterns of several labels."""

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.population import (
    BalancedDirichlet,
    Dirichlet,
    Distinct,
    Half,
    Iid,
    LabelGroups,
    PartialOverlap,
    Shards,
    TwoShard,
)

COUNT, CLIENTS = 1000, 5
RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(COUNT, 8)).astype(np.float32))
REAL = 3 * X[:, 0] + X[:, 1]
SEVERAL = (X[:, :3] > 0).long()  # eight patterns
SKEWED = [Dirichlet(alpha=0.1, min_size=3), BalancedDirichlet(), Shards(), LabelGroups(), Half(), PartialOverlap()]
BY_LABEL = [*SKEWED, TwoShard(), Distinct()]
NAMES = [type(partition).__name__ for partition in BY_LABEL]


def owned(partition, y):
    population = Population((X, y), clients=CLIENTS, participants=2, partition=partition).settle((0,))
    return [np.concatenate([*rows.values()]) for rows in population.members[0]]


def by(partition, what):
    return type(partition)(**{**vars(partition), "by": what})


def spread(values, devices):
    """Variance of the devices' means, as a share of the variance of all values: 0 where devices are alike."""
    means = [float(values[torch.from_numpy(rows)].float().mean()) for rows in devices]
    return np.var(means) / float(values.float().var())


@pytest.mark.parametrize("partition", BY_LABEL, ids=NAMES)
@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (REAL, "by must be quantile where labels are real numbers, got label: set partition.by"),
        (SEVERAL, "by must be pattern where labels are several for each example, got label"),
        (SEVERAL.float(), "by must be pattern where labels are several for each example, got label"),
    ],
)
def test_what_a_partition_cannot_divide_by_is_refused(partition, y, sentence):
    if isinstance(partition, Shards) and y is REAL:
        assert spread(REAL, owned(partition, REAL)) > 0.2  # sorted as they are
        return
    with pytest.raises(ValueError, match=f"{type(partition).__name__}: {sentence}"):
        owned(partition, y)


@pytest.mark.parametrize("partition", BY_LABEL, ids=NAMES)
def test_integers_have_no_quantiles_or_patterns(partition):
    for what in ("quantile", "pattern"):
        with pytest.raises(ValueError, match=f"by must be label where labels are integers, got {what}"):
            owned(by(partition, what), (REAL > 0).long())


@pytest.mark.parametrize("partition", [*SKEWED, TwoShard(), Distinct()], ids=NAMES)
def test_quantiles_of_real_numbers_are_skewed_as_labels_are(partition):
    tenths = torch.from_numpy(np.argsort(np.argsort(REAL.numpy()))) * 10 // COUNT
    devices = owned(by(partition, "quantile"), REAL)
    assert spread(REAL, devices) > 5 * spread(REAL, owned(Iid(), REAL)) + 0.02
    for rows, expected in zip(devices, owned(partition, tenths), strict=True):
        assert np.array_equal(np.sort(rows), np.sort(expected))


@pytest.mark.parametrize("partition", SKEWED, ids=NAMES[: len(SKEWED)])
def test_patterns_of_several_labels_are_skewed_as_labels_are(partition):
    numbers = SEVERAL @ torch.tensor([4, 2, 1])
    devices = owned(by(partition, "pattern"), SEVERAL)
    assert spread(numbers, devices) > 0.02
    for rows, expected in zip(devices, owned(partition, numbers), strict=True):
        assert np.array_equal(np.sort(rows), np.sort(expected))
