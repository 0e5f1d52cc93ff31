"""Initial models of a run: what a task's class makes under a seed, or the weights of the task that is given."""

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.compile import to_uncompiled
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn

from flstudy.hyper import keeps_own_arguments, made_with
from flstudy.population.streams import torch_seed
from flstudy.process_state import PROCESS_STATE
from flstudy.run_settings import RunSettings
from flstudy.tasks import TaskFunction
from flstudy.tasks.findings import brief, trained_parameters
from flstudy.tasks.module_steps import set_up
from flstudy.tasks.stand_in_trainer import StandInTrainer
from flstudy.user_error import UserError

BuildTask = Callable[[], L.LightningModule]
"""Function that builds a task anew, such as its class."""


class InitialModels:
    """Initial models of a run's seeds.

    A model of a seed is what building the task makes of it while torch's, numpy's and Python's random numbers start
    from that seed. So equal seeds give equal bits in any process, and weights that the task loads are loaded again.

    Args:
        task: a LightningModule, or a function without arguments that builds one.
        settings: the seeds, and whether their models are ``seeded``, or ``given``: all those of the task.

    Attributes:
        task: the LightningModule that is given, or the one that is built under the first seed.
    """

    def __init__(self, task: L.LightningModule | BuildTask, settings: RunSettings) -> None:
        self.seeds, self.starts_from_task = tuple(settings.seeds), settings.initial == "given"
        with PROCESS_STATE:
            self._dtype = torch.get_default_dtype()  # in a round it is that of the run's precision
        self.task: L.LightningModule
        if isinstance(task, nn.Module) or not callable(task):
            self.task = uncompiled(task)
            self._build = builder_of(self.task)
        else:
            self._build = task
            self.task = self._built(self.seeds[0], "init")

    def first(self, task_function: TaskFunction, starts: int) -> Tensor:
        """Return the models [S, n] of all seeds; [S, starts, n] for a method that starts from several, each drawn by
        itself.

        Raises:
            UserError: for a task that cannot be built anew, or models that are equal, so that a method could not tell
                them apart.
        """
        first_models = [task_function.layout.flat(trained_parameters(self.task))] if self.starts_from_task else []
        drawn = stream_names(starts, "init")[len(first_models) :]
        models = torch.stack(
            [
                torch.stack([*first_models, *(self._model(task_function, seed, name) for name in drawn)])
                for seed in self.seeds
            ]
        )
        if starts == 1:
            return models[:, 0]
        if (models[:, 1:] == models[:, :1]).all(-1).any():
            raise UserError(
                f"task: the method starts from {starts} different models, but those of {type(self.task).__name__} are "
                "equal: let its __init__ draw them, or take another method"
            )
        return models

    def drawn(self, task_function: TaskFunction, like: Tensor, starts: int, seed: int, name: str) -> Tensor:
        """Return a further model of a seed, by a name: [n], or [starts, n] for a method with several, of the type and
        device of ``like``.

        Raises:
            UserError: for a task that cannot be built anew, or not alike.
        """
        models = [self._model(task_function, seed, stream) for stream in stream_names(starts, name)]
        return (models[0] if starts == 1 else torch.stack(models)).to(like)

    def refuse_unknown(self) -> None:
        """Raise UserError for a task of which it is not known how it is built."""
        if self._build is None:
            name = type(self.task).__name__
            raise UserError(
                f"task: models of a seed are drawn by building {name} anew, but its arguments are not known: give a "
                f"function that builds it, such as task=lambda: {name}(...), or let its __init__ call "
                "self.save_hyperparameters()"
            )

    def _model(self, task_function: TaskFunction, seed: int, name: str) -> Tensor:
        """Return a model [n] of a seed and a name."""
        task, layout = self._built(seed, name), task_function.layout
        trained = trained_parameters(task)
        shapes = [tuple(part.shape) for part in trained.values()]
        if (list(trained), shapes) != (list(layout.names), list(map(tuple, layout.shapes))):
            raise UserError(
                f"task: {type(task).__name__} has other trained parameters when it is built anew: build it alike"
            )
        refuse_other_values(task, task_function)
        return layout.flat(trained)

    def _built(self, seed: int, name: str) -> L.LightningModule:
        """Return the task as it is built under a seed and a name."""
        self.refuse_unknown()
        assert self._build is not None
        number = torch_seed(seed, name)
        with PROCESS_STATE, isolate_rng():
            dtype = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            try:
                torch.manual_seed(number)
                np.random.seed(number % 2**32)  # noqa: NPY002 of the generator that tasks use
                random.seed(number)
                task = uncompiled(called(self._build))
                if isinstance(task, L.LightningModule):
                    set_up(task, StandInTrainer(type(task).__name__))
                return task
            finally:
                torch.set_default_dtype(dtype)


def uncompiled(task: Any) -> Any:
    """Return a task without what `torch.compile` put around it, whose names a checkpoint would have; rounds are
    compiled as wholes. What is no module of Lightning's stays, and is refused elsewhere."""
    try:
        return to_uncompiled(task)
    except (ValueError, TypeError):  # it is not compiled, or no LightningModule
        return task


def stream_names(starts: int, name: str) -> list[str]:
    """Return the names of the random numbers of so many models."""
    return [name, *(f"{name} {m}" for m in range(1, starts))]


def called(build: BuildTask) -> L.LightningModule:
    """Return the task that a function builds.

    Raises:
        UserError: for a class that needs arguments, or others than those that its task kept.
    """
    try:
        return build()
    except TypeError as error:
        resolved_class = getattr(build, "func", build)  # of a partial
        if not isinstance(resolved_class, type):
            raise
        name = resolved_class.__name__
        raise UserError(
            f"task: {name}() fails: {brief(error)}: give a function that builds it, such as task=lambda: {name}(...)"
        ) from error


def builder_of(task: Any) -> BuildTask | None:
    """Return the function that builds a task anew by its class, from the arguments that it keeps; None: it keeps none.

    As Lightning's ``load_from_checkpoint`` does, those that its class does not take are left out."""
    if not isinstance(task, L.LightningModule):
        return None
    parameters = inspect.signature(type(task)).parameters
    if not parameters:
        return type(task)
    arguments = made_with(task) if dict(task.hparams) or keeps_own_arguments(task) else None
    if arguments is None:
        return None
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
    return partial(type(task), **{name: arguments[name] for name in arguments if takes_any or name in parameters})


def refuse_other_values(task: L.LightningModule, task_function: TaskFunction) -> None:
    """Raise UserError where a task that is built anew has frozen parameters or buffers of other values, of which all
    replicas have the same."""
    shared = dict((*task_function.module.named_parameters(), *task_function.module.named_buffers()))
    for name, value in (*task.named_parameters(), *task.named_buffers()):
        if name in task_function.layout.names or name not in shared:
            continue
        if not torch.equal(shared[name].cpu(), value.to("cpu", shared[name].dtype)):
            raise UserError(
                f"task: {type(task).__name__}.{name} is not trained and differs with the seed, but all models share "
                "it: draw it from a generator with a seed of its own, or give a function that builds the task and one "
                "seed"
            )
