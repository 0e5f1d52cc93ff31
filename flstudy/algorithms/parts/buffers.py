"""Buffers of a task, such as BatchNorm's running statistics, beside its parameters x: one more field of every state.

    b ← b + Σ_c p_c (b_c - b)      b_c: where the device's steps bring b;   each of several models has its own

A flat vector that is longer than x is x with buffers behind it: a gradient function that is given one returns the
gradient, and behind it the buffers after that pass. Methods themselves see x alone. Counts are averaged as real numbers
and rounded where the task reads them.

Differs: where a step takes several gradients (Apfl, Ditto, Mime), all move the same buffers, as with one module in
PyTorch.
"""

from collections import namedtuple
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.clustered import own_model
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Round, State
from flstudy.hyper import init_arguments


def with_buffers(algorithm: Algorithm, first: Tensor) -> Algorithm:
    """Return the method with a task's buffers, b [b] at first, in its states; the method itself for a task without."""
    return derived(algorithm, Buffers, first=first) if len(first) else algorithm


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


class Buffers(Wrapped):
    """Buffers that the server averages."""

    has_buffers: ClassVar[bool] = True
    averages_buffers: ClassVar[bool] = True
    first: ClassVar[Tensor]

    def initial(self, x: Tensor) -> Tensor:
        """Return b [b] at first, or [M, b] for models x [M, n]."""
        return self.first.to(x).expand(*x.shape[:-1], -1)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: Any) -> tuple[Any, Tensor]:
        b = local.buffers

        def with_b(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            nonlocal b
            gradient, loss = grad(torch.cat([y, b]), batch)
            g, b = torch.split(gradient, [len(y), len(b)])
            return g, loss

        stepped, loss = super().local_step(inner(local), batch, with_b, inner(msg), client)
        return extended(stepped, buffers=b), loss

    def in_training(self, local: Any) -> Tensor:
        return torch.cat([super().in_training(local), local.buffers], -1)

    def local_model(self, local: Any, client: Any) -> Tensor:
        return torch.cat([super().local_model(inner(local), client), local.buffers])

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
