"""Tensors that devices keep: the parameters w_i and buffers b_i of x that a method's ``keeps`` names, in their rows.

    device: y ← x, and w_i, b_i in the places of its own;   Δ = y - x elsewhere;   w_i, b_i ← those of y
    server: the method's, elsewhere;   in these places, for devices that never trained,
            the initial ones (``newcomers: initial``), or Σ_c p_c w_c and Σ_c p_c b_c of the last round (``mean``)

Messages and uploads hold what is shared, and no number of the rest but under ``mean``. FedPer (Arivazhagan et al. 2019)
is FedAvg of which ``personal`` names the last layers. FedBN (Li et al. 2021) keeps BatchNorm's weights and statistics.

Laws: one device makes no difference between what is kept and what is averaged.
Differs: no correction of a method (of Scaffold, FedProx) touches w_i.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.buffers import derived, extended, inner
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Round
from flstudy.user_error import UserError


class Split:
    """Places in a flat vector, on every device where they are asked for.

    Args:
        of_devices: [w] what devices keep.
        shared: [n - w] all others.
    """

    def __init__(self, of_devices: Tensor, shared: Tensor) -> None:
        self.kept, self.shared = of_devices, shared
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}  # a copy in each step would wait for the device

    def __getstate__(self) -> dict[str, Any]:
        """Return the places without their copies, which are of this process's devices."""
        return {**vars(self), "_copies": {}}

    @classmethod
    def of(cls, layout: Layout, names: Sequence[str]) -> "Split":
        """Return the places of tensors that devices keep, by name, and of all others."""
        sizes = torch.tensor(layout.sizes, dtype=torch.int64)
        mask = torch.tensor([name in names for name in layout.names], dtype=torch.bool).repeat_interleave(sizes)
        return cls(mask.nonzero().flatten(), (~mask).nonzero().flatten())

    @property
    def n(self) -> int:
        """Length of the vector."""
        return len(self.kept) + len(self.shared)

    def places(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is kept [w] and what is shared [n - w], where ``like`` [...] lies."""
        if like.device == self.kept.device:
            return self.kept, self.shared
        if like.device not in self._copies:
            self._copies[like.device] = self.kept.to(like.device), self.shared.to(like.device)
        return self._copies[like.device]

    def mine(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Return x [n] with a device's own numbers [w] in their places."""
        return x.index_copy(0, self.places(x)[0], numbers)

    def own(self, y: Tensor) -> Tensor:
        """Return the numbers [w] of a model y [n] that a device keeps."""
        return y.index_select(0, self.places(y)[0])

    def sent(self, x: Tensor) -> Tensor:
        """Return the numbers [n - w] of a vector x [n] that are sent."""
        return x.index_select(0, self.places(x)[1])

    def whole(self, sent: Tensor) -> Tensor:
        """Return vectors [..., n] of those that were sent [..., n - w], with 0 for what devices keep."""
        return sent.new_zeros((*sent.shape[:-1], self.n)).index_copy(-1, self.places(sent)[1], sent)

    def either(self, x: Tensor, instead: Tensor) -> Tensor:
        """Return x [n] where it is shared, and ``instead`` [n] where devices keep theirs."""
        return torch.where(self.mask(x), instead, x)

    def mask(self, like: Tensor) -> Tensor:
        """Return [n]: whether devices keep the number, where ``like`` [...] lies."""
        shared = torch.ones(self.n, dtype=torch.bool, device=like.device)
        return shared.index_fill(0, self.places(like)[1], False)


class SentPart(NamedTuple):
    """Vector of which the shared numbers are sent."""

    values: Tensor  # [n - w]


def is_sent(part: Any) -> bool:
    """Return whether a part of a tree is `SentPart`."""
    return isinstance(part, SentPart)


def with_zeros(tree: Any, split: Split) -> Any:
    """Return a tree whose `SentPart` are vectors [..., n] again, with 0 for what devices keep."""
    return pytree.tree_map(lambda part: split.whole(part.values) if is_sent(part) else part, tree, is_leaf=is_sent)


def kept_names(algorithm: Algorithm, layout: Layout, buffers: Layout) -> list[str]:
    """Return the names of the trained parameters and buffers that devices keep.

    Raises:
        UserError: for a pattern that matches none, or patterns that match all parameters.
    """
    names, patterns = [*layout.names, *buffers.names], algorithm.parts_named()
    key = f"algorithm.{algorithm.names_parts}"
    module = layout.names[-1].rpartition(".")[0]
    such = f"a pattern such as {module}.*" if module else f"a name such as {layout.names[-1]}"
    if algorithm.needs_parts and not patterns:
        raise UserError(f"{key} must name parts of the model for {type(algorithm).__name__}, got none: write {such}")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            every = f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
            raise UserError(
                f"{key} must match trained parameters or buffers of the task ({every}), got {pattern!r}: write one of "
                f"them, or {such}"
            )
    matching = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    of_devices = [name for name in names if algorithm.keeps(name in matching)] if patterns else []
    if patterns and not {*layout.names} - {*of_devices}:
        raise UserError(
            f"{key} must leave something to average, but devices keep all that is trained "
            f"with {', '.join(patterns)}: use LocalOnly, or name less"
        )
    if patterns and not of_devices:
        raise UserError(
            f"{key} must leave something for devices to keep, but {', '.join(patterns)} name all that is trained: use "
            "FedAvg, or name less"
        )
    return of_devices


def with_kept(algorithm: Algorithm, parameters: Split, buffers: Split) -> Algorithm:
    """Return the method whose devices keep some parameters and buffers; the method itself where they keep none."""
    if not len(parameters.kept) + len(buffers.kept):
        return algorithm
    more: dict[str, Any] = {"averages_buffers": len(buffers.shared) > 0}
    if type(algorithm).loss is not Algorithm.loss:  # others are trained by the task's training_step
        more["loss"] = Keeping.comparing_loss
    return derived(algorithm, Keeping, parameters=parameters, statistics=buffers, **more)


# A part stands before a method's class among the bases of a class that `derived` makes, so ``super()`` is the method.
if TYPE_CHECKING:
    from flstudy.algorithms.fedavg import FedAvg as Wrapped
else:
    Wrapped = object


class Keeping(Wrapped):
    """Devices that keep parts of their model."""

    personalized: ClassVar[bool] = True
    parameters: ClassVar[Split]
    statistics: ClassVar[Split]

    # ---- what is sent ----------------------------------------------------------------------------------------------

    def narrowed(self, tree: Any) -> Any:
        """Return a message or an upload whose vectors [n] and buffers [b] are `SentPart`, without what devices keep."""

        def sent(leaf: Tensor) -> Any:
            return SentPart(self.parameters.sent(leaf)) if leaf.shape == (self.parameters.n,) else leaf

        if self.has_buffers:
            return extended(pytree.tree_map(sent, inner(tree)), buffers=SentPart(self.statistics.sent(tree.buffers)))
        return pytree.tree_map(sent, tree)

    def widened(self, tree: Any) -> Any:
        """Return a message or uploads as the method knows them, with 0 for what devices keep."""
        if not any(map(is_sent, pytree.tree_leaves(tree, is_leaf=is_sent))):
            return tree
        if self.has_buffers:
            return extended(
                with_zeros(inner(tree), self.parameters), buffers=self.statistics.whole(tree.buffers.values)
            )
        return with_zeros(tree, self.parameters)

    def received(self, msg: Any, client: Any) -> Any:
        """Return the message with the device's own numbers in its models."""
        msg = self.widened(msg)
        models = [name for name in self.sent_models if hasattr(msg, name)]
        parts = {name: self.with_own(self.parameters, getattr(msg, name), client.weights, client) for name in models}
        if self.has_buffers:
            parts["buffers"] = self.with_own(self.statistics, msg.buffers, client.statistics, client)
        return msg._replace(**parts)

    def with_own(self, split: Split, x: Tensor, numbers: Tensor, client: Any) -> Tensor:
        """Return a vector x [n] with a device's own numbers [w] in their places; those of x where it never trained."""
        if self.newcomers == "mean":
            numbers = torch.where(client.trained > 0, numbers, split.own(x))
        return split.mine(x, numbers)

    # ---- devices ---------------------------------------------------------------------------------------------------

    def client_init(self, x: Tensor) -> Any:
        trained = {"trained": x.new_zeros(())} if self.newcomers == "mean" else {}
        first = self.initial(x) if self.has_buffers else None  # type: ignore[attr-defined]  # of Buffers
        return extended(super().client_init(x), **self.own_parts(x, first), **trained)

    def own_parts(self, y: Tensor, b: Tensor | None) -> dict[str, Tensor]:
        """Return the fields of a row that hold what a device keeps of a model y [n] and its buffers b [b]."""
        statistics = {} if b is None else {"statistics": self.statistics.own(b)}
        return {**statistics, "weights": self.parameters.own(y)}

    def prepare(self, server: Any, clients: Any, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        after, rows, model = super().prepare(server, inner(clients), survey, jobs, round)
        kept_fields = {name: getattr(clients, name) for name in clients._fields[type(clients).parts :]}
        return after, extended(rows, **kept_fields), model

    def broadcast(self, server: Any, job: Job) -> Any:
        msg = super().broadcast(server, job)
        return msg if self.newcomers == "mean" else self.narrowed(msg)

    def local_start(self, msg: Any, client: Any, layout: Layout) -> Any:
        return super().local_start(self.received(msg, client), inner(client), layout)

    def comparing_loss(self, task: Any, y: Any, batch: Batch, msg: Any, client: Any) -> Tensor:
        """Return the method's own ``loss`` [] at y, flat or as named tensors, where it has one."""
        return super().loss(task, y, batch, self.received(msg, client), inner(client))

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        if hasattr(client, "weights"):  # not by ``local_step``
            msg, client = self.received(msg, client), inner(client)
        return self.parameters.either(super().correct(g, y, msg, client), g)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        msg = self.received(msg, client)
        stepped, loss = super().local_step(local, batch, grad, msg, inner(client))
        if not self.steps_by_parts:
            return stepped, loss
        steps_own, steps_shared = self.steps_parts(local, msg)
        moves = torch.where(self.parameters.mask(local.y), steps_own, steps_shared)
        y, rule = pytree.tree_map(
            lambda new, old: torch.where(moves, new, old) if new.shape == moves.shape else new,
            (stepped.y, stepped.rule),
            (local.y, local.rule),
        )
        return stepped._replace(y=y, rule=rule), loss

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Any, Any]:
        upload, row = super().local_end(local, self.received(msg, client), inner(client))
        parts = self.own_parts(local.y, local.buffers if self.has_buffers else None)
        upload = self.narrowed(upload)
        if self.newcomers == "mean":
            return extended(upload, **parts), extended(row, **parts, trained=local.y.new_ones(()))
        return upload, extended(row, **parts)

    def local_model(self, local: Any, client: Any) -> Tensor:
        return super().local_model(local, inner(client))

    # ---- server ----------------------------------------------------------------------------------------------------

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        after: Any = super().server_step(server, inbox.of(self.uploaded), round)
        if self.newcomers == "initial":
            return after._replace(x=self.parameters.either(after.x, server.x))
        mean = inbox.mean()
        parts = {"x": self.parameters.mine(after.x, mean.weights)}
        if self.has_buffers:
            parts["buffers"] = self.statistics.mine(after.buffers, mean.statistics)
        return after._replace(**parts)

    def uploaded(self, upload: Any) -> Any:
        """Return uploads as the method knows them."""
        return self.widened(inner(upload) if self.newcomers == "mean" else upload)

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        return super().diagnostics(before, after, inbox.of(self.uploaded))

    def deployed(self, server: Any, client: Any) -> Tensor:
        parts = {"x": self.with_own(self.parameters, server.x, client.weights, client)}
        if self.has_buffers:
            parts["buffers"] = self.with_own(self.statistics, server.buffers, client.statistics, client)
        return super().deployed(server._replace(**parts), inner(client))
