"""Dynamic regret of a run, logged round by round (Ganguly & Aggarwal 2024, eq. 7 and Definition 1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import ClassVar

import lightning as L
import torch
from torch import Tensor

from flstudy.hyper import Configurable, hyper
from flstudy.metrics.optimum import Optimum, RoundLoss
from flstudy.population import Population
from flstudy.user_error import UserError

SUMS = ("regret/dynamic", "world/drift")
NAMES = ("regret/round", "world/variation", *SUMS)
"""Names of a round's metrics."""


@dataclass(frozen=True, kw_only=True)
class Regret(Configurable):
    """Dynamic regret (Ganguly & Aggarwal 2024): each round's loss above that of its best model, which is solved for.

    It is meant for convex tasks whose rounds ask for the same again and again: everybody takes part, the examples stay.
    Where every round has a world of its own, every round is solved, which takes longer than its training. A task
    without an L2 term may have no minimum.

    Args:
        tolerance: largest norm of the gradient at a round's optimum.
        steps: most L-BFGS iterations by which an optimum is solved for.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    tolerance: float = hyper(1e-6, "(0, 1e12]")
    steps: int = hyper(1000, "[1, 1e9]")


class DynamicRegret:
    """Dynamic regret of one run; its sums so far are in the last round's metrics, so that it resumes exactly.

    Raises:
        UserError: for a task without losses of single examples, or devices that are chosen by their losses.
    """

    def __init__(self, settings: Regret, population: Population, task: L.LightningModule) -> None:
        if population.asks_candidates:
            raise UserError(
                "regret: a round's loss is that of the devices that train, which population.selection finds only by "
                "the models of a run: use another selection, or set regret: null"
            )
        self.settings, self.round_loss = settings, RoundLoss(population, task)

    def optimum(self, round: int) -> Optimum:
        """Return a minimum of the loss of a round (from 1); UserError where the tolerance is not reached."""
        return self.round_loss.optimum(round, self.settings.tolerance, self.settings.steps)

    def metrics(self, round: int, x: Tensor, before: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        """Return the metrics of a round, a value per replica.

        Args:
            round: its number, from 1.
            x: [S, n], or [S, 1, n], the models after it, as in sec. III: "updated during round t".
            before: the last round's metrics.

        Returns:
            ``regret/round``, F_t(x_t) - min F_t; ``world/variation``, a lower bound of Δ_t: the largest
            |F_t - F_(t-1)| at x_t and at the optima of both rounds, 0 in round 1; ``regret/dynamic`` and
            ``world/drift``, their sums since round 1.

        Raises:
            UserError: for several models, or where the tolerance is not reached.
        """
        x = x.detach().to("cpu", torch.float64)
        if x.dim() == 3 and x.shape[1] == 1:
            x = x.squeeze(1)
        if x.dim() != 2:
            raise UserError(f"regret: it is that of one global model, got {x.shape[1]} of them: leave regret out")
        best = self.optimum(round)
        moved = [0.0] * len(x)
        world = self.round_loss.world
        if round > 1 and any(world(round, s) != world(round - 1, s) for s in range(len(x))):
            earlier = self.optimum(round - 1)
            models = torch.stack([x, best.x, earlier.x], 1)
            gaps = (self.round_loss.loss(round, models) - self.round_loss.loss(round - 1, models)).abs()
            moved = gaps.max(1).values.tolist()
        suffered = (self.round_loss.loss(round, x[:, None])[:, 0] - best.loss).tolist()
        nothing = dict.fromkeys(SUMS, [0.0] * len(x))
        so_far = [(before if round > 1 else nothing)[name] for name in SUMS]
        sums = [list(map(add, earlier, now)) for earlier, now in zip(so_far, (suffered, moved), strict=True)]
        return dict(zip(NAMES, (suffered, moved, *sums), strict=True))
