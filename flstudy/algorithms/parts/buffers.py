"""Buffers of a task, such as BatchNorm's running statistics, beside its parameters x: one more field of every state.

    average: b ← b + Σ_c p_c (b_c - b)      b_c: where the device's steps bring b;   each of several models has its own
    local:   b_c, and BatchNorm's weights w_c with it, stay on the device (FedBN, Li et al. 2021)

A flat vector that is longer than x is x with buffers behind it: a gradient function that is given one returns the
gradient, and behind it the buffers after that pass. Methods themselves see x alone. Counts are averaged as real numbers
and rounded where the task reads them.

Laws: one device makes ``average`` and ``local`` the same.
Differs: where a step takes several gradients (Apfl, Ditto, Mime), all move the same buffers, as with one module in
PyTorch. Under ``local`` no correction of a method (of Scaffold, FedProx) touches w_c. The server keeps the initial b
and w, for devices that never trained; the bytes of messages and uploads count w, which is not looked at.
"""

from collections import namedtuple
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.clustered import own_model
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Round, State
from flstudy.hyper import init_arguments
from flstudy.user_error import UserError


class Carried(NamedTuple):
    """Tensors that a task has beside its trained parameters."""

    buffers: Tensor  # [b] as they are at first
    normalised: Tensor  # [w] places in x of BatchNorm's weights


def with_buffers(algorithm: Algorithm, mode: str, carried: Carried) -> Algorithm:
    """Return the method with a task's buffers in its states; the method itself for a task that carries nothing.

    Raises:
        UserError: where devices cannot keep buffers of their own: they train several models, or tell their gradient at
            the global one.
    """
    name, kinds = type(algorithm).__name__, {"average": AveragedBuffers, "local": LocalBuffers}
    if mode == "freeze" or not len(carried.buffers) + (mode == "local") * len(carried.normalised):
        return algorithm
    several = algorithm.jobs_per_device > 1 or "models" in vars(algorithm)
    if mode == "local" and (several or algorithm.asks == "gradient"):
        what = "the devices train several models" if several else "the devices tell gradients at the global model"
        raise UserError(f"buffers: local makes no sense for {name}, where {what}; use average or freeze")
    compares = mode == "local" and type(algorithm).loss is not Algorithm.loss
    more = {"loss": LocalBuffers.comparing_loss} if compares else {}  # others are trained by the task's training_step
    return derived(algorithm, kinds[mode], carried=carried, **more)


def derived(algorithm: Algorithm, part: type[Any], **constants: Any) -> Algorithm:
    """Return the method with some functions wrapped by a part; its class keeps its names and fields."""
    method_class = type(algorithm)
    names = {name: getattr(method_class, name) for name in ("__module__", "__qualname__", "__doc__")}

    def reduce(self: Algorithm) -> Any:  # as a class that no module has by name
        return partial(derived, **constants), (method_class(**init_arguments(self)), part)

    more = {**names, "__reduce__": reduce, "derived": True}
    method: Algorithm = type(method_class.__name__, (part, method_class), {**more, **constants})(
        **init_arguments(algorithm)
    )
    return method


@cache
def wider(kind: Any, parts: int, names: tuple[str, ...]) -> Any:
    """Return the class of states of one kind, of ``parts`` parts, with further fields."""
    fields = getattr(kind, "_fields", tuple(f"part{number}" for number in range(parts)))
    make: Any = namedtuple
    state_class: Any = make(kind.__name__, (*fields, *names))
    state_class.inner, state_class.parts = kind, parts
    state_class.__reduce__ = lambda state: (widened, (kind, parts, names, tuple(state)))
    return state_class


def widened(kind: Any, parts: int, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Return a state with further fields, as it comes from another process."""
    return wider(kind, parts, names)(*values)


def extended(state: State, **more: Any) -> Any:
    """Return a state with further fields."""
    kind: Any = type(state)
    return wider(kind, len(state), tuple(more))(*state, *more.values())


def inner(state: Any) -> Any:
    """Return the state that was extended."""
    state_class: Any = type(state)
    parts = state[: state_class.parts]
    return state_class.inner(*parts) if hasattr(state_class.inner, "_fields") else state_class.inner(parts)


# A part stands before a method's class among the bases of a class that `derived` makes, so ``super()`` is the method.
if TYPE_CHECKING:
    from flstudy.algorithms.fedavg import FedAvg as Wrapped
else:
    Wrapped = object


class WithBuffers(Wrapped):
    """Buffers of a device, b, while it trains."""

    carried: ClassVar[Carried]

    def initial(self, x: Tensor) -> Tensor:
        """Return b [b] at first, or [M, b] for models x [M, n]."""
        return self.carried.buffers.to(x).expand(*x.shape[:-1], -1)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        b = local.buffers

        def with_b(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            nonlocal b
            gradient, loss = grad(torch.cat([y, b]), batch)
            g, b = torch.split(gradient, [len(y), len(b)])
            return g, loss

        stepped, loss = super().local_step(inner(local), batch, with_b, msg, client)
        return extended(stepped, buffers=b), loss

    def in_training(self, local: Any) -> Tensor:
        return torch.cat([super().in_training(local), local.buffers], -1)

    def personal(self, local: Any, client: Any) -> Tensor:
        return torch.cat([super().personal(inner(local), client), local.buffers])


class AveragedBuffers(WithBuffers):
    """Buffers that the server averages."""

    averages_buffers: ClassVar[bool] = True

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        server = super().server_init(x, layout)
        return extended(server, buffers=self.initial(server.x))

    def global_models(self, server: Any) -> Tensor:
        return torch.cat([super().global_models(server), server.buffers], -1)

    def prepare(self, server: Any, clients: State, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        after, clients, model = super().prepare(inner(server), clients, survey, jobs, round)
        return extended(after, buffers=server.buffers), clients, model

    def broadcast(self, server: Any, job: Job) -> Any:
        several, b = server.buffers.dim() > 1, server.buffers
        return extended(super().broadcast(inner(server), job), buffers=own_model(b, job.model) if several else b)

    def local_start(self, msg: Any, client: State, layout: Layout) -> Any:
        return extended(super().local_start(inner(msg), client, layout), buffers=msg.buffers)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        return super().local_step(local, batch, grad, inner(msg), client)

    def local_end(self, local: Any, msg: Any, client: State) -> tuple[Any, State]:
        upload, row = super().local_end(inner(local), inner(msg), client)
        return extended(upload, buffers=local.buffers - msg.buffers), row

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        buffers = inbox.of(lambda upload: upload.buffers)
        b = server.buffers
        moved = buffers.mean() if b.dim() == 1 else buffers.mean_by_model(len(b))
        return extended(super().server_step(inner(server), inbox.of(inner), round), buffers=b + moved)

    def deployed(self, server: Any, client: State) -> Tensor:
        return torch.cat([super().deployed(inner(server), client), server.buffers])


class LocalBuffers(WithBuffers):
    """Buffers and BatchNorm's weights that devices keep in their rows."""

    personalized: ClassVar[bool] = True

    def mine(self, x: Tensor, client: Any) -> Tensor:
        """Return x [n] with the device's own weights."""
        return x.index_copy(0, self.carried.normalised.to(x.device), client.weights)

    def theirs(self, x: Tensor, instead: Tensor) -> Tensor:
        """Return x [n] where devices share it, and ``instead`` [n] where they do not."""
        shared = torch.ones_like(instead, dtype=torch.bool)
        return torch.where(shared.index_fill(0, self.carried.normalised.to(x.device), False), x, instead)

    def received(self, msg: Any, client: Any) -> Any:
        """Return the message with the device's own weights in its model."""
        return msg._replace(x=self.mine(msg.x, client)) if hasattr(msg, "x") else msg

    def client_init(self, x: Tensor) -> Any:
        weights = x.index_select(0, self.carried.normalised.to(x.device))
        return extended(super().client_init(x), buffers=self.initial(x), weights=weights)

    def prepare(self, server: Any, clients: Any, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        after, rows, model = super().prepare(server, inner(clients), survey, jobs, round)
        return after, extended(rows, buffers=clients.buffers, weights=clients.weights), model

    def local_start(self, msg: Any, client: Any, layout: Layout) -> Any:
        start = super().local_start(self.received(msg, client), inner(client), layout)
        return extended(start, buffers=client.buffers)

    def comparing_loss(self, task: Any, y: Any, batch: Batch, msg: Any, client: Any) -> Tensor:
        """Return the method's own ``loss`` [] at y, flat or as named tensors, where it has one."""
        return super().loss(task, y, batch, self.received(msg, client), inner(client))

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: Any) -> Tensor:
        return self.theirs(super().correct(g, y, msg, client), g)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        return super().local_step(local, batch, grad, self.received(msg, client), inner(client))

    def local_end(self, local: Any, msg: Any, client: Any) -> tuple[Any, Any]:
        upload, row = super().local_end(inner(local), self.received(msg, client), inner(client))
        n = len(local.y)
        upload = pytree.tree_map(lambda u: self.theirs(u, torch.zeros_like(u)) if u.shape == (n,) else u, upload)
        weights = local.y.index_select(0, self.carried.normalised.to(local.y.device))
        return upload, extended(row, buffers=local.buffers, weights=weights)

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        after = super().server_step(server, inbox, round)
        return after._replace(x=self.theirs(after.x, server.x))

    def personal(self, local: Any, client: Any) -> Tensor:
        return super().personal(local, inner(client))

    def deployed(self, server: Any, client: Any) -> Tensor:
        model = super().deployed(server._replace(x=self.mine(server.x, client)), inner(client))
        return torch.cat([model, client.buffers])
