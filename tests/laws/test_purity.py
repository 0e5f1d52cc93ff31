"""Laws of form: methods are pure functions, and the order of jobs means nothing."""

import pytest
import torch
from torch.utils import _pytree as pytree

from flstudy.algorithms import Batch, Inbox, Job
from flstudy.algorithms.parts.rules import traced
from flstudy.execution import Sequential, Vectorized
from flstudy.execution.executor import TrainingContext, gradient
from flstudy.execution.trees import take

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


def bits(tree):
    """Copies of all leaves."""
    return [leaf.clone() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def same(one, other):
    """Bit for bit."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def pure(function, *arguments):
    """Call twice: the arguments are left alone, and the same ones give the same result."""
    before = bits(arguments)
    first = function(*arguments)
    kept = bits(first)
    assert same(bits(arguments), before), f"{function.__name__} changes its arguments"
    second = function(*arguments)
    assert same(bits(second), kept), f"{function.__name__} remembers"
    assert same(bits(first), kept), f"{function.__name__} writes into what it returned before"
    return first


@pytest.mark.parametrize("name", CASES)
def test_methods_are_pure(name, scenes):
    module, population = scenes(name)
    algorithm, task_function, layout = CASES[name], module.task_function, module.task_function.layout
    server, work = take(module.server, 0), population.cohort(3)
    x = server.x.view(-1, layout.n)[0]
    pure(algorithm.server_init, x.expand(algorithm.starts, -1) if algorithm.starts > 1 else x, layout)
    fresh = pure(algorithm.client_init, x)
    clients = module.bank.gather(algorithm, work.jobs.client, module.server.x)
    client, job = take(clients, (0, 0)), take(work.jobs, (0, 0))
    assert pytree.tree_structure(fresh) == pytree.tree_structure(client)
    msg = pure(algorithm.broadcast, server, job)
    local = pure(algorithm.local_start, msg, client, layout)
    inputs, labels = module.executor.store.gather(work.batches.rows[0, 0, 0], work.batches.concept[0, 0])
    batch = Batch(inputs, labels, work.batches.rows[0, 0, 0] >= 0)
    grad = gradient(algorithm, task_function, msg, client)
    for _ in range(2):
        local, _ = pure(lambda local: algorithm.local_step(local, batch, grad, msg, client), local)
    pure(algorithm.loss, task_function, local.y, batch, msg, client)
    pure(algorithm.correct, torch.ones_like(x), local.y, msg, client)
    upload, _ = pure(algorithm.local_end, local, msg, client)
    pure(algorithm.personal, local, client)
    weights = pure(algorithm.weights, torch.tensor([3.0, 5.0], dtype=x.dtype))
    assert float(weights.sum()) == pytest.approx(1)
    inbox = Inbox(
        pytree.tree_map(lambda u: torch.stack([u, 2 * u]), upload), weights, torch.zeros(2, dtype=torch.int64)
    )
    after = pure(algorithm.server_step, server, inbox, take(work.round, 0))
    assert pytree.tree_structure(after) == pytree.tree_structure(server)
    assert set(pure(algorithm.diagnostics, server, after, inbox)) >= {"update_norm", "effective_lr"}


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
    module, population = scenes(name)
    algorithm, work, order = CASES[name], population.cohort(3), torch.tensor([3, 2, 0, 1])
    clients = module.bank.gather(algorithm, work.jobs.client, module.server.x)
    executor = kind(TrainingContext(module.task_function, module.executor.store))
    given = (module.server, clients, work.jobs, work.batches)
    before = bits(given)
    straight = executor.fit(algorithm, *given)
    assert same(bits(given), before), "an executor changes what it is given"
    mixed = [pytree.tree_map(lambda leaf: leaf[:, order], tree) for tree in given[1:]]
    permuted = executor.fit(algorithm, module.server, *mixed)
    for field in ("uploads", "clients", "personal", "steps", "loss"):
        one, other = getattr(straight, field), getattr(permuted, field)
        assert difference(pytree.tree_map(lambda leaf: leaf[:, order], one), other) <= 1e-12, field
    assert (straight.down, straight.up) == (permuted.down, permuted.up)

    def step(uploads, sizes, jobs: Job):
        weights = torch.vmap(algorithm.weights)(sizes.to(straight.loss.dtype))
        inbox = Inbox(uploads, weights, jobs.model)
        return torch.vmap(algorithm.server_step)(module.server, inbox, work.round)

    one = step(straight.uploads, work.sizes, work.jobs)
    other = step(permuted.uploads, work.sizes[:, order], mixed[1])
    assert difference(one, other) <= 1e-12
