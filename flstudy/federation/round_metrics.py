"""Metrics of a round: its fits, its traffic, the radio cell's costs and the regret of its model."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import lightning as L
import torch
from torch import Tensor

from flstudy.execution.devices import to_device
from flstudy.execution.trace_cache import TraceCache
from flstudy.federation.play_round import RoundResult
from flstudy.metrics import dynamic_regret, wireless
from flstudy.metrics.dynamic_regret import DynamicRegret, Regret
from flstudy.metrics.wireless import Wireless
from flstudy.population import Event, Population
from flstudy.user_error import UserError


class Record(NamedTuple):
    """Record of one round's measurements."""

    round: int  # rounds done, from 1
    metrics: dict[str, list[float]]  # name -> one value per replica; those of an evaluation only where there was one
    events: tuple[Event, ...] = ()
    divergence: str | None = None  # a sentence on a loss or parameter that is not finite


class RoundMetrics:
    """Measurement of rounds.

    Args:
        wireless: the radio cell, or None.
        regret: how the rounds' optima are solved for, or None.
    """

    def __init__(self, wireless: Wireless | None, regret: Regret | None) -> None:
        self.wireless, self.regret = wireless, regret
        self._dynamic_regret: DynamicRegret | None = None
        self._trace_cache = TraceCache()

    def start(self, population: Population, task: L.LightningModule) -> None:
        """Start in a settled world.

        Raises:
            UserError: where regret cannot be measured for this task.
        """
        self.population = population
        self._dynamic_regret = None if self.regret is None else DynamicRegret(self.regret, population, task)

    def __call__(
        self,
        round: int,
        x: Tensor,
        result: RoundResult,
        probes: Sequence[RoundResult],
        before: Mapping[str, Sequence[float]],
    ) -> dict[str, list[float]]:
        """Return the metrics of a round, a value per replica.

        Args:
            round: its number, from 1.
            x: [S, n], or [S, M, n] of several: the server's models after it.
            result: of the round.
            probes: of the probe rounds before it, which are paid for too.
            before: the last round's metrics.
        """
        metrics = fit_metrics(result, self.population.plan.batch_size, self._trace_cache)
        for way in ("down", "up"):
            bytes_of = [(getattr(played, way) * played.fit.steps.shape[1]).squeeze(1) for played in (result, *probes)]
            metrics[f"traffic/{way}_bytes"] = torch.stack(bytes_of).sum(0).tolist()
        if (regret := self._dynamic_regret) is not None:
            metrics |= self._metrics_or_nan(round, dynamic_regret.NAMES, lambda: regret.metrics(round, x, before))
        if (cell := self.wireless) is not None:
            played = (result, *probes)
            metrics |= self._metrics_or_nan(
                round, wireless.NAMES, lambda: self._metrics_of_cell(cell, round, x.shape[-1], played)
            )
        return metrics

    def _metrics_or_nan(
        self, round: int, names: Sequence[str], measure: Callable[[], dict[str, list[float]]]
    ) -> dict[str, list[float]]:
        """Return the metrics of ``measure``, or NaN for each of ``names`` where it raises UserError.

        A failure in a later round only warns, so that the rounds before it are not lost.

        Raises:
            UserError: where the first round cannot be measured.
        """
        try:
            return measure()
        except UserError as error:
            if round == 1:
                raise
            warnings.warn(f"{', '.join(names)} are undefined in round {round}: {error}", stacklevel=2)
            return {name: [math.nan] * len(self.population.seeds) for name in names}

    def _metrics_of_cell(
        self, cell: Wireless, round: int, parameters: int, results: Sequence[RoundResult]
    ) -> dict[str, list[float]]:
        """Return the metrics of the radio cell; the first result is the round's own."""
        costs = [
            cell.costs(
                self.population.seeds,
                round,
                result.cohort.jobs.client.cpu(),
                down=8 * result.down,
                up=8 * result.up,
                steps=result.fit.steps.cpu(),
                batch_size=self.population.plan.batch_size,
                parameters=parameters,
                repeat=repeat,
            )
            for repeat, result in enumerate(results)
        ]
        return cell.metrics(costs[0], costs[1:])


def fit_metrics(result: RoundResult, batch_size: int, trace_cache: TraceCache) -> dict[str, list[float]]:
    """Return the metrics of the local fits and of the server's step, all of which leave the device at once; epochs are
    counted by B = ``batch_size``."""
    fit, sizes, shown = result.fit, result.cohort.sizes, result.diagnostics

    def lines(losses: Tensor, steps: Tensor, sizes: Tensor, *diagnostics: Tensor) -> Tensor:
        epochs = steps / torch.div(sizes + batch_size - 1, batch_size, rounding_mode="floor")
        parts = [losses.mean(1), steps.double().mean(1), epochs.mean(1), epochs.sum(1), steps.sum().expand(len(steps))]
        return torch.stack([part.to(losses.device).double() for part in (*parts, *diagnostics)])

    steps = to_device(fit.steps, sizes.device)
    values = trace_cache(f"metrics {batch_size}", None, lines, fit.loss, steps, sizes, *shown.values()).tolist()
    names = ["train/loss", "fit/steps", "fit/epochs", "fit/total_epochs", "fit/lane_utilization"]
    metrics = dict(zip([*names, *(f"server/{name}" for name in shown)], values, strict=True))
    metrics["fit/lane_utilization"] = [done / max(fit.lane_steps, 1) for done in metrics["fit/lane_utilization"]]
    return metrics
