"""Messages between the world, the server and the devices, and the layout of a model in a flat vector.

J jobs, K steps, B examples, M models, N devices, S replicas, n parameters. A method sees one replica, devices one job.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.user_error import UserError

State = Any  # a NamedTuple (or tuple) of tensors


class Layout(NamedTuple):
    """Names, shapes and sizes of a model's tensors, in the order in which they are concatenated to x ∈ R^n."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> "Layout":
        """Return the layout of named tensors [...], such as ``module.named_parameters()``."""
        named = list(tensors)
        return cls(
            tuple(name for name, _ in named),
            tuple(tensor.shape for _, tensor in named),
            tuple(tensor.numel() for _, tensor in named),
        )

    @property
    def n(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of the flat vector x [n], as views."""
        parts = torch.split(x, list(self.sizes))
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector [n] of named tensors."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def segments(self, device: torch.device | None = None) -> Tensor:
        """Return [n]: the number of the tensor to which each coordinate belongs."""
        return torch.repeat_interleave(
            torch.arange(len(self.sizes), device=device), torch.tensor(self.sizes, device=device)
        )


class Job(NamedTuple):
    """One unit of local work: a device training one of the server's models."""

    client: Tensor  # [J] row in the bank
    model: Tensor  # [J] which of the server's models
    per_epoch: Any = ()  # [J] minibatches in an epoch of the device's data; () where nobody trains
    key: Any = ()  # [J] of the job's random numbers in this round, see ``draws``; () where nobody trains


class Round(NamedTuple):
    """Facts of the world about a round; a pure function of (seed, index)."""

    number: Tensor  # [] from 1
    num_devices: Tensor  # [] N: devices ever known (|S|/N of SCAFFOLD, 1/N of FedDyn)
    session: Tensor  # [] 0-based stretch of rounds with one device set
    concepts: Tensor | None = None  # [J] true concepts; None unless the algorithm is an oracle


class Batch(NamedTuple):
    """B examples of one device. ``mask`` is None where every example counts."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B, ...]
    mask: Tensor | None = None  # [B] 1 for an example, 0 for padding

    def examples(self, like: Tensor) -> Tensor:
        """Return []: the number of real examples, of the type of another tensor [...]."""
        return like.new_full((), len(self.y)) if self.mask is None else self.mask.sum().to(like.dtype)

    def mean(self, values: Tensor) -> Tensor:
        """Return []: mean of values [B] over the real examples; 0 if there are none."""
        if self.mask is None:
            return values.mean()
        mask = self.mask.to(values.dtype)
        return (values * mask).sum() / mask.sum().clamp(min=1)


class Message(NamedTuple):
    """Message of the server for one job; its bytes are the downlink."""

    x: Tensor  # [n]


class Local(NamedTuple):
    """A device's model and optimizer while it trains."""

    y: Tensor  # [n]
    rule: State  # of the device's Rule
    steps: Tensor  # [] K so far


class Upload(NamedTuple):
    """Upload of a device; its bytes are the uplink."""

    delta: Tensor  # [n] y - x


class Inbox(NamedTuple):
    """The uploads of one round and replica, kept apart: ``server_step`` stays a formula over them."""

    uploads: Any  # an Upload whose leaves are [J, ...]
    weights: Tensor  # [J], sums to one
    model: Tensor  # [J]

    def mean(self) -> Any:
        """Return Σ_j p_j u_j for every leaf of the upload."""
        return pytree.tree_map(lambda u: torch.tensordot(self.weights.to(u.dtype), u, 1), self.uploads)

    def sum(self) -> Any:
        """Return Σ_j u_j for every leaf of the upload."""
        return pytree.tree_map(lambda u: u.sum(0), self.uploads)

    def trained(self, models: int) -> Tensor:
        """Return [M]: how many jobs trained each of the server's M models."""
        return self._by_model(models).sum(1)

    def mean_by_model(self, models: int) -> Any:
        """Return Σ_j p_j u_j / Σ_j p_j over each model's jobs, for every leaf [M, ...]; 0 for a model that nobody
        trained."""
        p = torch.nn.functional.normalize(self._by_model(models) * self.weights, p=1, dim=1)
        return pytree.tree_map(lambda u: torch.tensordot(p.to(u.dtype), u, 1), self.uploads)

    def of(self, part: Callable[[Any], Any]) -> "Inbox":
        """Return an inbox of a part of every upload."""
        return self._replace(uploads=part(self.uploads))

    def _by_model(self, models: int) -> Tensor:
        """Return [M, J]: 1 where the job trained the model."""
        return trained_by(self.model, models).to(self.weights.dtype)


class Totals(NamedTuple):
    """The sums of one round's uploads and replica, where these are too many to be kept: they answer a server as an
    `Inbox` does, but for single uploads."""

    weighted: Any  # Σ_j p_j u_j over the jobs of each model: an Upload whose leaves are [M, ...]
    total: Any  # Σ_j u_j over all jobs: leaves [...]
    weights: Tensor  # [J], sums to one
    model: Tensor  # [J]

    @property
    def uploads(self) -> Any:
        """Single uploads, which are not kept: reading them raises UserError."""
        raise UserError(
            "algorithm: its server reads inbox.uploads, which a cohort larger than cohort_memory does not keep: use "
            "inbox.mean() or inbox.sum(), or set reads_each = True"
        )

    def mean(self) -> Any:
        """Return Σ_j p_j u_j for every leaf of the upload."""
        return pytree.tree_map(lambda u: u[0] if len(u) == 1 else u.sum(0), self.weighted)

    def sum(self) -> Any:
        """Return Σ_j u_j for every leaf of the upload."""
        return self.total

    def trained(self, models: int) -> Tensor:
        """Return [M]: how many jobs trained each of the server's M models."""
        return trained_by(self.model, models).to(self.weights.dtype).sum(1)

    def mean_by_model(self, models: int) -> Any:
        """Return Σ_j p_j u_j / Σ_j p_j over each model's jobs, for every leaf [M, ...]; 0 for a model that nobody
        trained."""
        p = (trained_by(self.model, models) * self.weights).sum(1).clamp(min=1e-12)
        return pytree.tree_map(lambda u: u / p.to(u.dtype).view(-1, *[1] * (u.dim() - 1)), self.weighted)

    def of(self, part: Callable[[Any], Any]) -> "Totals":
        """Return the sums of a part of every upload."""
        return self._replace(weighted=part(self.weighted), total=part(self.total))


def trained_by(model: Tensor, models: int) -> Tensor:
    """Return [M, J]: whether the job trained the model, given the number [J] of each."""
    return model == torch.arange(models, device=model.device)[:, None]


class Rule(NamedTuple):
    """An optimizer. ``update(u, state, x) -> (step, state)`` turns u [n] into a step along it, which a device subtracts
    when u is a gradient, and the server adds when u is a mean update."""

    init: Callable[[Tensor, Layout], State]  # of a model x [n]
    update: Callable[[Tensor, State, Tensor], tuple[Tensor, State]]  # u [n], x [n]; a step [n]


Gradient = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]  # (y [n], batch) -> (gradient [n], loss [])


class Loss(Protocol):
    """A task at parameters y, flat [n] or as named tensors."""

    def __call__(self, y: Any, batch: Batch) -> Tensor:
        """Return [] mean loss over the batch's real examples."""

    def features(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """Return [B, d]: representations of inputs x [B, ...]; ``fixed``: of a model that does not train, in evaluation
        mode."""

    def logits(self, y: Any, x: Tensor, *, fixed: bool = False) -> Tensor:
        """Return [B, ..., classes]: logits of inputs x [B, ...]; ``fixed`` as for `features`."""
