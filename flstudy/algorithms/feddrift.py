"""FedDrift (Jothimurugesan et al. 2023, Alg. 2): a device whose loss jumps gets a model of its own; alike models merge.

    drifts are found as in FedDrift-Eager; each device that drifts trains a new model alone for ``isolation`` rounds
    then everybody's models merge, the nearest first (complete linkage), while for two of them
        D(i, j) = max(L_ij - L_ii, L_ji - L_jj, 0) ≤ δ',   L_ij = mean l(i) over the devices that train j
    into their mean, weighted by the device-rounds that trained each

Laws: δ = ∞ is FedAvg; δ' = ∞ leaves one model that is not isolated.
Differs: as FedDrift-Eager; models that no participant trains cannot be compared, and merge in a later round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flstudy.algorithms.feddrifteager import NEVER, FedDriftEager
from flstudy.algorithms.parts.merging import Merger
from flstudy.algorithms.parts.signatures import Job, Round
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class FedDrift(FedDriftEager):
    """Opens a model for every device that signals a drift, and merges models that have become alike."""

    citations: ClassVar[tuple[str, ...]] = ("jothimurugesan2023",)

    models: int = hyper(8, "[1, inf)")
    """M, most models at once."""
    every: int = hyper(10, "[1, inf)")
    """Rounds between two looks for drifts and for models to merge; the papers' time step."""
    merge_delta: float | None = hyper(None, "[0, inf]")
    """δ', the distance up to which models merge; null is δ."""
    isolation: int = hyper(10, "[0, inf)")
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
