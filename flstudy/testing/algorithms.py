"""Laws of a federated optimizer, checked on a small ragged federation in double precision."""

import dataclasses
import logging
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm, Batch, Inbox, Job
from flstudy.controllers import Restart
from flstudy.execution import Sequential, Vectorized
from flstudy.execution.context import TrainingContext
from flstudy.execution.local_objective import gradient
from flstudy.execution.parts import RoundPart, upload_sums
from flstudy.execution.programs import has_compiler
from flstudy.execution.trees import take
from flstudy.federation import FederatedRun, RunSettings
from flstudy.federation.asked_devices import stacked
from flstudy.federation.blocks import CollectedUploads
from flstudy.hyper import init_arguments
from flstudy.population import InMemory, Population, SuddenDrift
from flstudy.process_state import quiet_logger
from flstudy.run_settings import Compile
from flstudy.tasks import Mlp
from flstudy.user_error import UserError

BOUND = 1e-10  # of rounding in double precision


def check_algorithm(algorithm: Algorithm | type[Algorithm], *, compiled: bool = True) -> None:
    """Check a method's laws: its functions return what rounds count on and are pure, it trains alike one device after
    another, mapped and compiled, the order of jobs is irrelevant, single uploads are read and rows prepared only where
    it declares so, weights are used, and its ``means`` are means of rows, also after a new initial model.

    Args:
        algorithm: the method, or its class with its defaults.
        compiled: whether compiled steps are checked, for half a minute; without a C++ compiler they are not.

    Raises:
        AssertionError: which law it breaks, and by which function or with which numbers.
    """
    method = algorithm() if isinstance(algorithm, type) else algorithm
    try:
        obeys_laws(method)
        if compiled and has_compiler():
            compiled_is_eager(method)
    except UserError as error:  # its sentence names the function
        raise AssertionError(f"form: {str(error).removeprefix('algorithm: ')}") from error
    except AssertionError as error:
        raise AssertionError(f"{type(method).__name__}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{type(method).__name__} raises {type(error).__name__}: {error}") from error


def obeys_laws(method: Algorithm) -> None:
    """Check the laws of eager steps."""
    play(method, "vectorized", small_world(), 0)  # which tries its functions
    population = small_world()
    run = play(method, "sequential", population)
    methods_are_pure(method, run, population)
    executors_agree(method)
    for kind in (Sequential, Vectorized):
        order_means_nothing(method, kind, run, population)
    reads_what_it_says(method, run, population)
    sums_suffice(method, run, population)
    rows_are_prepared_where_said(method, run, population)
    weights_are_heeded(method, run, population)
    means_are_means(method, play(method, "vectorized", small_world(), 5, controllers=[Restart(rounds=[3])]))


def executors_agree(method: Algorithm) -> None:
    """Law: devices that are mapped together train as one after another."""
    played = [play(method, name, small_world()) for name in ("sequential", "vectorized")]
    apart = largest_difference(*(run.state.server for run in played))
    assert apart <= BOUND, f"executors agree: the servers of sequential and vectorized differ by {apart:.3g}"


def compiled_is_eager(method: Algorithm) -> None:
    """Law: compiled steps are the eager ones, also for another learning rate, and where the class is defined again."""
    other_lr = dataclasses.replace(method, lr=method.lr / 2)
    variants = {"the same values": method, "another lr": other_lr, "a class defined again": defined_again(method)}
    for name, variant in variants.items():
        played = [play(variant, "vectorized", small_world(), 3, compile=compile) for compile in (False, True)]
        apart = largest_difference(*(run.state.server for run in played))
        assert apart <= 1e-12, f"compiled is eager: with {name} their servers differ by {apart:.3g}"


def defined_again(method: Algorithm) -> Algorithm:
    """Return a method of a class with the same name, whose directions are twice as long."""
    kind = type(method)

    def correct(self: Algorithm, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return 2 * kind.correct(self, g, y, msg, client)

    again = type(kind.__name__, (kind,), {"correct": correct, "__module__": kind.__module__, "derived": True})
    return again(**init_arguments(method))  # type: ignore[no-any-return]


def small_world() -> Population:
    """Return the population of six devices of unequal size, four of which participate in a round, with a drift at round
    2."""
    rng = np.random.default_rng(5)
    sizes = (9, 12, 17, 22, 27, 33)
    x = rng.normal(size=(sum(sizes), 12))
    y = (x @ rng.normal(size=(12, 4))).argmax(1)
    lists = np.split(rng.permutation(len(x)), np.cumsum(sizes)[:-1])
    data = InMemory((torch.from_numpy(x), torch.from_numpy(y)))
    drift = SuddenDrift(round=2, p_drift=0.5)
    return Population(
        data, clients=6, participants=4, partition=[ids.tolist() for ids in lists], batch_size=4, epochs=2, drift=drift
    )


def play(
    algorithm: Algorithm,
    executor: Any,
    population: Population,
    rounds: int = 2,
    compile: Compile = False,
    **parts: Any,
) -> FederatedRun:
    """Run an algorithm with two replicas for some rounds, in silence."""
    quiet = quiet_logger("lightning.pytorch", logging.WARNING)  # a line for each run tells nothing of a law
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), quiet:
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        settings = RunSettings(seeds=(0, 44), executor=executor, compile=compile)
        run = FederatedRun(Mlp((12,), 4, hidden=5), algorithm, settings, **parts)
        run.start(population, rounds, precision="64-true")
        for _ in range(rounds):
            run.play_round()
    return run


def largest_difference(left: Any, right: Any) -> float:
    """Return the largest absolute difference between the leaves of two trees; equal infinities do not differ."""
    pairs = zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True)
    doubles = [(a.detach().double(), b.detach().double()) for a, b in pairs if a.numel()]
    return max((float(torch.where(a == b, 0.0, a - b).abs().max()) for a, b in doubles), default=0.0)


# ---- purity ------------------------------------------------------------------------------------------------------


def copied(tree: Any) -> list[torch.Tensor]:
    """Return the copies of all tensors among the leaves of a tree."""
    return [leaf.clone() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def equal_copies(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Return whether two lists of tensors are equal bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def pure(function: Any, *arguments: Any) -> Any:
    """Call a function twice, check that it leaves its arguments alone and repeats its result, and return the result."""
    before = copied(arguments)
    first = function(*arguments)
    returned = copied(first)
    name = function.__name__
    assert equal_copies(copied(arguments), before), f"purity: {name} changes its arguments: return new tensors"
    second = function(*arguments)
    assert equal_copies(copied(second), returned), (
        f"purity: {name} returns another result when called again: it draws random numbers by no key, or remembers"
    )
    assert equal_copies(copied(first), returned), f"purity: {name} writes into what it returned before"
    return first


def methods_are_pure(algorithm: Algorithm, run: FederatedRun, population: Population) -> None:
    """Law: a method's functions leave their arguments alone, remember nothing, and keep the form of states."""
    task_function, layout = run.task_function, run.task_function.layout
    server, work = take(run.state.server, 0), population.cohort(3)
    x = server.x.view(-1, layout.n)[0]
    pure(algorithm.server_init, x.expand(algorithm.starts, -1) if algorithm.starts > 1 else x, layout)
    pure(algorithm.client_init, x)
    clients = bank_rows(run, algorithm, work.jobs.client)
    client, job = take(clients, (0, 0)), take(work.jobs, (0, 0))
    msg = pure(algorithm.broadcast, server, job)
    local = pure(algorithm.local_start, msg, client, layout)
    inputs, labels = population.store.gather(work.batches.rows[0, 0, 0], work.batches.concept[0, 0])
    batch = Batch(inputs, labels, work.batches.rows[0, 0, 0] >= 0)
    grad = gradient(algorithm, task_function, msg, client)
    pure(algorithm.loss, task_function, local.y, batch, msg, client)
    pure(algorithm.correct, torch.ones_like(x), local.y, msg, client)
    for _ in range(2):
        local, _ = pure(algorithm.local_step, local, batch, grad, msg, client)
    upload, _ = pure(algorithm.local_end, local, msg, client)
    pure(algorithm.local_model, local, client)
    weights = pure(algorithm.weights, torch.tensor([3.0, 5.0], dtype=x.dtype))
    assert abs(float(weights.sum()) - 1) <= BOUND, f"weights: they must sum to 1, got {float(weights.sum()):.6g}"
    two = pytree.tree_map(lambda u: torch.stack([u, 2 * u]), upload)
    inbox = Inbox(two, weights, torch.zeros(2, dtype=torch.int64))
    after = pure(algorithm.server_step, server, inbox, take(work.round, 0))
    pure(algorithm.diagnostics, server, after, inbox)


# ---- jobs --------------------------------------------------------------------------------------------------------


def order_means_nothing(algorithm: Algorithm, kind: Any, run: FederatedRun, population: Population) -> None:
    """Law: the order of jobs changes neither their training nor the server."""
    work, order = population.cohort(3), torch.tensor([3, 2, 0, 1])
    clients = bank_rows(run, algorithm, work.jobs.client)
    executor = kind(TrainingContext(run.task_function, population.store))
    inputs = (run.state.server, clients, work.jobs, work.batches)
    before = copied(inputs)
    straight = executor.fit(algorithm, *inputs)
    assert equal_copies(copied(inputs), before), "purity: an executor changes what it is given"
    mixed = [pytree.tree_map(lambda leaf: leaf[:, order], tree) for tree in inputs[1:]]
    permuted = executor.fit(algorithm, run.state.server, *mixed)
    for field in ("uploads", "clients", "personal", "steps", "loss"):
        expected, other = getattr(straight, field), getattr(permuted, field)
        apart = largest_difference(pytree.tree_map(lambda leaf: leaf[:, order], expected), other)
        assert apart <= 1e-12, f"order of jobs: {field} differ by {apart:.3g}"
    assert (straight.down, straight.up) == (permuted.down, permuted.up), "order of jobs: traffic differs"

    def step(uploads: Any, sizes: torch.Tensor, jobs: Job) -> Any:
        weights = torch.vmap(algorithm.weights)(sizes.to(straight.loss.dtype))
        return torch.vmap(algorithm.server_step)(run.state.server, Inbox(uploads, weights, jobs.model), work.round)

    expected = step(straight.uploads, work.sizes, work.jobs)
    other = step(permuted.uploads, work.sizes[:, order], mixed[1])
    apart = largest_difference(expected, other)
    assert apart <= 1e-12, f"order of jobs: servers differ by {apart:.3g}"


# ---- uploads -----------------------------------------------------------------------------------------------------


def _received(algorithm: Algorithm, run: FederatedRun, population: Population) -> tuple[Any, Inbox, Any]:
    """Return the server, inbox and round of the first replica."""
    work = population.cohort(3)
    clients = bank_rows(run, algorithm, work.jobs.client)
    executor = Sequential(TrainingContext(run.task_function, population.store))
    uploads = executor.fit(algorithm, run.state.server, clients, work.jobs, work.batches).uploads
    weights = algorithm.weights(work.sizes[0].to(run.state.server.x.dtype))
    return take(run.state.server, 0), Inbox(take(uploads, 0), weights, work.jobs.model[0]), take(work.round, 0)


def reads_what_it_says(algorithm: Algorithm, run: FederatedRun, population: Population) -> None:
    """Law: a server without ``reads_each`` needs only the mean of uploads, as private runs show it in place of each."""
    if algorithm.asks or algorithm.oracle or algorithm.reads_each or algorithm.by_model:
        return
    if algorithm.weighting != "uniform":
        algorithm = dataclasses.replace(algorithm, weighting="uniform")
    server, inbox, round_ = _received(algorithm, run, population)
    count = len(inbox.weights)
    mean = pytree.tree_map(lambda leaf: leaf.mean(0).expand(count, *leaf.shape[1:]), inbox.uploads)
    shown = inbox, inbox._replace(uploads=mean)
    after = [algorithm.server_step(server, view, round_) for view in shown]
    diagnostics = [algorithm.diagnostics(server, new, view) for new, view in zip(after, shown, strict=True)]
    apart = max(largest_difference(*after), largest_difference(*diagnostics))
    assert apart <= BOUND, (
        f"single uploads: the server differs by {apart:.3g} when each upload is the mean "
        "of all; set reads_each = True, so that privacy refuses the method"
    )


def sums_suffice(algorithm: Algorithm, run: FederatedRun, population: Population) -> None:
    """Law: a server without ``reads_each`` steps alike on the sums of uploads, by model where it has several, and on
    all uploads, which are not kept for a large cohort."""
    if algorithm.reads_each:
        return
    server, inbox, round_ = _received(algorithm, run, population)
    collected = CollectedUploads(inbox.weights[None], inbox.model[None])
    models = len(server.x) if server.x.dim() > 1 else 1
    everybody = list(range(len(inbox.weights)))
    for part in (RoundPart(1, everybody[::2]), RoundPart(1, everybody[1::2])):
        uploads, weights, model = part.of(pytree.tree_map(lambda leaf: leaf[None], tuple(inbox)))
        collected.add(part, upload_sums(uploads, weights, model, models))
    totals = take(collected.inbox(), 0)
    after = [algorithm.server_step(server, view, round_) for view in (inbox, totals)]
    diagnostics = [algorithm.diagnostics(server, new, view) for new, view in zip(after, (inbox, totals), strict=True)]
    apart = max(largest_difference(*after), largest_difference(*diagnostics))
    assert apart <= BOUND, (
        f"sums of uploads: the server differs by {apart:.3g} when it is given no more than these; set reads_each = True"
    )


def rows_are_prepared_where_said(algorithm: Algorithm, run: FederatedRun, population: Population) -> None:
    """Law: ``prepare`` of a method without ``prepares_rows`` neither reads nor changes the devices' rows."""
    if algorithm.prepares_rows:
        return
    work = population.cohort(3)
    server, jobs, round_ = take(run.state.server, 0), take(work.jobs, 0), take(work.round, 0)
    rows = take(bank_rows(run, algorithm, work.jobs.client), 0)
    asked = {"gradient": (1, server.x.shape[-1]), None: None}.get(algorithm.asks, (len(server.x),))
    survey = None if asked is None else torch.ones(len(jobs.client), *asked, dtype=server.x.dtype)
    others = pytree.tree_map(lambda leaf: leaf + 1, rows)
    first, other = (algorithm.prepare(server, table, survey, jobs, round_) for table in (rows, others))
    apart = largest_difference((first[0], first[2], first[1], other[1]), (other[0], other[2], rows, others))
    assert apart == 0, "prepare reads or changes the devices' rows; set prepares_rows = True"


def weights_are_heeded(algorithm: Algorithm, run: FederatedRun, population: Population) -> None:
    """Law: an upload of weight 0 does not move the model of a method that weighs by examples by default."""
    usual = {field.name: field.default for field in dataclasses.fields(algorithm)}["weighting"]
    if algorithm.asks or algorithm.oracle or usual != "examples":
        return
    server, inbox, round_ = _received(algorithm, run, population)
    weights = inbox.weights.clone()
    weights[0] = 0
    inbox = inbox._replace(weights=weights / weights.sum())
    louder = pytree.tree_map(lambda leaf: torch.cat([3 * leaf[:1], leaf[1:]]), inbox.uploads)
    after = [algorithm.server_step(server, view, round_).x for view in (inbox, inbox._replace(uploads=louder))]
    apart = largest_difference(*after)
    assert apart <= BOUND, (
        f"weighted mean: an upload of weight 0 moves the model by {apart:.3g}; use inbox.mean(), or inbox.weights"
    )


# ---- rows --------------------------------------------------------------------------------------------------------


def bank_rows(run: FederatedRun, algorithm: Algorithm, clients: Tensor) -> Any:
    """Return the rows of devices clients [S, J], leaves [S, J, ...]."""
    return run.state.bank.gather(algorithm, clients, stacked(run.state.server.x)[:, 0])


def means_are_means(algorithm: Algorithm, run: FederatedRun) -> None:
    """Law: the server's fields in a method's ``means`` are the means over all devices of these fields of the rows."""
    x = stacked(run.state.server.x)[:, 0]
    everybody = torch.arange(run.population.clients).expand(len(x), -1)
    rows = run.state.bank.read(algorithm, everybody, torch.zeros_like(x)) if algorithm.means else None
    for name in algorithm.means:
        mean = getattr(rows, name).mean(1)
        apart = largest_difference(getattr(run.state.server, name), mean)
        assert apart <= BOUND * max(1.0, float(mean.abs().max())), (
            f"means: the server's {name} and the mean of the devices' differ by "
            f"{apart:.3g}; say in server_restarted and client_restarted what a new initial model means for both"
        )
