"""Which models a method has, and which of them a device trains and uses: one global one, unless a method says more."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flstudy.algorithms.parts.signatures import Job, Round, State


class Models:
    """What the coordinator asks a method about its models. Methods with M global models keep them as x [M, n]."""

    oracle: ClassVar[bool] = False  # True: is told the true concepts
    personalized: ClassVar[bool] = False  # True: devices use models of their own, ``deployed``
    needs: ClassVar[tuple[str, ...]] = ()  # what it asks of a task beside losses: ``features``, ``forward``

    @property
    def reads_each(self) -> bool:
        """Whether the server looks at single uploads, and not only at the mean or the sum of all."""
        return False

    @property
    def starts(self) -> int:
        """Initial models that ``server_init`` is given, each drawn by itself, as x [starts, n]; x [n] if it is 1."""
        return 1

    @property
    def jobs_per_device(self) -> int:
        """Models that a participant trains in one round."""
        return 1

    @property
    def asks(self) -> Literal["loss", "error", "gradient"] | None:
        """What devices measure of every model in use, on their training data, before a round: the survey; of a method
        with one model also its gradient."""
        return None

    def in_use(self, server: State) -> Tensor:
        """[M]: the models that are sent for a survey."""
        return torch.ones_like(server.x[..., 0], dtype=torch.bool)

    def choose(self, server: State, survey: Any, jobs: Job, round: Round) -> Tensor:
        """[J]: the model that each job's device uses, given the survey [J, M], of gradients [J, 1, n]."""
        return jobs.model

    def prepare(self, server: State, clients: State, survey: Any, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        """What the server does before a round: its state, the rows [J, ...] and the model [J] that each job trains."""
        return server, clients, self.choose(server, survey, jobs, round)

    def workload(self, server: State, jobs: Job, planned: Tensor) -> Tensor:
        """[J]: how many of the steps [J] that the world plans for each job are done, at least one."""
        return planned

    def concepts(self, model: Tensor, round: Round) -> Tensor:
        """[J]: the concept under which each job reads its data; asked of oracles only."""
        assert round.concepts is not None
        return round.concepts

    def meets(self, concepts: int) -> None:
        """Raise ValueError if the method makes no sense in a world of so many concepts."""
        return

    def deployed(self, server: State, client: State) -> Tensor:
        """The model [n] that a device uses, where the method is ``personalized``."""
        return server.x  # type: ignore[no-any-return]
