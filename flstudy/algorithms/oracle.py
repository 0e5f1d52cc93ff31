"""The oracle of FLASH (Panchal et al. 2023, sec. 5.1): a FedYogi model for each concept, and no doubt who lives where.

    device: trains x_k on its data under concept k, for every concept k of the world;  uses its true concept's
    server: FedYogi's step for every model

Laws: model 0 is FedYogi's of the world without drift; its traffic is M times FedYogi's.
Differs: the paper says only that it "simultaneously trains two global models, each based on the pre- and post-drift
distributions" and switches between them when the drift comes; so both are trained from the first round on, which nobody
can who does not know the future. ``ahead: false`` trains only the model of a device's present concept.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flstudy.algorithms.fedyogi import FedYogi
from flstudy.algorithms.parts.clustered import own_model
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Message, Round
from flstudy.hyper import hyper
from flstudy.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class Oracle(FedYogi):
    """Oracle (of FLASH, Panchal et al. 2023): an upper bound with one FedYogi model per concept and known concepts."""

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    oracle: ClassVar[bool] = True
    by_model: ClassVar[bool] = True

    models: int = hyper(2, "[2, 1e3]")
    """M, concepts of the world."""
    ahead: bool = True
    """Train every concept's model in every round, or only that of the devices' present concepts."""

    @property
    def jobs_per_device(self) -> int:
        return self.models if self.ahead else 1

    def meets(self, concepts: int) -> None:
        fewest = self.models if self.ahead else 2  # ahead, every model needs a concept to read the data under
        if not fewest <= concepts <= self.models:
            number = str(self.models) if fewest == self.models else f"2 to {self.models}"
            raise UserError(
                f"Oracle: the world must have {number} concepts (one for each model), got {concepts}; give the "
                f"population a drift, or set algorithm.models"
            )

    def server_init(self, x: Tensor, layout: Layout) -> Any:
        base = super().server_init(x.expand(self.models, layout.n).clone(), layout)
        return base._replace(t=x.new_zeros(self.models, 1))

    def choose(self, server: Any, survey: Any, jobs: Job, round: Round) -> Tensor:
        assert round.concepts is not None
        return round.concepts

    def prepare(self, server: Any, clients: Any, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        if not self.ahead:
            return super().prepare(server, clients, survey, jobs, round)
        return server, clients, torch.arange(len(jobs.model), device=jobs.model.device) % self.models

    def concepts(self, model: Tensor, round: Round) -> Tensor:
        return model

    def broadcast(self, server: Any, job: Job) -> Message:
        return Message(own_model(server.x, job.model))

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        stepped = self.step(server, self.mean_update(inbox))
        trained = inbox.trained(self.models)[:, None] > 0
        return type(server)(*(torch.where(trained, new, old) for new, old in zip(stepped, server, strict=True)))

    def mean_update(self, inbox: Inbox) -> Tensor:
        return inbox.mean_by_model(self.models).delta  # type: ignore[no-any-return]
