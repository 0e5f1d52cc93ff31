"""FedDrift (Jothimurugesan et al. 2023, Alg. 2): a device whose loss jumps gets a model of its own; alike models merge.

    drifts are found as in FedDrift-Eager; each device that drifts trains a new model alone for ``isolation`` rounds
    then everybody's models merge, the nearest first (complete linkage), while for two of them
        D(i, j) = max(L_ij - L_ii, L_ji - L_jj, 0) ≤ δ',   L_ij = mean l(i) over the devices that train j
    into their mean, weighted by the device-rounds that trained each

Laws: δ = ∞ is FedAvg; δ' = ∞ leaves one model that is not isolated.
Differs: as FedDrift-Eager; models that no participant trains cannot be compared, and merge in a later round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from flstudy.algorithms.feddrifteager import NEVER, FedDriftEager
from flstudy.algorithms.parts.signatures import Job, Round
from flstudy.hyper import hyper


class Merger(NamedTuple):
    """Agglomerative clustering of models with complete linkage, as tensor algebra that maps over replicas: distances
    between models, ∞ where two cannot be compared."""

    distance: Tensor  # [M, M] symmetric, ∞ on the diagonal

    @classmethod
    def of(cls, survey: Tensor, model: Tensor, in_use: Tensor) -> Self:
        """Return D(i, j) = max(L_ij - L_ii, L_ji - L_jj, 0), with L_ij the mean of survey [J, M] (model i) over the
        jobs whose ``model`` [J] is j. Only models ``in_use`` [M] with a job are compared."""
        members = (model == torch.arange(len(in_use), device=model.device)[:, None]).to(survey.dtype)  # [M, J]
        trained = in_use & (members.sum(1) > 0)
        measured = torch.where(in_use, survey, 0.0)  # what is not in use was not measured
        mean = (members @ measured).T / members.sum(1).clamp(min=1)  # [i, j]
        worse = mean - mean.diagonal()[:, None]
        comparable = trained & trained[:, None] & ~torch.eye(len(in_use), dtype=torch.bool, device=model.device)
        return cls(torch.where(comparable, torch.maximum(worse, worse.T).clamp(min=0), torch.inf))

    def merge(self, bound: float, allowed: Tensor) -> tuple[Self, tuple[Tensor, Tensor], Tensor]:
        """Merge the two nearest, if ``allowed`` [] and no farther than ``bound``.

        Returns:
            The distances after it, the two as one-hot [M] (the lower number, which stays, first), and whether they did.
        """
        models = len(self.distance)
        place = self.distance.flatten().argmin()
        number = torch.arange(models, device=place.device)
        i, j = number == place // models, number == place % models
        nearest = self.distance.min()
        near = allowed & (nearest <= bound) & (nearest < torch.inf)
        far = torch.where((i | j)[:, None], self.distance, -torch.inf).max(0).values  # the farther of the two
        joined = torch.where(i[:, None], far, torch.where(i, far[:, None], self.distance))
        joined = torch.where(j | j[:, None] | (i & i[:, None]), torch.inf, joined)
        return type(self)(torch.where(near, joined, self.distance)), (i, j), near


@dataclass(frozen=True, kw_only=True)
class FedDrift(FedDriftEager):
    """FedDrift (Jothimurugesan et al. 2023): a new model per device that drifts; clustering merges similar models."""

    citations: ClassVar[tuple[str, ...]] = ("jothimurugesan2023",)

    models: int = hyper(8, "[1, 1e3]")
    """M, most models at once."""
    every: int = hyper(10, "[1, 1e6]")
    """Rounds between two checks for drifts and for models to merge; the papers' time step."""
    merge_delta: float | None = hyper(None, "[0, inf]")
    """δ', the distance up to which models merge; null is δ."""
    isolation: int = hyper(10, "[0, 1e6]")
    """W, rounds for which a new model is its device's alone; the authors' default is one time step."""

    def open(self, server: Any, model: Tensor, drifted: Tensor, jobs: Job, round: Round) -> tuple[Any, Tensor]:
        models = list(model.unbind())
        taken = self.taken(server, model)
        for j, (wanted, client) in enumerate(zip(drifted.unbind(), jobs.client.unbind(), strict=True)):
            server, here = self.add(server, models[j], wanted, taken, round)
            until = torch.where(here, round.number + self.isolation, server.until)
            server = server._replace(owner=torch.where(here, client, server.owner), until=until)
            models[j] = torch.where(here.any(), here.to(torch.int64).argmax(), models[j])
            taken = taken | here
        return server, torch.stack(models)

    def prepare(self, server: Any, clients: Any, survey: Tensor, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        server, clients, model = super().prepare(server, clients, survey, jobs, round)
        bound = self.delta if self.merge_delta is None else self.merge_delta
        merger = Merger.of(survey, model, self.in_use(server))
        for _ in range(self.models - 1):
            merger, (i, j), near = merger.merge(bound, (round.number - 1) % self.every == 0)
            weight = server.rounds.clamp(min=1) * (i | j)
            mean = torch.tensordot((weight / weight.sum()).to(server.x.dtype), server.x, 1)
            server = server._replace(
                x=torch.where((i & near)[:, None], mean, server.x),
                used=torch.where(j & near, NEVER, server.used),
                rounds=torch.where(i & near, (server.rounds * (i | j)).sum(), server.rounds),
            )
            model = torch.where(near & j[model], i.to(torch.int64).argmax(), model)
        return server, clients, model
