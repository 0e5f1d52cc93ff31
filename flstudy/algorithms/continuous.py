"""Continuous (device sessions: Chang et al. 2025, sec. VI): FedAvg with the last session's model as a teacher.

    z and z' are the logits of y and of the teacher x', the model with which the session before this one ended
    kl_soft: f_i(y) + κ mean_u KL(softmax z'_u ‖ softmax z_u)                       as in the authors' code
    glfc_rd: ½ L_GC + ½ L_RD, old classes being those that earlier sessions trained on     the loss that the paper cites
    server: FedAvg's; where a session begins x' ← x, before x is sent

Laws: κ = 0 is FedAvg, and so is a world of one session. Differs: before there is a teacher nothing is distilled, where
the authors' code distils from a model of zeros, and glfc_rd is L_GC alone. The teacher is sent with the model in every
round. Dong et al. also keep old examples and find task changes by themselves. Under glfc_rd the server looks at single
uploads, for the classes that each has seen: they are all kept, however large the cohort.

GLFC's loss (Dong et al. 2022, sec. 4.1 and 4.2): old classes are compensated, and their relations distilled.

L = ½ L_GC + ½ L_RD;   L_GC = mean_u w_u BCE(z_u, 1_u);   L_RD = mean_u BCE(z_u, q_u)
w_u = g_u / mean g over the batch's old classes, or its new ones;  g_u = |σ(z_u)_label - 1|, a constant
1_u is one where the label is;  q_u = 1_u, but the teacher's σ(z'_u) in the old classes
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import log_softmax

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.rules import off
from flstudy.algorithms.parts.signatures import Batch, Gradient, Inbox, Job, Layout, Loss, Round, State
from flstudy.hyper import hyper
from flstudy.user_error import UserError

SMALL = 1e-12  # of an empty group


def compensated(batch: Batch, z: Tensor, onehot: Tensor, old: Tensor) -> Tensor:
    """Return L_GC [] of logits z [B, C] and labels 1_u [B, C], given the old classes [C]."""
    group = onehot @ old  # [B] 1 for an example of an old class
    g = ((z.sigmoid() - 1).abs() * onehot).sum(-1).detach()
    mean_old, mean_new = (batch.mean(g * part) / batch.mean(part).clamp(min=SMALL) for part in (group, 1 - group))
    w = g / (group * mean_old + (1 - group) * mean_new).clamp(min=SMALL)
    return batch.mean(w * bce(z, onehot, reduction="none").mean(-1))


def distilled(batch: Batch, z: Tensor, taught: Tensor, onehot: Tensor, old: Tensor) -> Tensor:
    """Return L_RD [] of logits z [B, C], given the teacher's, ``taught`` z' [B, C], labels 1_u [B, C] and the old
    classes [C]."""
    q = torch.where(old > 0, taught.sigmoid(), onehot)
    return batch.mean(bce(z, q, reduction="none").mean(-1))


class Server(NamedTuple):
    x: Tensor  # [n]
    teacher: Tensor  # [n] x'
    session: Tensor  # [] from 0; the teacher is one from session 1 on
    old: Tensor  # [C] 1 for classes of earlier sessions; [0] under kl_soft
    seen: Tensor  # [C] and of this one


class Message(NamedTuple):
    x: Tensor  # [n]
    teacher: Tensor  # [n] x'
    taught: Tensor  # [] 1 if there is a teacher
    old: Tensor  # [C], or [0], as the server's


class Local(NamedTuple):
    y: Tensor  # [n]
    rule: State
    steps: Tensor  # []
    seen: Tensor  # [C]


class Upload(NamedTuple):
    delta: Tensor  # [n]
    seen: Tensor  # [C]


@dataclass(frozen=True, kw_only=True)
class Continuous(FedAvg):
    """Continuous (Chang et al. 2025): FedAvg with knowledge distillation from the model of the last session's end."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025", "dong2022")

    needs: ClassVar[tuple[str, ...]] = ("forward",)
    sent_models: ClassVar[tuple[str, ...]] = ("x", "teacher")
    distillation: Literal["kl_soft", "glfc_rd"] = "kl_soft"
    """The loss: the authors' code, or the one that their paper cites."""
    kappa: float = hyper(1.0, "[0, 1e12]")
    """κ of kl_soft: the authors' 1, and .5 for AG News."""
    classes: int | None = hyper(None, "[2, 1e6]")
    """C of the task, for glfc_rd."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation == "glfc_rd" and self.classes is None:
            raise UserError("Continuous: glfc_rd needs classes, the number of the task's labels, got null")

    @property
    def reads_each(self) -> bool:
        return self.distillation == "glfc_rd"

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        none = x.new_zeros(self.classes if self.distillation == "glfc_rd" and self.classes else 0)
        return Server(x, x, torch.zeros_like(x[0], dtype=torch.int64), none, none)

    def prepare(self, server: Server, clients: State, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        begins = round.session != server.session
        teacher, old = torch.where(begins, server.x, server.teacher), torch.where(begins, server.seen, server.old)
        server = server._replace(teacher=teacher, session=round.session + torch.zeros_like(server.session), old=old)
        return super().prepare(server, clients, survey, jobs, round)

    def broadcast(self, server: Server, job: Job) -> Any:
        return Message(server.x, server.teacher, (server.session > 0).to(server.x.dtype), server.old)

    def local_start(self, msg: Message, client: State, layout: Layout) -> Any:
        return Local(*super().local_start(msg, client, layout), torch.zeros_like(msg.old))

    def loss(self, task: Loss, y: Any, batch: Batch, msg: Any, client: State) -> Tensor:
        if self.distillation == "kl_soft" and off(self.kappa):
            return task(y, batch)
        z, taught = task.logits(y, batch.x), task.logits(msg.teacher, batch.x, fixed=True)
        if self.distillation == "kl_soft":
            q, p = log_softmax(taught, -1), log_softmax(z, -1)
            kl: Tensor = msg.taught * (q.exp() * (q - p)).sum(-1)
            return task(y, batch) + self.kappa * batch.mean(kl.reshape(len(kl), -1).mean(1))
        onehot = self.one_hot(batch, z.shape[-1], z.dtype)
        alone = compensated(batch, z, onehot, msg.old)
        return torch.where(msg.taught > 0, (alone + distilled(batch, z, taught, onehot, msg.old)) / 2, alone)

    def one_hot(self, batch: Batch, classes: int, dtype: torch.dtype) -> Tensor:
        """Return the labels [B, classes] of a batch.

        Raises:
            UserError: the task has another number of classes than the method was told.
        """
        if classes != self.classes:
            raise UserError(f"Continuous: classes must be those of the task, {classes}, got {self.classes}")
        return (batch.y[:, None] == torch.arange(classes, device=batch.y.device)).to(dtype)

    def local_step(self, local: Any, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Any, Tensor]:
        (stepped, loss), seen = super().local_step(local, batch, grad, msg, client), local.seen
        if self.distillation == "glfc_rd":
            here = self.one_hot(batch, len(seen), seen.dtype)
            seen = torch.maximum(seen, (here if batch.mask is None else here * batch.mask[:, None]).amax(0))
        return Local(*stepped, seen), loss

    def local_end(self, local: Any, msg: Any, client: State) -> tuple[Any, State]:
        return Upload(local.y - msg.x, local.seen), client

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        seen = torch.maximum(server.seen, inbox.uploads.seen.amax(0)) if self.reads_each else server.seen
        return server._replace(x=super().server_step(server, inbox, round).x, seen=seen)
