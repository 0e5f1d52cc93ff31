"""Task and examples on the device where a run works; outputs of frozen layers are computed once for each example."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy.execution.program_key import program_key
from flstudy.population import ExampleStore
from flstudy.population.datasets.base import Dataset
from flstudy.process_state import PROCESS_STATE
from flstudy.tasks import TaskFunction
from flstudy.tasks.probing import EXAMPLES, meet
from flstudy.user_error import UserError

EMBEDDED = 64  # examples at once

_last: tuple[Any, Tensor, Tensor] | None = None  # of this process: key, inputs and what became of them


class TrainingContext(NamedTuple):
    """Task and examples on one device, on which all executors stand."""

    task_function: TaskFunction
    store: ExampleStore


def training_context(
    task_function: TaskFunction,
    store: ExampleStore,
    device: torch.device,
    dtype: torch.dtype,
    dataset: Dataset | None = None,
) -> TrainingContext:
    """Return the task and examples on one device, in one precision; the task has met its examples.

    Args:
        task_function: of the task; its frozen parts are moved.
        store: all examples. Where the task ``embeds``, its inputs become ``embed`` of them: trials that one process
            runs on the same inputs with the same frozen weights share them.
        device: where the run works.
        dtype: of models, and of inputs and labels that are no integers.
        dataset: where the examples are from; None: of classes, in pairs.

    Raises:
        UserError: if inputs that a drift changes were to be embedded, or for a training_step that fails on examples.
    """
    task_function.to(device, dtype)
    if getattr(task_function.module, "embeds", False):
        if store.order.numel() > 0 or store.shift.numel() > 0:
            raise UserError(
                f"task: {type(task_function.module).__name__} computes once what its frozen layers say of an example, "
                f"but the population's drift changes inputs; use LabelSwap, or train: full"
            )
        z = embedded(task_function, store, device, dtype)
        store = store._replace(x=z, y=store.read(slice(None))[1], like=z.new_empty(0))
    typed = ("like",) if store.like.numel() > 0 else ("x", "y")  # what is coded, a batch brings into the type
    parts = {name: getattr(store, name) for name in typed}
    store = store._replace(**{name: part.to(dtype) for name, part in parts.items() if part.is_floating_point()})
    moved = ExampleStore(*(part.to(device) for part in store))
    some = torch.linspace(0, len(moved.x) - 1, min(EXAMPLES, len(moved.x)), device=device).round().long()
    x, y = (moved.x, moved.y) if moved.like.numel() == 0 else moved.read(some)
    if dataset is None:
        meet(task_function, x, y, 0 if y.is_floating_point() else int(moved.y.max()) + 1)
    else:
        meet(task_function, x, y, dataset.classes, dataset.form)
    return TrainingContext(task_function, moved)


@torch.no_grad()
def embedded(task_function: TaskFunction, store: ExampleStore, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return ``embed`` [D, d] of a store's inputs."""
    global _last
    x = store.x
    embed: Any = task_function.module.embed

    def inputs(begin: int, end: int) -> Tensor:
        part, _ = store.read(slice(begin, end))
        return part.to(device, dtype if part.is_floating_point() else None)

    with PROCESS_STATE, task_function.evaluating():
        computed, _ = program_key(embed, inputs(0, 1))
        key = computed, x.data_ptr(), x._version, tuple(x.shape), x.dtype, device, dtype
        if _last is not None and _last[0] == key:
            return _last[2]
        _last = None  # before the next takes its place
        z = torch.cat([embed(inputs(begin, begin + EMBEDDED)) for begin in range(0, len(x), EMBEDDED)])
    _last = (key, x, z)  # holding x, so that no other inputs come to lie where it lay
    return z
