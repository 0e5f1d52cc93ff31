"""The base of every method: its hyper-parameters as fields, its mathematics as pure functions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.models import Models
from flstudy.algorithms.parts.rules import clip, sgd
from flstudy.algorithms.parts.signatures import (
    Batch,
    Gradient,
    Inbox,
    Job,
    Local,
    Loss,
    Message,
    Round,
    Rule,
    State,
    Upload,
)
from flstudy.algorithms.parts.stopping import EarlyStopping
from flstudy.hyper import check, hyper


@dataclass(frozen=True, kw_only=True)
class Algorithm(Models, EarlyStopping, ABC):
    """A federated optimizer. Server methods see one replica, device methods one job; all are pure and vmap-able.

    A method overrides what its paper changes, most often one line of ``correct`` or ``server_step``.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""
    measures: ClassVar[tuple[str, ...]] = ("server/update_norm", "server/effective_lr")
    """Names of its `diagnostics`, for `flstudy.metrics.registry`."""

    lr: float = hyper(0.05, "(0, inf)")
    """η_ℓ, learning rate of the devices."""
    momentum: float = hyper(0.0, "[0, 1)")
    """ρ of the devices' SGD; its buffer starts at zero in every round."""
    weight_decay: float = hyper(0.0, "[0, inf)")
    """λ of the devices' SGD."""
    clip_norm: float | None = hyper(None, "(0, inf)")
    """Largest L2 norm of a device's minibatch gradient, before any correction; null does not clip."""
    server_lr: float = hyper(1.0, "(0, inf)")
    """η_g, learning rate of the server."""
    weighting: Literal["examples", "uniform"] = "examples"
    """p_c of the server's mean: proportional to a device's training examples, or all equal."""

    def __post_init__(self) -> None:
        check(self)

    # ---- server ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def server_init(self, x: Tensor, layout: Layout) -> State:
        """Server state of a fresh model x [n] (x [M, n] if ``starts`` is M > 1); it has a field ``x``."""

    @abstractmethod
    def server_step(self, server: State, inbox: Inbox, round: Round) -> State:
        """The server's state after the round."""

    def weights(self, sizes: Tensor) -> Tensor:
        """p [J] of the mean over jobs whose devices hold ``sizes`` [J] training examples."""
        p = sizes if self.weighting == "examples" else torch.ones_like(sizes)
        return p / p.sum()

    def diagnostics(self, before: State, after: State, inbox: Inbox) -> dict[str, Tensor]:
        """Scalars that explain a round, logged as ``server/…``: those that ``measures`` names."""
        return {
            "update_norm": (after.x - before.x).norm(),
            "effective_lr": torch.as_tensor(self.server_lr, dtype=after.x.dtype, device=after.x.device),
        }

    # ---- device ----------------------------------------------------------------------------------------------------

    def client_init(self, x: Tensor) -> State:
        """The row of a device at its first visit, x [n] being the model it is sent then; () keeps nothing."""
        return ()

    def broadcast(self, server: State, job: Job) -> Message:
        """What is sent for one job."""
        return Message(server.x)

    def device_rule(self) -> Rule:
        """The devices' optimizer."""
        return sgd(self.lr, self.momentum, self.weight_decay)

    def device_rules(self) -> tuple[Rule, ...]:
        """The optimizers of which a device has one."""
        return (self.device_rule(),)

    def local_start(self, msg: Any, client: State, layout: Layout) -> Local:
        """The device's state before its first step."""
        return Local(msg.x, self.device_rule().init(msg.x, layout), msg.x.new_zeros(()))

    def loss(self, task: Loss, y: Any, batch: Batch, msg: Any, client: State) -> Tensor:
        """The local objective at y (flat, or as named tensors); by default the task's mean loss over the batch."""
        return task(y, batch)

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: State) -> Tensor:
        """The direction that replaces the gradient g [n] at y [n]."""
        return g

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        """One minibatch step; returns the new state and the loss [] before it."""
        g, loss = grad(local.y, batch)
        g = self.correct(clip(g, self.clip_norm), local.y, msg, client)
        step, rule = self.device_rule().update(g, local.rule, local.y)
        return Local(local.y - step, rule, local.steps + 1), loss

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Any, State]:
        """What the device returns, and the row it keeps."""
        return Upload(local.y - msg.x), client

    def personal(self, local: Local, client: State) -> Tensor:
        """The local model [n] of a participant after its work, for personalised accuracy (FLASH eq. 2)."""
        return local.y
