"""Initial models of a run."""

from collections.abc import Sequence

import lightning as L
import torch
from torch import Tensor

from flstudy.algorithms import Layout
from flstudy.population.streams import torch_seed
from flstudy.tasks import initial_parameters
from flstudy.user_error import UserError


def drawn_model(task: L.LightningModule, layout: Layout, like: Tensor, starts: int, seed: int, name: str) -> Tensor:
    """Draw a model of a seed and a name by the modules' ``reset_parameters``, [n], or [starts, n] for a method with
    several, of the kind of ``like``."""
    names = [name, *(f"{name} {m}" for m in range(1, starts))]
    models = torch.stack([initial_parameters(task, layout, torch_seed(seed, stream)) for stream in names]).to(like)
    return models[0] if starts == 1 else models


def initial_models(task: L.LightningModule, layout: Layout, seeds: Sequence[int], initial: str, starts: int) -> Tensor:
    """Initial models x [S, n]; [S, starts, n] for a method that starts from several, each drawn by itself.

    Args:
        task: whose parameters, or whose modules' ``reset_parameters``, say how to start.
        layout: of the flat models.
        seeds: one replica each.
        initial: ``given``: the first model is the task's own; ``seeded``: it is drawn from the replica's seed.
        starts: models of each replica.

    Raises:
        UserError: where drawn models are equal, so that a method could not tell them apart.
    """
    names = [None if initial == "given" else "init", *(f"init {m}" for m in range(1, starts))]
    draws = [[None if name is None else torch_seed(seed, name) for name in names] for seed in seeds]
    models = torch.stack([torch.stack([initial_parameters(task, layout, draw) for draw in line]) for line in draws])
    if starts == 1:
        return models[:, 0]
    if (models[:, 1:] == models[:, :1]).all(-1).any():
        raise UserError(
            f"task: the method starts from {starts} different models, but those drawn for {type(task).__name__} are "
            f"equal; give its modules a reset_parameters() that draws"
        )
    return models
