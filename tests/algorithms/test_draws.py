"""Random numbers of devices: published words, the right distributions, and a key for each job."""

import math

import numpy as np
import pytest
import torch

from flstudy.algorithms import fold_in, normal, uniform
from flstudy.population.streams import mixed

from ..worlds import drifting

COUNT = 200_000
KEYS = torch.tensor([0, 1, 2**40 + 3])


def test_words_are_splitmix64_s():
    """Its first words for the state 0, and those of numpy's streams for any."""
    words = [int(fold_in(torch.tensor(k), -1)) % 2**64 for k in (1, 2, 3)]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    names = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    drawn = torch.vmap(fold_in)(torch.from_numpy(names.view(np.int64)), torch.arange(1000))
    assert np.array_equal(drawn.numpy().view(np.uint64), mixed(names, np.arange(1000)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_have_their_distribution(dtype):
    """Moments within five standard errors, and within what the type can tell."""
    like = torch.empty(COUNT, dtype=dtype)
    u, z = (draw(torch.tensor(44), like) for draw in (uniform, normal))
    assert u.dtype == z.dtype == dtype
    assert 0 <= u.min() <= u.max() < 1
    u, z, eps = u.double(), z.double(), torch.finfo(dtype).eps
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * COUNT) + eps
    assert abs(u.var() - 1 / 12) < 5 / math.sqrt(180 * COUNT) + eps
    assert abs(z.mean()) < 5 / math.sqrt(COUNT) + eps
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / COUNT) + eps
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / COUNT) + 10 * eps
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / math.sqrt(COUNT) + eps


@pytest.mark.parametrize("draw", [uniform, normal])
def test_keys_draw_by_themselves(draw):
    like = torch.empty(7, 3, dtype=torch.float64)
    mapped = torch.vmap(lambda key: draw(key, like))(KEYS)
    assert mapped.shape == (3, 7, 3)
    assert mapped.unique().numel() == mapped.numel()
    assert all(torch.equal(drawn, draw(key, like)) for drawn, key in zip(mapped, KEYS, strict=True))
    assert abs(np.corrcoef(*(draw(key, torch.empty(COUNT)) for key in KEYS[:2]))[0, 1]) < 5 / math.sqrt(COUNT)


def test_a_key_and_a_number_are_another_key():
    keys = [int(fold_in(key, number)) for key in KEYS for number in range(50)]
    assert len({*keys, *KEYS.tolist()}) == len(keys) + len(KEYS)
    assert fold_in(KEYS[1], 3) == fold_in(KEYS[1], torch.tensor(3.0))


def test_a_job_s_key_is_its_own():
    """By replica, round and device, and whoever else is drawn."""
    few, all_ = (drifting(participants=count).settle((0, 44)) for count in (3, 6))
    keys = {}
    for number in (1, 2):
        for population in (few, all_):
            jobs = population.cohort(number).jobs
            for s, j in np.ndindex(*jobs.key.shape):
                name, key = (s, number, int(jobs.client[s, j])), int(jobs.key[s, j])
                assert keys.setdefault(name, key) == key
    assert len(keys) == len(set(keys.values())) == 2 * 2 * 6
    twice = few.cohort(1).repeated(2).jobs
    assert torch.equal(twice.client[:, ::2], twice.client[:, 1::2])
    assert len(set(twice.key.flatten().tolist())) == 2 * 2 * 3
