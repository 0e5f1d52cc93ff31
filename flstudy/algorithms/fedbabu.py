"""FedBABU (Oh et al. 2022, Alg. 1): the body is trained and averaged under a head that never moves, until the end.

    device: φ_i ← SGD on f_i(h, φ)       before round ``head_from``, h resting as it was at first;   send Δ_i = φ_i - φ
            h_i ← SGD on f_i(h_i, φ)     from then on, φ resting
    server: φ ← φ + Σ_c p_c Δ_c      p_c by examples

Laws: before ``head_from`` all heads are the initial one; from then on the body is the same in every round.
Differs: the paper fine-tunes after the last round, and by default the body as well; here the last rounds train heads,
of the devices that take part in them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from flstudy.algorithms.fedavg import FedAvg
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Round
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [n]
    t: Tensor  # [] rounds done


class Message(NamedTuple):
    x: Tensor  # [n]
    head: Tensor  # [] 1 where the head is trained, else 0


@dataclass(frozen=True, kw_only=True)
class FedBabu(FedAvg):
    """FedBABU (Oh et al. 2022): body aggregation and body update only, heads at the end."""

    citations: ClassVar[tuple[str, ...]] = ("oh2022",)

    needs_parts: ClassVar[bool] = True
    steps_by_parts: ClassVar[bool] = True
    steps_by_sgd: ClassVar[str] = "its steps move one part of the model at a time"

    head_from: int | None = hyper(None, "[1, 1e9]", at_most="rounds")
    """Round from which devices train their heads, and the body rests; null: never."""

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        return Server(x, x.new_zeros(()))

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        return server._replace(x=server.x + self.server_lr * inbox.mean().delta, t=server.t + 1)

    def broadcast(self, server: Any, job: Job) -> Any:
        begun = server.t * 0 if self.head_from is None else (server.t + 1 >= self.head_from).to(server.x.dtype)
        return Message(server.x, begun)

    def steps_parts(self, local: Any, msg: Any) -> tuple[Tensor, Tensor]:
        return msg.head > 0, msg.head == 0
