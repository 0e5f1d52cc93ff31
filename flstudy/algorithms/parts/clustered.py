"""Methods with several global models: devices train one of x_1 … x_M, and each is averaged by itself.

x_m ← x_m + η_g Σ_{j trained m} p_j Δ_j / Σ_{j trained m} p_j;   a model that nobody trained stays
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Message, Round
from flstudy.hyper import hyper


class Server(NamedTuple):
    x: Tensor  # [M, n]


def own_model(x: Tensor, model: Tensor) -> Tensor:
    """Return x_m [n] of models x [M, n] for a number m []."""
    return x.index_select(0, model.reshape(1)).squeeze(0)


@dataclass(frozen=True, kw_only=True)
class Clustered(Algorithm):
    """FedAvg with several global models."""

    by_model: ClassVar[bool] = True

    models: int = hyper(2, "[1, 1e3]")
    """M, number of global models."""

    @abstractmethod
    def choose(self, server: Any, survey: Any, jobs: Job, round: Round) -> Tensor:
        """Return [J]: the model that each job's device uses."""

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        return Server(x.reshape(-1, layout.n).expand(self.models, layout.n).clone())

    def broadcast(self, server: Any, job: Job) -> Message:
        return Message(own_model(server.x, job.model))

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        delta = inbox.mean_by_model(self.models).delta
        return server._replace(x=server.x + self.server_lr * delta)
