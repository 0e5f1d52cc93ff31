"""The base of every method: its hyper-parameters as fields, its mathematics as pure functions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms.parts.rules import clip, sgd
from flstudy.algorithms.parts.signatures import (
    Batch,
    Gradient,
    Inbox,
    Job,
    Layout,
    Local,
    Loss,
    Message,
    Round,
    Rule,
    State,
    Upload,
)
from flstudy.hyper import Configurable, hyper
from flstudy.user_error import UserError


class Models:
    """Properties of a method's models, for the coordinator. Methods with M global models keep them as x [M, n]."""

    oracle: ClassVar[bool] = False  # True: is told the true concepts
    personalized: ClassVar[bool] = False  # True: devices use models of their own, ``deployed``
    needs: ClassVar[tuple[str, ...]] = ()  # what it asks of a task beside losses: ``features``, ``forward``
    steps_by_sgd: ClassVar[str] = ""  # why its mathematics holds for SGD steps of devices only; empty: it does not
    steps_by_torch: ClassVar[bool] = False  # True: devices step by an optimizer of torch, which nothing maps
    has_buffers: ClassVar[bool] = False  # True: its states hold BatchNorm's statistics and the like
    averages_buffers: ClassVar[bool] = False  # True: devices upload BatchNorm's statistics and the like, too
    by_model: ClassVar[bool] = False  # True: the server asks for means of each model's uploads
    prepares_rows: ClassVar[bool] = False  # True: ``prepare`` reads or changes the devices' rows
    copies_models: ClassVar[bool] = False  # True: the server begins a model as a copy, or as the mean, of others
    sent_models: ClassVar[tuple[str, ...]] = ("x",)  # fields of its messages that are models
    derived: ClassVar[bool] = False  # True: the class was made of a method's while a run was set up

    @property
    def reads_each(self) -> bool:
        """Return whether the server reads single uploads, and not only means and sums of them. For other methods the
        uploads of a large cohort are added up as they come."""
        return False

    @property
    def starts(self) -> int:
        """Number of initial models that ``server_init`` gets, each drawn by itself, as x [starts, n]; x [n] if 1."""
        return 1

    @property
    def jobs_per_device(self) -> int:
        """Number of models that a participant trains in one round."""
        return 1

    @property
    def asks(self) -> Literal["loss", "error", "gradient"] | None:
        """The survey: the measure that devices take of every model in use, on their training data, before a round; for
        a method with one model also its gradient."""
        return None

    def in_use(self, server: State) -> Tensor:
        """Return [M]: the models that are sent for a survey."""
        return torch.ones_like(server.x.reshape(-1, server.x.shape[-1])[:, 0], dtype=torch.bool)

    def choose(self, server: State, survey: Any, jobs: Job, round: Round) -> Tensor:
        """Return [J]: the model that each job's device uses, given the survey [J, M], of gradients [J, 1, n]."""
        return jobs.model

    def prepare(self, server: State, clients: State, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        """Return the server's state before a round, the rows [J, ...] and the model [J] that each job trains.

        A survey of gradients [J, 1, n] holds their mean, by the method's weights, in the place of each.
        """
        return server, clients, self.choose(server, survey, jobs, round)

    def workload(self, server: State, jobs: Job, planned: Tensor) -> Tensor:
        """Return [J]: the number of steps that each job does, at least one, of the ``planned`` ones [J] of the
        world."""
        return planned

    def concepts(self, model: Tensor, round: Round) -> Tensor:
        """Return [J]: the concept under which each job reads its data, given its model [J]; asked of oracles only."""
        assert round.concepts is not None
        return round.concepts

    def meets(self, concepts: int) -> None:
        """Raise UserError if the method makes no sense in a world of ``concepts`` concepts."""
        return

    def global_models(self, server: State) -> Tensor:
        """Return the server's models as devices use them, [n] or [M, n]: x, and behind it any buffers."""
        return server.x  # type: ignore[no-any-return]

    def deployed(self, server: State, client: State) -> Tensor:
        """Return the model [n] that a device uses between rounds, and that is judged, where the method is
        ``personalized``."""
        return server.x  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Early stopping of a device's training, by the loss on its own validation examples."""

    gamma: float | None = hyper(None, "[0, 1e12]")
    """γ of FLASH's early stopping (Alg. 1 line 7). A device goes on after epoch e only if its validation loss fell by
    γ/e or more. Null trains all epochs. Experience: .03 to .05 with mean losses."""
    first_epoch: Literal["inf", "eval_received"] = "inf"
    """Validation loss before epoch 1: infinite (the first test always passes), or that of the received model."""
    valid_loss: Literal["mean", "sum"] = "mean"
    """Mean over the device's validation examples, or their sum, as FLASH prints line 9."""

    def goes_on(self, epoch: Tensor, previous: Tensor, current: Tensor) -> Tensor:
        """Return [...]: whether a device trains on after ``epoch`` [...] (from 1), given its validation losses [...]
        before and after that (FLASH, Alg. 1 line 7)."""
        assert self.gamma is not None
        return previous - current >= self.gamma / epoch


@dataclass(frozen=True, kw_only=True)
class PersonalParts:
    """Parts of a model that devices keep, and the part that a step is of."""

    names_parts: ClassVar[str] = "personal"  # the field that names parts
    needs_parts: ClassVar[bool] = False  # True: the method makes no sense without them
    steps_by_parts: ClassVar[bool] = False  # True: ``steps_parts`` says which part a step moves

    personal: tuple[str, ...] = ()
    """Names of the parameters and buffers that devices keep, such as head.*; all others are averaged (FedPer)."""
    newcomers: Literal["initial", "mean"] = "initial"
    """Parts that devices keep, where one comes late: the initial ones, or the mean of the last participants', which are
    then sent as well."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if callable(vars(cls).get("personal")):
            raise UserError(
                f"algorithm: {cls.__name__}.personal is called local_model now, rename it: personal is a key"
            )

    def parts_named(self) -> tuple[str, ...]:
        """Return the patterns of names by which the model is divided."""
        return self.personal

    def keeps(self, named: bool) -> bool:
        """Return whether devices keep a tensor, given whether a pattern names it."""
        return named

    def steps_parts(self, local: Any, msg: Any) -> tuple[Tensor, Tensor]:
        """Return two []: whether the next step moves what the device keeps, and whether it moves the rest."""
        moves = torch.ones_like(local.steps, dtype=torch.bool)
        return moves, moves


@dataclass(frozen=True, kw_only=True)
class Algorithm(Models, EarlyStopping, PersonalParts, Configurable, ABC):
    """Base of federated optimizers. Server methods see one replica, device methods one job; all are pure and vmap-able.

    A method overrides what its paper changes, most often one line of ``correct`` or ``server_step``.
    """

    means: ClassVar[tuple[str, ...]] = ()
    """Fields of the server's state that are in every round the means over all devices (0 for those never seen) of the
    fields of the same names of their rows."""
    measures: ClassVar[tuple[str, ...]] = ("server/update_norm", "server/effective_lr")
    """Names of its `diagnostics`, for `flstudy.metrics.registry`."""

    lr: float = hyper(0.05, "(0, 1e12]")
    """η_ℓ, learning rate of the devices."""
    momentum: float = hyper(0.0, "[0, 1)")
    """ρ of the devices' SGD; its buffer starts at zero in every round."""
    weight_decay: float = hyper(0.0, "[0, 1e12]")
    """λ of the devices' SGD."""
    clip_norm: float | None = hyper(None, "(0, 1e12]")
    """Largest L2 norm of a device's minibatch gradient, before any correction; null does not clip."""
    server_lr: float = hyper(1.0, "(0, 1e12]")
    """η_g, learning rate of the server."""
    weighting: Literal["examples", "uniform"] = "examples"
    """p_c of the server's mean: proportional to a device's training examples, or all equal."""

    # ---- server ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def server_init(self, x: Tensor, layout: Layout) -> State:
        """Return the server state of a fresh model x [n] (x [M, n] if ``starts`` is M > 1); it has a field ``x``."""

    @abstractmethod
    def server_step(self, server: State, inbox: Inbox, round: Round) -> State:
        """Return the server's state after the round."""

    def server_restarted(self, server: State, x: Tensor, layout: Layout) -> State:
        """Return the server state in which training goes on from a new initial model x, shaped as for `server_init`.

        The devices' rows are what `client_restarted` makes of them; by default all is new but the means of rows.
        """
        return self.resumed(self.server_init(x, layout), server)

    def resumed(self, server: State, running: State) -> State:
        """Return the state of a server that stood still while the devices worked for the one that is ``running``."""
        return server._replace(**{name: getattr(running, name) for name in self.means}) if self.means else server

    def weights(self, sizes: Tensor) -> Tensor:
        """Return p [J] of the mean over jobs whose devices hold ``sizes`` [J] training examples."""
        p = sizes if self.weighting == "examples" else torch.ones_like(sizes)
        return p / p.sum()

    def diagnostics(self, before: State, after: State, inbox: Inbox) -> dict[str, Tensor]:
        """Return the scalars [] that explain a round, logged as ``server/…``: those that ``measures`` names."""
        return {
            "update_norm": (after.x - before.x).norm(),
            "effective_lr": after.x.new_full((), self.server_lr),
        }

    # ---- device ----------------------------------------------------------------------------------------------------

    def client_init(self, x: Tensor) -> State:
        """Return the row of a device at its first visit, x [n] being the model it is sent then; () keeps nothing."""
        return ()

    def client_restarted(self, client: State, x: Tensor) -> State:
        """Return the row of a device when training goes on from a new initial model x [n]; by default it stays."""
        return client

    def broadcast(self, server: State, job: Job) -> Message:
        """Return the message that is sent for one job."""
        return Message(server.x)

    def device_rule(self) -> Rule:
        """Return the devices' optimizer."""
        return sgd(self.lr, self.momentum, self.weight_decay)

    def device_rules(self) -> tuple[Rule, ...]:
        """Return the optimizers of which a device has one."""
        return (self.device_rule(),)

    def local_start(self, msg: Any, client: State, layout: Layout) -> Local:
        """Return the device's state before its first step."""
        return Local(msg.x, self.device_rule().init(msg.x, layout), msg.x.new_zeros(()))

    def loss(self, task: Loss, y: Any, batch: Batch, msg: Any, client: State) -> Tensor:
        """Return the local objective [] at y, flat [n] or as named tensors; by default the task's mean loss over the
        batch."""
        return task(y, batch)

    def correct(self, g: Tensor, y: Tensor, msg: Any, client: State) -> Tensor:
        """Return the direction that replaces the gradient g [n] at y [n]."""
        return g

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        """Take one minibatch step; returns the new state and the loss [] before it."""
        g, loss = grad(local.y, batch)
        g = self.correct(clip(g, self.clip_norm), local.y, msg, client)
        step, rule = self.device_rule().update(g, local.rule, local.y)
        return Local(local.y - step, rule, local.steps + 1), loss

    def local_end(self, local: Local, msg: Any, client: State) -> tuple[Any, State]:
        """Return the upload that the device returns, and the row that it keeps."""
        return Upload(local.y - msg.x), client

    def in_training(self, local: Local) -> Tensor:
        """Return the model [n] as it is while the device trains, to be measured: y, and behind it any buffers."""
        return local.y

    def local_model(self, local: Local, client: State) -> Tensor:
        """Return the local model [n] of a participant after its work, for personalised accuracy (FLASH eq. 2)."""
        return local.y


def rule_memory(rule: Rule, layout: Layout, dtype: torch.dtype = torch.float32) -> int:
    """Return the bytes of a rule's state for a model of this layout; nothing is allocated."""
    state = rule.init(torch.empty(layout.n, dtype=dtype, device="meta"), layout)
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(state))


def device_memory(algorithm: Algorithm, layout: Layout, dtype: torch.dtype = torch.float32) -> int:
    """Return the bytes of the state of a method's device optimizer: 0 for plain SGD, 4 n for AdaGrad in single
    precision, the lengths of all axes for SM3 (the column "Memory" of FedAda², Table 2, less the d of the model
    itself). Where devices differ, the most that one of them keeps."""
    return max(rule_memory(rule, layout, dtype) for rule in algorithm.device_rules())
