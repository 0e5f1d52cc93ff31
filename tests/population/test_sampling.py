"""How many devices a round draws, and which."""

import numpy as np
import pytest

from flstudy.population.population import cohort_size

from ..worlds import DEVICES, world

ROUNDS = 3000


def test_poisson_counts_are_binomial():
    counts = np.array([cohort_size("poisson", number + 1, 40, 10, 50) for number in range(ROUNDS)])
    mean, variance = 40 * 0.2, 40 * 0.2 * 0.8
    assert abs(counts.mean() - mean) < 4 * np.sqrt(variance / ROUNDS)
    assert abs(counts.var() / variance - 1) < 4 * np.sqrt(2 / ROUNDS)
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4 / np.sqrt(ROUNDS)
    assert cohort_size("fixed", 1, 40, 10, 50) == 10
    assert cohort_size("fixed", 1, 4, 10, 50) == 4


@pytest.mark.slow
def test_every_device_comes_with_the_same_probability_and_independently():
    population = world(sampling="poisson", participants=2).settle((0, 7))
    rounds = [population.cohort(index + 1).jobs.client if population.drawn(index + 1) else None for index in range(900)]
    there = np.zeros((900, 2, DEVICES))
    for index, clients in enumerate(rounds):
        if clients is not None:
            for s in range(2):
                there[index, s, clients[s].numpy()] = 1
    error = np.sqrt(2 / 9 / 900)
    assert (np.abs(there.mean(0) - 1 / 3) < 4 * error).all()
    together = np.corrcoef(there[:, 1].T) - np.eye(DEVICES)
    assert np.abs(together).max() < 4 / np.sqrt(900)


def test_nobody_drawn_leaves_one_at_work_and_seeds_do_not_depend_on_company():
    population = world(sampling="poisson", participants=1).settle((0, 7))
    alone = world(sampling="poisson", participants=1).settle((7,))
    empty = next(index for index in range(50) if population.drawn(index + 1) == 0)
    assert population.cohort(empty + 1).jobs.client.shape == (2, 1)
    for index in range(6):
        assert population.cohort(index + 1).jobs.client[1].tolist() == alone.cohort(index + 1).jobs.client[0].tolist()
    with pytest.raises(ValueError, match="sampling must be one of fixed, poisson, got 'all'"):
        world(sampling="all")
