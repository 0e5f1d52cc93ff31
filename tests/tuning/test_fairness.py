"""Common random numbers: whatever a trial changes about the algorithm, its world stays the same."""

from pathlib import Path

import pytest
import torch

from flstudy.config import load

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
SMALL = {"population.clients": 8, "population.participants": 4, "rounds": 40}


@pytest.mark.parametrize("algorithm", ["FedYogi", "Scaffold", "FedProx"])
def test_all_algorithms_meet_the_same_devices_batches_concepts_and_first_models(algorithm):
    config = load(QUICK, SMALL)
    other = config.with_overrides({"algorithm": algorithm, "algorithm.lr": 0.3})
    (first, here), (second, there) = config.build(), other.build()
    for population in (here, there):
        population.settle(config.seeds)
    assert type(first.algorithm) is not type(second.algorithm)
    for index in (0, 1, 29, 30, 39):  # the drift comes with round 31
        a, b = here.cohort(index + 1), there.cohort(index + 1)
        for left, right in zip((*a.jobs, *a.batches, a.sizes), (*b.jobs, *b.batches, b.sizes), strict=True):
            if isinstance(left, torch.Tensor):
                assert torch.equal(left, right)
    for split in ("train", "valid", "test"):
        assert torch.equal(
            here.device_data.evaluation_index(split, 1).rows, there.device_data.evaluation_index(split, 1).rows
        )
    models = [coordinator.run.initial.first(coordinator.task_function, 1) for coordinator in (first, second)]
    assert torch.equal(*models)


def test_other_seeds_make_another_world():
    config = load(QUICK, SMALL)
    (_, here), (_, there) = config.build(), config.with_overrides({"seeds": [1000, 1001, 1002]}).build()
    here.settle([0, 44, 56])
    there.settle([1000, 1001, 1002])
    assert not torch.equal(here.cohort(1).jobs.client, there.cohort(1).jobs.client)
