"""Divergence of a run: a loss or a parameter that is not finite. A measure of a module's own is undefined instead."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from flstudy.federation.asked_devices import stacked

if TYPE_CHECKING:
    from flstudy.federation.federated_run import FederatedRun

FINITE = ("train/loss", "valid/loss", "test/loss", "server/update_norm")
"""Metrics that are not finite where a loss or a parameter is not: NaN and infinity are in no sum of finite numbers."""


def has_diverged(metrics: Mapping[str, Sequence[float]]) -> bool:
    """Return whether a loss or a parameter of any replica is not finite, by a round's metrics, a value per replica."""
    return any(not math.isfinite(value) for name in FINITE for value in metrics.get(name, ()))


def divergence(run: "FederatedRun") -> str | None:
    """Return a sentence on the latest round of a run that has diverged, with the first seed, device and tensor that are
    not finite; None: it has not."""
    record = run.state.record
    if record is None or not has_diverged(record.metrics):
        return None
    broken = [
        (replica, f"{name} is {value:g}")
        for name in FINITE
        for replica, value in enumerate(record.metrics.get(name, ()))
        if not math.isfinite(value)
    ]
    replica, cause = min(broken, key=lambda pair: pair[0])  # of several causes the first in `FINITE`
    causes = [cause, *lost_devices(run, replica), *lost_tensors(run, replica), *lost_models(run, replica)]
    return f"diverged in round {record.round} (seed {run.seeds[replica]}): {', '.join(causes)}"


def lost_devices(run: "FederatedRun", replica: int) -> list[str]:
    """Return the first device of the latest round whose training loss is not finite, as a part of a sentence."""
    if run.last is None or run.aggregator.private:
        return []
    jobs = (~torch.isfinite(run.last.fit.loss[replica])).nonzero().flatten().tolist()
    device = run.last.cohort.jobs.client[replica].tolist()
    return [f"first on device {device[jobs[0]]}"] if jobs else []


def lost_tensors(run: "FederatedRun", replica: int) -> list[str]:
    """Return the first tensor of the server's models that is not finite, as a part of a sentence."""
    for model in stacked(run.state.server.x)[replica]:
        if (name := lost_tensor(run, model)) is not None:
            return [f"the server's {name} is not finite"]
    return []


def lost_models(run: "FederatedRun", replica: int) -> list[str]:
    """Return the first device of the latest round whose own model is not finite, as a part of a sentence."""
    if run.last is None or not run.algorithm.personalized:
        return []
    for device in run.last.cohort.jobs.client[replica].tolist():
        if (name := lost_tensor(run, run.models.of_device(device, replica))) is not None:
            return [f"{name} of device {device}'s own model is not finite"]
    return []


def lost_tensor(run: "FederatedRun", model: torch.Tensor) -> str | None:
    """Return the name of the first tensor of a model [n] that is not finite; None where all are."""
    tensors = run.task_function.layout.split(model[: run.task_function.layout.n])
    return next((name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())), None)
