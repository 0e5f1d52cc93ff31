"""Batch plans: every example once per epoch; a device's batches are its own affair."""

import re

import numpy as np
import pytest
import torch

from flstudy.population import BatchPlan
from flstudy.user_error import UserError

from ..worlds import DEVICES, drifting, world


def rows_of(work, s, j):
    """The row numbers that a job reads, epoch by epoch."""
    rows, ends = work.batches.rows[s, j], work.batches.epoch[s, j]
    steps = int(work.batches.steps[s, j])
    assert (rows[steps:] == -1).all()
    epochs, seen = [], []
    for step in range(steps):
        seen += [row for row in rows[step].tolist() if row >= 0]
        if ends[step] > 0:
            epochs.append(seen)
            seen = []
            assert int(ends[step]) == len(epochs)
    return epochs, seen


def test_every_example_exactly_once_per_epoch():
    population = world(epochs=3).settle((0, 44))
    for index in (0, 5):
        work = population.cohort(index + 1)
        for s in range(2):
            for j, client in enumerate(work.jobs.client[s].tolist()):
                mine = sorted(population.members[s][client]["train"].tolist())
                epochs, rest = rows_of(work, s, j)
                assert rest == []
                assert [sorted(epoch) for epoch in epochs] == [mine] * 3
                assert len({tuple(epoch) for epoch in epochs}) == 3  # each in an order of its own
                assert int(work.sizes[s, j]) == len(mine)


def test_only_the_last_batch_of_an_epoch_is_short():
    work = world().settle((0,)).cohort(1)
    for j in range(DEVICES):
        steps, size = int(work.batches.steps[0, j]), int(work.sizes[0, j])
        counts = (work.batches.rows[0, j, :steps] >= 0).sum(1).tolist()
        epoch = [4] * (size // 4) + ([size % 4] if size % 4 else [])
        assert counts == epoch * 2
    assert (work.batches.rows[0, 0, 1] >= 0).tolist() == [True, False, False, False]  # real ones come first


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_plan_of_steps_is_kept_exactly(steps):
    population = world(steps=steps).settle((0,))
    work = population.cohort(3)
    assert work.batches.steps.unique().tolist() == [steps]
    for j, client in enumerate(work.jobs.client[0].tolist()):
        mine = sorted(population.members[0][client]["train"].tolist())
        epochs, rest = rows_of(work, 0, j)
        assert all(sorted(epoch) == mine for epoch in epochs)
        assert set(rest) < set(mine)
        assert len(rest) == len(set(rest))
        assert int((work.batches.rows[0, j] >= 0).any(1).sum()) == steps


def test_a_devices_batches_do_not_depend_on_who_else_is_drawn():
    alone, crowd = (world(participants=count).settle((0, 44)) for count in (2, DEVICES))
    compared = 0
    for index in range(6):
        few, all_ = alone.cohort(index + 1), crowd.cohort(index + 1)
        for s in range(2):
            for j, client in enumerate(few.jobs.client[s].tolist()):
                assert all_.jobs.client[s, client] == client
                assert rows_of(few, s, j) == rows_of(all_, s, client)
                compared += 1
    assert compared == 24


def test_cohorts_are_pure_functions_of_seed_and_round():
    population, again = drifting().settle((0, 44)), drifting().settle((0, 44))
    later = population.cohort(8)
    population.cohort(4)
    for cohort, other in ((later, population.cohort(8)), (later, again.cohort(8))):
        assert all(torch.equal(a, b) for a, b in zip(cohort.batches, other.batches, strict=True))
        assert torch.equal(cohort.jobs.client, other.jobs.client)
    assert not torch.equal(later.batches.rows[0], population.cohort(9).batches.rows[0])
    swapped = drifting().settle((44, 0)).cohort(8)
    assert torch.equal(later.jobs.client[0], swapped.jobs.client[1])  # a replica is its seed, not its place
    assert rows_of(later, 0, 0) == rows_of(swapped, 1, 0)


def test_shuffles_are_uniform():
    """The first row of an epoch is any of five with the same frequency."""
    lists = [np.arange(5)] * 4000
    rows, _, _ = BatchPlan(5, 1).rows(np.zeros(4000, np.int64), 1, np.arange(4000), lists)
    for place in (0, 2, 4):
        counts = np.bincount(rows[:, 0, place], minlength=5)
        assert ((counts - 800) ** 2 / 800).sum() < 4 + 5 * np.sqrt(8)


def test_a_fit_ends_with_its_epochs_or_its_most_steps_whichever_comes_first():
    """Lightning's ``max_epochs`` and ``max_steps``: the batches are those of the epochs, cut off."""
    lists = [np.arange(size) for size in (3, 10, 23)]
    jobs = np.zeros(3, np.int64), 1, np.arange(3), lists
    whole, steps, ends = BatchPlan(5, 2).rows(*jobs)
    short, fewer, cut = BatchPlan(5, 2, max_steps=5).rows(*jobs)
    assert steps.tolist() == [2, 4, 10]
    assert fewer.tolist() == [min(count, 5) for count in steps.tolist()]
    for job, count in enumerate(fewer.tolist()):
        assert torch.equal(short[job, :count], whole[job, :count])
        assert (short[job, count:] == -1).all()
        assert torch.equal(cut[job, :count], ends[job, :count])
    assert [BatchPlan(5, 2, max_steps=5).longest(size) for size in (3, 10, 23)] == fewer.tolist()
    with pytest.raises(UserError, match=re.escape("steps (3) is exact; leave it or max_steps (5) out")):
        world(steps=3, max_steps=5)
