"""Agglomerative clustering with complete linkage, as tensor algebra that maps over replicas (FedDrift, Alg. 2)."""

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Merger(NamedTuple):
    """Distances between models, ∞ where two cannot be compared."""

    distance: Tensor  # [M, M] symmetric, ∞ on the diagonal

    @classmethod
    def of(cls, survey: Tensor, model: Tensor, in_use: Tensor) -> Self:
        """D(i, j) = max(L_ij - L_ii, L_ji - L_jj, 0), with L_ij the mean of survey [J, M] (model i) over the jobs whose
        ``model`` [J] is j. Only models in use [M] with a job are compared."""
        members = (model == torch.arange(len(in_use), device=model.device)[:, None]).to(survey.dtype)  # [M, J]
        known = in_use & (members.sum(1) > 0)
        measured = torch.where(in_use, survey, 0.0)  # what is not in use was not measured
        mean = (members @ measured).T / members.sum(1).clamp(min=1)  # [i, j]
        worse = mean - mean.diagonal()[:, None]
        comparable = known & known[:, None] & ~torch.eye(len(in_use), dtype=torch.bool, device=model.device)
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
