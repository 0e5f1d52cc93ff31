"""A cohort in blocks of jobs, so that memory does not grow with it: uploads are added up as they come.

A block is as many jobs as train at once within a bound of bytes. Where the whole cohort is one block, nothing of this
is used; where it is not, sums are those of the whole cohort but for their rounding.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Inbox, Job, Layout
from flstudy.algorithms.parts.signatures import Totals, trained_by
from flstudy.execution import ClientBank, Fit, Scores
from flstudy.execution.sharded import Share
from flstudy.execution.trees import nbytes, over_leaves, take
from flstudy.population import Cohort, Population

COHORT_MEMORY = 2**32  # bytes of a block


class Rows(Protocol):
    """The devices' rows of a round's jobs."""

    def some(self, part: Share | None) -> Any:
        """Leaves [S, P, ...] of some of the jobs; None: of all."""

    def put(self, part: Share | None, states: Any) -> None:
        """Keep them as they are now."""


class BankRows(NamedTuple):
    """Rows in the bank: gathered when their jobs train, scattered when they are done."""

    bank: ClientBank
    algorithm: Algorithm
    clients: Tensor  # [S, J]
    x: Tensor  # [S, n] the model that first visitors are sent

    def some(self, part: Share | None) -> Any:
        """Of some jobs; rows of first visitors are made."""
        return self.bank.gather(self.algorithm, self._of(part), self.x)

    def put(self, part: Share | None, states: Any) -> None:
        """Write them back."""
        self.bank.scatter(self._of(part), states)

    def _of(self, part: Share | None) -> Tensor:
        return self.clients if part is None else part.of(self.clients)


class FirstRows(NamedTuple):
    """Rows of devices that nobody will meet again: those of a first visit."""

    algorithm: Algorithm
    x: Tensor  # [S, n]
    jobs: int  # J

    def some(self, part: Share | None) -> Any:
        """Of some jobs, all the same."""
        return first_rows(self.algorithm, self.x, self.jobs if part is None else len(part.rows))

    def put(self, part: Share | None, states: Any) -> None:
        """Nothing of them stays."""


def first_rows(algorithm: Algorithm, x: Tensor, jobs: int) -> Any:
    """The rows [S, J, ...] of so many first visitors, given the models x [S, n]; they take the memory of one."""
    rows = torch.vmap(algorithm.client_init)(x)
    return over_leaves(lambda leaf: leaf[:, None].expand(-1, jobs, *leaf.shape[1:]), rows)


class JobBytes(NamedTuple):
    """Bytes of one replica's job: of models and states, not of what a network's layers say of an example."""

    training: int  # while it trains
    kept: int  # of what of it is kept until the end of the round


def job_bytes(algorithm: Algorithm, server: Any, layout: Layout) -> JobBytes:
    """Of every job of a method, whose server is given, leaves [S, ...]."""
    server, nothing = take(server, 0), torch.zeros((), dtype=torch.int64, device=server.x.device)
    x, job = server.x.view(-1, server.x.shape[-1])[0], Job(nothing, nothing, nothing + 1)
    with torch.no_grad():
        row, msg = algorithm.client_init(x), algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, row, layout)
        upload, _ = algorithm.local_end(local, msg, row)
    moved = nbytes(msg, 1) + 2 * sum(nbytes(each, 1) for each in (row, local, upload))
    kept = nbytes(upload, 1) * algorithm.reads_each + nbytes(row, 1) * algorithm.prepares_rows
    return JobBytes(moved + 3 * local.y.numel() * local.y.element_size(), kept)  # gradient, step, local model


def jobs_at_once(algorithm: Algorithm, server: Any, layout: Layout, population: Population, memory: int) -> int:
    """How many jobs of a replica train at once within so many bytes; those of one device always do."""
    replicas, each = len(server.x), algorithm.jobs_per_device
    size = job_bytes(algorithm, server, layout)
    jobs = min(population.participants, population.clients) * each
    if (whole := replicas * jobs * size.kept) > memory:
        warnings.warn(
            f"{type(algorithm).__name__} looks at single devices: {replicas * jobs} jobs of {size.kept / 1e6:.3g} MB "
            f"keep {whole / 1e9:.3g} GB in memory; take fewer participants, or a method that needs only sums",
            stacklevel=2,
        )
    return max(1, memory // max(1, replicas * each * size.training)) * each


def cohort_parts(cohort: Cohort, size: int, together: int) -> list[Share]:
    """The jobs of a cohort in parts of at most ``size``, or of one device's jobs, ``together`` of which are neighbours:
    those that train for as long in one part."""
    steps = cohort.batches.steps.sum(0).unflatten(0, (-1, together)).sum(1)
    devices = torch.sort(steps, descending=True, stable=True).indices
    count = -(-len(devices) // (size // together))
    parts = [sorted(part.tolist()) for part in torch.tensor_split(devices, count)]
    return [Share(1, [device * together + job for device in part for job in range(together)]) for part in parts]


def of_part(cohort: Cohort, part: Share) -> Cohort:
    """Some jobs of a cohort."""
    given = (cohort.jobs, cohort.sizes, cohort.batches, cohort.devices)
    jobs, sizes, batches, devices = over_leaves(lambda leaf: leaf[:, part.rows], given)
    concepts = cohort.round.concepts
    world = cohort.round if concepts is None else cohort.round._replace(concepts=concepts[:, part.rows])
    return Cohort(jobs, sizes, batches, world, devices)


class Collected:
    """The uploads of a round's parts: their sums, or where a server reads each, all of them.

    Args:
        weights: p [S, J].
        model: [S, J] that each job trains.
        models: M.
        each: whether to keep single uploads.
    """

    def __init__(self, weights: Tensor, model: Tensor, models: int, each: bool) -> None:
        self.weights, self.model, self.models, self.each = weights, model, models, each
        self.order: list[int] = []
        self.kept: list[Any] = []
        self.sums: Any = None  # weighted, total

    def add(self, part: Share, uploads: Any) -> None:
        """Uploads of some jobs, leaves [S, P, ...]."""
        self.order += part.rows
        if self.each:
            self.kept.append(uploads)
            return
        p = torch.vmap(trained_by, in_dims=(0, None))(part.of(self.model), self.models) * part.of(self.weights)[:, None]
        weighted = over_leaves(lambda u: torch.einsum("smj,sj...->sm...", p.to(u.dtype), u), uploads)
        sums = weighted, over_leaves(lambda u: u.sum(1), uploads)
        self.sums = sums if self.sums is None else over_leaves(torch.Tensor.add_, self.sums, sums)

    def inbox(self) -> Inbox | Totals:
        """What the server is given, leaves [S, ...]."""
        if not self.each:
            weighted, total = self.sums
            return Totals(weighted, total, self.weights, self.model)
        back = torch.tensor(self.order).argsort().to(self.weights.device)
        whole = over_leaves(lambda *parts: torch.cat(parts, 1).index_select(1, back), *self.kept)
        return Inbox(whole, self.weights, self.model)


def without_models(fit: Fit) -> Fit:
    """What of a part's fits stays until the end of the round: numbers, but no model."""
    return fit._replace(uploads=(), clients=(), personal=fit.personal[..., :0].clone())


def joined_scores(parts: Sequence[Scores]) -> Scores:
    """Scores [S, D] of the devices of several parts."""
    columns = zip(*parts, strict=True)
    return Scores(*(None if column[0] is None else torch.cat(column, 1) for column in columns))  # type: ignore
