"""Laws of form: methods are pure functions, and the order of jobs means nothing."""

import pytest
import torch

from flstudy.algorithms.parts.rules import traced
from flstudy.execution import Sequential, Vectorized
from flstudy.testing import algorithms as laws

from ..worlds import difference, drifting, run
from .cases import settings

CASES = settings()


@pytest.fixture(scope="module")
def scenes():
    """Runs of two rounds by case, so that moments, variates and rows are no longer zero."""
    made = {}

    def scene(name):
        if name not in made:
            population = drifting()
            made[name] = (run(CASES[name], 2, population=population, seeds=(0, 44), initial="seeded"), population)
        return made[name]

    return scene


@pytest.mark.parametrize("name", CASES)
def test_methods_are_pure(name, scenes):
    laws.methods_are_pure(CASES[name], *scenes(name))


@pytest.mark.parametrize("name", CASES)
def test_hyper_parameters_as_tensors_change_nothing(name, scenes):
    module, population = scenes(name)
    algorithm, work = CASES[name], population.cohort(3)
    clients = module.bank.gather(algorithm, work.jobs.client, module.server.x)
    as_tensors = traced(algorithm, module.server.x)
    assert isinstance(as_tensors.lr, torch.Tensor)
    fits = [module.executor.fit(a, module.server, clients, work.jobs, work.batches) for a in (algorithm, as_tensors)]
    assert difference(fits[0].uploads, fits[1].uploads) <= 1e-12


@pytest.mark.parametrize("kind", [Sequential, Vectorized])
@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(("plain", "early stopping"))])
def test_the_order_of_jobs_means_nothing(name, kind, scenes):
    laws.order_means_nothing(CASES[name], kind, *scenes(name))


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("plain")])
def test_servers_read_what_they_say(name, scenes):
    laws.reads_what_it_says(CASES[name], *scenes(name))
    laws.sums_suffice(CASES[name], *scenes(name))
    laws.rows_are_prepared_where_said(CASES[name], *scenes(name))
    laws.weights_are_heeded(CASES[name], *scenes(name))
