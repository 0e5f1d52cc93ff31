"""Blocks of a cohort's jobs, which bound the memory of a round: the uploads of each block are added to a running sum.

A block holds as many jobs as fit into a bound of bytes when they train at once. A cohort that fits into one block is
trained whole. Otherwise the sums equal those of the whole cohort up to rounding. This module also holds the sources
from which a round reads its jobs' rows of client state.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Inbox, Job, Layout
from flstudy.algorithms.parts.signatures import Totals
from flstudy.execution import ClientBank
from flstudy.execution.bank import Fetch
from flstudy.execution.parts import RoundPart, UploadSums, merge
from flstudy.execution.places import Rows
from flstudy.execution.trees import leaves, nbytes, over_leaves, take
from flstudy.population import Population


class BankRows(NamedTuple):
    """Rows in the bank: gathered when their jobs train, scattered when they are done."""

    bank: ClientBank
    algorithm: Algorithm
    clients: Tensor  # [S, J]
    x: Tensor  # [S, n] the model that first visitors are sent

    def gather(self, part: RoundPart | None) -> Any:
        """Gather the rows of some jobs, leaves [S, P, ...]; rows of first visitors are made."""
        clients, replicas, x = self._of(part)
        return self.bank.gather(self.algorithm, clients, x, replicas)

    def scatter(self, part: RoundPart | None, states: Any) -> None:
        """Write the rows of some jobs back, leaves [S, P, ...]."""
        clients, replicas, _ = self._of(part)
        self.bank.scatter(clients, states, replicas)

    def lend(self, part: RoundPart) -> tuple[Tensor | None, list[Any]]:
        """Return the models [S, n] that first visitors are sent, and the rows as `ClientBank.lend` returns them."""
        clients, replicas, x = self._of(part)
        return x, self.bank.lend(self.algorithm, clients, x, replicas)

    def leave(self, part: RoundPart, lying: Sequence[Any], fetch: Fetch) -> None:
        """Leave the rows where they are, as `ClientBank.leave` does."""
        clients, replicas, x = self._of(part)
        self.bank.leave(self.algorithm, clients, x, lying, fetch, replicas)

    def _of(self, part: RoundPart | None) -> tuple[Tensor, list[int] | None, Tensor]:
        if part is None:
            return self.clients, None, self.x
        return part.of(self.clients), None if part.axis else part.rows, part.of_servers(self.x)


class FirstRows(NamedTuple):
    """Rows of devices that nobody will meet again: rows of a first visit."""

    algorithm: Algorithm
    x: Tensor  # [S, n]
    jobs: int  # J

    def gather(self, part: RoundPart | None) -> Any:
        """Return the rows of some jobs, leaves [S, P, ...], those of a replica equal."""
        if part is None or part.axis == 0:
            return first_rows(self.algorithm, self.x if part is None else part.of_servers(self.x), self.jobs)
        return first_rows(self.algorithm, self.x, len(part.rows))

    def scatter(self, part: RoundPart | None, states: Any) -> None:
        """Discard the rows."""

    def lend(self, part: RoundPart) -> tuple[Tensor | None, list[Any]]:
        """Return the models [S, n], and no rows: all are made where they train."""
        x, jobs = part.of_servers(self.x), len(part.rows) if part.axis else self.jobs
        return x, [None] * (len(x) * jobs if leaves(self.algorithm.client_init(x[0])) else 0)

    def leave(self, part: RoundPart, lying: Sequence[Any], fetch: Fetch) -> None:
        """Discard the rows."""


class PreparedRows(NamedTuple):
    """Rows that a server's ``prepare`` read or changed, which are here.

    Args:
        rows: where they are kept.
        states: leaves [S, J, ...].
    """

    rows: Rows
    states: Any

    def gather(self, part: RoundPart | None) -> Any:
        """Return the rows of some jobs, leaves [S, P, ...]."""
        return self.states if part is None else part.of(self.states)

    def scatter(self, part: RoundPart | None, states: Any) -> None:
        """Write the rows of some jobs back."""
        self.rows.scatter(part, states)

    def lend(self, part: RoundPart) -> tuple[Tensor | None, list[Any]]:
        """Return no models, since no device is a first visitor any more, and of each row its leaves [...]."""
        flat = [leaf.flatten(0, 1) for leaf in leaves(part.of(self.states))]
        return None, [tuple(leaf[row] for leaf in flat) for row in range(len(flat[0]) if flat else 0)]

    def leave(self, part: RoundPart, lying: Sequence[Any], fetch: Fetch) -> None:
        """Leave the rows where they are."""
        self.rows.leave(part, lying, fetch)


def first_rows(algorithm: Algorithm, x: Tensor, jobs: int) -> Any:
    """Return the rows [S, J, ...] of ``jobs`` first visitors with models x [S, n]; they take the memory of one."""
    rows = torch.vmap(algorithm.client_init)(x)
    return over_leaves(lambda leaf: leaf[:, None].expand(-1, jobs, *leaf.shape[1:]), rows)


class JobBytes(NamedTuple):
    """Bytes of one replica's job: of models and states, not of a network's activations."""

    training: int  # while it trains
    until_end: int  # of its part that stays until the end of the round
    down: int  # of the server's message
    up: int  # of the device's


def job_bytes(algorithm: Algorithm, server: Any, layout: Layout) -> JobBytes:
    """Return the bytes of a method's job, whose server has leaves [S, ...]."""
    server, zero = take(server, 0), torch.zeros((), dtype=torch.int64, device=server.x.device)
    x, job = server.x.view(-1, server.x.shape[-1])[0], Job(zero, zero, zero + 1, zero)
    with torch.no_grad():
        row, msg = algorithm.client_init(x), algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, row, layout)
        upload, _ = algorithm.local_end(local, msg, row)
    moved = nbytes(msg, 1) + 2 * sum(nbytes(tree, 1) for tree in (row, local, upload))
    until_end = nbytes(upload, 1) * algorithm.reads_each + nbytes(row, 1) * algorithm.prepares_rows
    training = moved + 3 * local.y.numel() * local.y.element_size()  # gradient, step, local model
    return JobBytes(training, until_end, nbytes(msg, 1), nbytes(upload, 1))


def jobs_at_once(algorithm: Algorithm, server: Any, layout: Layout, population: Population, memory: int) -> int:
    """Return the number of jobs of a replica that train at once within ``memory`` bytes; those of one device always
    do."""
    replicas, per_device = len(server.x), algorithm.jobs_per_device
    size = job_bytes(algorithm, server, layout)
    jobs = min(population.participants, population.clients) * per_device
    if (needed := replicas * jobs * size.until_end) > memory:
        warnings.warn(
            f"{type(algorithm).__name__} looks at single devices: {replicas * jobs} jobs of {size.until_end / 1e6:.3g} "
            f"MB keep {needed / 1e9:.3g} GB in memory; take fewer participants, or a method that needs only sums",
            stacklevel=2,
        )
    return max(1, memory // max(1, replicas * per_device * size.training)) * per_device


class CollectedUploads:
    """Uploads of a round's parts: their sums, or where a server reads each, all of them.

    Args:
        weights: p [S, J].
        model: [S, J] that each job trains.
    """

    def __init__(self, weights: Tensor, model: Tensor) -> None:
        self.weights, self.model = weights, model
        self.parts: list[RoundPart] = []  # whose uploads are not in the running sum
        self.uploads: list[Any] = []  # of each of these parts, or where it holds all jobs of some replicas, their sums
        self.sums: UploadSums | None = None

    def add(self, part: RoundPart, uploads: Any) -> None:
        """Add the uploads of some jobs, leaves [S, P, ...], or their sums."""
        if part.axis == 1 and isinstance(uploads, UploadSums):
            self.sums = uploads if self.sums is None else over_leaves(torch.Tensor.add_, self.sums, uploads)
            return
        self.parts.append(part)
        self.uploads.append(uploads)

    def inbox(self) -> Inbox | Totals:
        """Return the server's inbox, or sums in its place, leaves [S, ...]."""
        uploads = merge(self.parts, self.uploads) if self.sums is None else self.sums
        if isinstance(uploads, UploadSums):
            return Totals(*uploads, self.weights, self.model)
        return Inbox(uploads, self.weights, self.model)
