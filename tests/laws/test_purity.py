"""Laws of form: methods are pure functions, and the order of jobs means nothing."""

import itertools

import pytest
import torch

from flstudy.algorithms.parts.rules import traced
from flstudy.execution import Sequential, Vectorized
from flstudy.testing import algorithms as laws

from ..tiers import in_tiers
from ..worlds import difference, drifting, play
from .cases import settings
from .sides import covering_array

CASES = settings()
ARRAY = covering_array(CASES)
COVERED = dict.fromkeys(name for name, _ in ARRAY)  # in order: each worker of pytest-xdist must collect the same
PLAIN = [name for name in CASES if name.endswith("plain")]
EARLY = [name for name in CASES if name.endswith("early stopping")]
KINDS = {"vectorized": Vectorized, "sequential": Sequential}
ORDERED = [(name, executor if executor in KINDS else "sequential") for name, executor in ARRAY]


@pytest.fixture(scope="module")
def scenes():
    """Runs of two rounds by case, so that moments, variates and rows are no longer zero."""
    played = {}

    def scene(name):
        if name not in played:
            population = drifting()
            played[name] = (play(CASES[name], 2, population=population, seeds=(0, 44), initial="seeded"), population)
        return played[name]

    return scene


@pytest.mark.parametrize("name", in_tiers(CASES, COVERED))
def test_methods_are_pure(name, scenes):
    laws.methods_are_pure(CASES[name], *scenes(name))


@pytest.mark.parametrize("name", in_tiers(CASES, COVERED))
def test_hyper_parameters_as_tensors_change_nothing(name, scenes):
    played, population = scenes(name)
    algorithm, work, server = CASES[name], population.cohort(3), played.state.server
    clients = laws.bank_rows(played, algorithm, work.jobs.client)
    as_tensors = traced(algorithm, server.x)
    assert isinstance(as_tensors.lr, torch.Tensor)
    fits = [played.executor.fit(a, server, clients, work.jobs, work.batches) for a in (algorithm, as_tensors)]
    assert difference(fits[0].uploads, fits[1].uploads) <= 1e-12


@pytest.mark.parametrize(
    ("name", "executor"), in_tiers([*ORDERED, *itertools.product([*PLAIN, *EARLY], KINDS)], ORDERED)
)
def test_the_order_of_jobs_means_nothing(name, executor, scenes):
    laws.order_means_nothing(CASES[name], KINDS[executor], *scenes(name))


@pytest.mark.parametrize("name", in_tiers([*PLAIN, *COVERED], [*COVERED][::2]))
def test_servers_read_what_they_say(name, scenes):
    laws.reads_what_it_says(CASES[name], *scenes(name))
    laws.sums_suffice(CASES[name], *scenes(name))
    laws.rows_are_prepared_where_said(CASES[name], *scenes(name))
    laws.weights_are_heeded(CASES[name], *scenes(name))
