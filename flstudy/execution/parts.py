"""Parts of a round's jobs: how jobs are divided, trained and merged. No models are kept: uploads are added up where
they come from, unless the server reads each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm, Job
from flstudy.algorithms.parts.signatures import trained_by
from flstudy.execution.devices import forked_random
from flstudy.execution.executor import Fit
from flstudy.execution.model_evaluator import ModelEvaluator, Scores
from flstudy.execution.trees import leaves, over_leaves, take
from flstudy.population import Batches
from flstudy.privacy import clipped


class RoundPart(NamedTuple):
    """Part of a round's jobs: some of those of every replica, or all of some replicas."""

    axis: int  # 1: of jobs; 0: of replicas
    rows: list[int]

    def of(self, tree: Any) -> Any:
        """Return the part of leaves [S, J, ...]."""
        return take(tree, (slice(None), self.rows) if self.axis else self.rows)

    def of_servers(self, servers: Any) -> Any:
        """Return the part of leaves [S, ...]."""
        return servers if self.axis else take(servers, self.rows)

    def of_devices(self, tree: Any, jobs: int) -> Any:
        """Return the part of leaves [S, D, ...] of devices with ``jobs`` jobs each, all in this part."""
        return RoundPart(self.axis, [row // jobs for row in self.rows[::jobs]] if self.axis else self.rows).of(tree)


def balanced_parts(steps: Tensor, count: int, together: int = 1) -> list[RoundPart]:
    """Divide jobs of ``steps`` [S, J] into at most ``count`` parts of about equal work: the longest first, each to the
    part that has least to do. ``together`` neighbours are of one device and stay in one part."""
    replicas, devices = steps.shape[0], steps.shape[1] // together
    axis = int(devices >= min(count, replicas))
    work = (steps.sum(0).view(-1, together).sum(1) if axis else steps.sum(1)).tolist()
    loads, rows = [0] * min(count, len(work)), [list[int]() for _ in range(min(count, len(work)))]
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        least = min(range(len(loads)), key=loads.__getitem__)
        loads[least] += work[row]
        rows[least].append(row)
    jobs = together if axis else 1
    return [RoundPart(axis, [row * jobs + job for row in sorted(part) for job in range(jobs)]) for part in rows]


def cohort_parts(steps: Tensor, size: int, together: int) -> list[RoundPart]:
    """Divide jobs of ``steps`` [S, J] into parts of at most ``size``, or of one device's jobs, ``together`` neighbours:
    jobs that train equally long are in one part."""
    work = steps.sum(0).view(-1, together).sum(1)
    devices = torch.sort(work, descending=True, stable=True).indices
    count = -(-len(devices) // (size // together))
    parts = [sorted(part.tolist()) for part in torch.tensor_split(devices, count)]
    return [RoundPart(1, [device * together + job for device in part for job in range(together)]) for part in parts]


# ---- the work of a part -------------------------------------------------------------------------------------------


class ClipBound(NamedTuple):
    """Clipping bound of a private run: the largest norm of a device's upload."""

    bound: Tensor  # c [S]
    jobs_per_device: int  # whose uploads are one vector


class TestRows(NamedTuple):
    """Examples by which the participants' local models are measured: each on its own device's."""

    job: Tensor  # [S, D] which of its device's jobs trained the model
    rows: Tensor  # [S, D, V] rows of the examples, -1 for padding
    concepts: Tensor  # [S, D] under which they are read
    jobs_per_device: int

    def of(self, part: RoundPart) -> "TestRows":
        """Return the rows of a part's devices."""
        job, rows, concepts = part.of_devices((self.job, self.rows, self.concepts), self.jobs_per_device)
        return TestRows(job, rows, concepts, self.jobs_per_device)

    def to(self, device: torch.device) -> "TestRows":
        """Return a copy on a device."""
        return TestRows(self.job.to(device), self.rows.to(device), self.concepts.to(device), self.jobs_per_device)

    def scores(self, evaluator: ModelEvaluator, models: Tensor) -> Scores:
        """Return the scores [S, D] of the models [S, J, n] that all jobs ended with."""
        job = self.job + torch.arange(self.job.shape[1], device=self.job.device) * self.jobs_per_device
        models = models.gather(1, job[..., None].expand(-1, -1, models.shape[-1]))
        return evaluator.devices(models, self.rows, self.concepts)


class PartWork(NamedTuple):
    """Some of a round's jobs, with all that their training needs."""

    algorithm: Algorithm
    servers: Any  # leaves [S, ...]
    jobs: Job  # leaves [S, P]
    batches: Batches
    weights: Tensor  # p [S, P]
    models: int  # M of the server
    clip: ClipBound | None = None
    tests: TestRows | None = None


class UploadSums(NamedTuple):
    """Sums of uploads, for a server that does not read each."""

    weighted: Any  # Σ_j p_j u_j over the jobs of each model: leaves [S, M, ...]
    total: Any  # Σ_j u_j over all jobs: leaves [S, ...]


class PartResult(NamedTuple):
    """Result of the training of a part."""

    fit: Fit  # without uploads, rows and models
    uploads: Any  # their `UploadSums`, or where the server reads each, leaves [S, P, ...]
    rows: Any  # leaves [S, P, ...]
    within: Tensor | None  # [S, D] whether a device's upload was within the bound
    scores: Scores | None  # [S, D]


def train_part(fit: Callable[..., Fit], evaluator: ModelEvaluator, work: PartWork, rows: Any) -> PartResult:
    """Train a part whose devices have these rows of client state, leaves [S, P, ...].

    Raises:
        UserError: if uploads that are to be clipped are not real numbers.
    """
    local_fit = fit(work.algorithm, work.servers, rows, work.jobs, work.batches)
    scores = None
    if work.tests is not None:
        with evaluator.attached(int(work.batches.round.flatten()[0])):
            scores = work.tests.scores(evaluator, local_fit.personal)
    uploads, within = (local_fit.uploads, None) if work.clip is None else clipped(local_fit.uploads, *work.clip)
    if not work.algorithm.reads_each:
        uploads = upload_sums(uploads, work.weights, work.jobs.model, work.models)
    short = local_fit._replace(uploads=(), clients=(), personal=local_fit.personal[..., :0].clone())
    return PartResult(short, uploads, local_fit.clients, within, scores)


def upload_sums(uploads: Any, weights: Tensor, model: Tensor, models: int) -> UploadSums:
    """Return the sums of uploads, leaves [S, P, ...], with weights [S, P], each of which trained one [S, P] of M
    models."""
    p = torch.vmap(trained_by, in_dims=(0, None))(model, models) * weights[:, None]
    weighted = over_leaves(lambda u: torch.einsum("smj,sj...->sm...", p.to(u.dtype), u), uploads)
    return UploadSums(weighted, over_leaves(lambda u: u.sum(1), uploads))


def fit_by_seed(fit: Callable[..., Fit], device: torch.device, seeds: Sequence[int], *work: Any) -> Fit:
    """Fit with the random numbers of the seed, or of several seeds with each replica by itself."""

    def of_replica(replica: int, *work: Any) -> Fit:
        with forked_random(device, seeds[replica]):
            return fit(*work)

    if len(seeds) == 1:
        return of_replica(0, *work)
    algorithm, servers, *rest = work
    grid = rest[1].client.shape
    parts = [RoundPart(0, [replica]) for replica in range(grid[0])]
    fits = [of_replica(*part.rows, algorithm, part.of_servers(servers), *part.of(rest)) for part in parts]
    return merge_fits(fits, parts, grid)


# ---- together ------------------------------------------------------------------------------------------------------


def merge(parts: Sequence[RoundPart], trees: Sequence[Any]) -> Any:
    """Merge the trees of parts into one with leaves [S, J, ...]."""
    axis = parts[0].axis
    back = torch.tensor([row for part in parts for row in part.rows]).argsort()
    return pytree.tree_map(
        lambda *tensors: torch.cat(tensors, axis).index_select(axis, back.to(tensors[0].device)), *trees
    )


def merge_fits(fits: Sequence[Fit], parts: Sequence[RoundPart], grid: torch.Size) -> Fit:
    """Merge the fits of parts into the fit of all jobs."""
    if len(fits) == 1:
        return fits[0]
    merged: dict[str, Any] = {}
    for field in Fit._fields:
        values = [getattr(fit, field) for fit in fits]
        if field == "logged":
            names = dict.fromkeys(name for logged in values for name in logged)
            zeros = [fit.loss.new_zeros((*fit.loss.shape, 2)) for fit in fits]
            values = [{name: logs.get(name, zero) for name in names} for logs, zero in zip(values, zeros, strict=True)]
        if field == "lane_steps":
            merged[field] = sum(values)
        else:  # what a job sends and gets in bytes is the same everywhere
            merged[field] = values[0] if isinstance(values[0], int) else merge(parts, values)
    assert leaves(merged["loss"])[0].shape == grid
    return Fit(**merged)


def merge_devices(parts: Sequence[RoundPart], columns: Sequence[Tensor | None]) -> Tensor | None:
    """Merge parts' columns of devices into [S, D], in the order of parts; None where no part has any."""
    if columns[0] is None:
        return None
    if parts[0].axis == 0:
        return merge(parts, columns)  # type: ignore[no-any-return]
    return torch.cat(columns, 1)  # type: ignore[arg-type]
