"""Task and examples on the device where a run works; of frozen layers what they say of each example, computed once."""

from typing import Any

import torch
from torch import Tensor

from flstudy.execution.executor import TrainingContext
from flstudy.execution.programs import fingerprint
from flstudy.population import ExampleStore
from flstudy.tasks import TaskFunction

EMBEDDED = 64  # examples at once

_last: tuple[Any, Tensor, Tensor] | None = None  # of this process: key, inputs and what became of them


def training_context(
    task_function: TaskFunction, store: ExampleStore, device: torch.device, dtype: torch.dtype
) -> TrainingContext:
    """Everything on one device, in one precision.

    Args:
        task_function: of the task; its frozen parts are moved.
        store: all examples. Where the task ``embeds``, its inputs become ``embed`` of them: trials that one process
            runs on the same inputs with the same frozen weights share them.
        device: where the run works.
        dtype: of models and of inputs that are no integers.

    Raises:
        ValueError: if inputs that a drift changes were to be embedded.
    """
    task_function.to(device, dtype)
    if getattr(task_function.module, "embeds", False):
        if store.order.numel() > 0 or store.shift.numel() > 0:
            raise ValueError(
                f"task: {type(task_function.module).__name__} computes once what its frozen layers say of an example, "
                f"but the population's drift changes inputs; use LabelSwap, or train: full"
            )
        store = store._replace(x=embedded(task_function, store.x, device, dtype))
    x = store.x.to(dtype) if store.x.is_floating_point() else store.x
    return TrainingContext(task_function, ExampleStore(*(part.to(device) for part in (x, *store[1:]))))


@torch.no_grad()
def embedded(task_function: TaskFunction, x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """``embed`` [D, d] of inputs x [D, ...]."""
    global _last
    marks = fingerprint(task_function)
    key = None if marks is None else (marks, x.data_ptr(), x._version, tuple(x.shape), x.dtype, device, dtype)
    if _last is not None and key is not None and _last[0] == key:
        return _last[2]
    _last = None  # before the next takes its place
    parts = []
    with task_function.evaluating():
        for part in torch.split(x, EMBEDDED):
            moved = part.to(device, dtype if part.is_floating_point() else None)
            parts.append(task_function.module.embed(moved))  # type: ignore[operator]
    z = torch.cat(parts)
    _last = (key, x, z)  # holding x, so that no other inputs come to lie where it lay
    return z
