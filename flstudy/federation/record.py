"""What a round measured, and what of it follows from its fits."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from flstudy.execution import Fit
from flstudy.population import Cohort, Event


class Record(NamedTuple):
    """What one round measured."""

    round: int  # rounds done, from 1
    metrics: dict[str, list[float]]  # name -> one value per replica; those of an evaluation only where there was one
    events: tuple[Event, ...] = ()


def fit_metrics(
    cohort: Cohort, fit: Fit, asked: tuple[Tensor, Tensor], diagnostics: Mapping[str, Tensor], batch_size: int
) -> dict[str, list[float]]:
    """The metrics of a round's fits and server step.

    Args:
        cohort: the work.
        fit: its results.
        asked: bytes down and up [S] of each job's survey.
        diagnostics: the algorithm's, [S] each.
        batch_size: B, by which epochs are counted.
    """
    per_epoch = torch.div(cohort.sizes + batch_size - 1, batch_size, rounding_mode="floor")
    epochs = fit.steps.to(per_epoch.device) / per_epoch
    replicas, jobs = fit.steps.shape
    values = {
        "train/loss": fit.loss.mean(1),
        "fit/steps": fit.steps.double().mean(1),
        "fit/epochs": epochs.mean(1),
        "fit/total_epochs": epochs.sum(1),
        **{f"server/{name}": value for name, value in diagnostics.items()},
    }
    return {
        **{name: value.double().tolist() for name, value in values.items()},
        "fit/lane_utilization": [float(fit.steps.sum()) / max(fit.lane_steps, 1)] * replicas,
        "traffic/down_bytes": ((asked[0].double() + fit.down) * jobs).tolist(),
        "traffic/up_bytes": ((asked[1].double() + fit.up) * jobs).tolist(),
    }
