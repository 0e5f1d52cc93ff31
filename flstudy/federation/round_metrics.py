"""What a round is measured with beside its own fits: the radio cell's costs, and the regret of its model."""

from collections.abc import Mapping, Sequence

import lightning as L
from torch import Tensor

from flstudy.federation.steps import Exchange
from flstudy.metrics.dynamic_regret import DynamicRegret, Regret
from flstudy.metrics.wireless import Wireless
from flstudy.population import Population


class RoundMetrics:
    """Those that a run asks for.

    Args:
        wireless: the radio cell, or None.
        regret: how the rounds' optima are solved for, or None.
    """

    def __init__(self, wireless: Wireless | None, regret: Regret | None) -> None:
        self.wireless, self.regret = wireless, regret
        self._dynamic_regret: DynamicRegret | None = None

    def start(self, population: Population, task: L.LightningModule) -> None:
        """In a settled world.

        Raises:
            ValueError: from a gauge that cannot measure this task.
        """
        self.population = population
        self._dynamic_regret = None if self.regret is None else self.regret.begin(population, task)

    def __call__(
        self, round: int, x: Tensor, exchanges: Sequence[Exchange], before: Mapping[str, Sequence[float]]
    ) -> dict[str, list[float]]:
        """The metrics of a round, a value per replica.

        Args:
            round: its number.
            x: [S, ...] models after it.
            exchanges: what travelled: in the round itself, then in each of its probe rounds.
            before: the last round's metrics.
        """
        metrics = {} if self._dynamic_regret is None else self._dynamic_regret.metrics(round, x, before)
        if self.wireless is None:
            return metrics
        costs = [
            self.wireless.costs(
                self.population.seeds,
                round,
                exchange.clients.cpu(),
                down=8 * exchange.down,
                up=8 * exchange.up,
                steps=exchange.steps.cpu(),
                batch_size=self.population.plan.batch_size,
                parameters=x.shape[-1],
                repeat=repeat,
            )
            for repeat, exchange in enumerate(exchanges)
        ]
        return metrics | self.wireless.metrics(costs[0], costs[1:])
