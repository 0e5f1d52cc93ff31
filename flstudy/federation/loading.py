"""The trained task of a checkpoint, for whoever needs nothing else of a run."""

from pathlib import Path
from typing import Any

import lightning as L

from flstudy.federation.coordinator import Coordinator


def load_task(path: str | Path, task: L.LightningModule | None = None, *, replica: int = 0) -> L.LightningModule:
    """The task with a trained global model, in evaluation mode; of several models, the first.

    Args:
        path: a coordinator's checkpoint, or a model that a study kept.
        task: where to load the model; by default the task is made as the checkpoint tells.
        replica: which of the run's seeds, by position.

    Raises:
        ValueError: for a damaged file, one of another task, or a task that has to be given.
    """
    given: dict[str, Any] = {} if task is None else {"task": task}
    coordinator = Coordinator.load_from_checkpoint(path, **given)
    if not 0 <= replica < len(coordinator.seeds):
        raise ValueError(f"replica must lie from 0 to {len(coordinator.seeds) - 1}, got {replica}")
    return coordinator.load_into(coordinator.task, replica).eval()
