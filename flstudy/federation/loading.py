"""Loading of a checkpoint's trained task."""

from pathlib import Path
from typing import Any

import lightning as L

from flstudy.federation.coordinator import Coordinator
from flstudy.user_error import UserError


def load_task(path: str | Path, task: L.LightningModule | None = None, *, replica: int = 0) -> L.LightningModule:
    """Return the task with a trained global model, in evaluation mode; of several models, the first.

    Args:
        path: a coordinator's checkpoint, or a model that a study kept.
        task: where to load the model; by default the task is made as the checkpoint tells.
        replica: which of the run's seeds, by position.

    Raises:
        UserError: for a damaged file, one of another task, or a task that has to be given.
    """
    parts: dict[str, Any] = {} if task is None else {"task": task}
    coordinator = Coordinator.load_from_checkpoint(path, **parts)
    if not 0 <= replica < len(coordinator.seeds):
        raise UserError(f"replica must lie from 0 to {len(coordinator.seeds) - 1}, got {replica}")
    return coordinator.load_into(coordinator.task, replica).eval()
