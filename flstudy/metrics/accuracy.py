"""Generalised and personalised accuracy with their spread over devices."""

from torch import Tensor


def spread(name: str, values: Tensor, with_spread: bool = True) -> dict[str, list[float]]:
    """Mean over devices for every replica, and the standard deviation over devices.

    FLASH (Panchal et al. 2023), eq. (1) and (2): every device counts the same, however many examples it has;
    eq. (3): the deviation divides by the number of devices.

    Args:
        name: of the metric; the deviation is called ``name_spread``.
        values: [S, N] of each device.
    """
    metrics = {name: values.double().mean(1).tolist()}
    if with_spread:
        metrics[f"{name}_spread"] = values.double().std(1, correction=0).tolist()
    return metrics
