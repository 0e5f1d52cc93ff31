"""Generalised and personalised accuracy with their spread over devices."""

import torch
from torch import Tensor


def over_devices(
    name: str, values: Tensor, there: Tensor | None = None, *, with_spread: bool = True
) -> dict[str, list[float]]:
    """Mean over devices for every replica, and the standard deviation over devices.

    FLASH (Panchal et al. 2023), eq. (1) and (2): every device counts the same, however many examples it has;
    eq. (3): the deviation divides by the number of devices.

    Args:
        name: of the metric; the deviation is called ``name_spread``.
        values: [S, N] of each device.
        there: [S, N] which devices count, at least one of each replica; None: all.
        with_spread: whether the deviation is wanted.
    """
    doubles = values.double()
    if there is None or bool((there == there[0]).all()):
        doubles = doubles if there is None else doubles[:, there[0]]
        means, deviations = doubles.mean(1), doubles.std(1, correction=0)
    else:
        lines = [line[here] for line, here in zip(doubles, there, strict=True)]
        means = torch.stack([line.mean() for line in lines])
        deviations = torch.stack([line.std(correction=0) for line in lines])
    metrics = {name: means.tolist()}
    if with_spread:
        metrics[f"{name}_spread"] = deviations.tolist()
    return metrics
