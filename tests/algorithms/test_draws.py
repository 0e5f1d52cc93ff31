"""Random numbers of devices: Threefry's published words, the right distributions, and a key for each job."""

import math

import numpy as np
import pytest
import torch

from flstudy.algorithms import fold_in, normal, uniform
from flstudy.algorithms.parts.draws import WORD, threefry

from ..worlds import drifting

COUNT = 200_000
KEYS = torch.tensor([0, 1, 2**40 + 3])


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((WORD, WORD), (WORD, WORD), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_words_are_threefry_s(key, counter, words):
    """The known answers of Random123 for twenty rounds."""
    made = threefry(*(tuple(map(torch.tensor, pair)) for pair in (key, counter)))
    assert tuple(map(int, made)) == words


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
    assert all(0 <= key < 2**63 for key in keys)
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
