"""Tasks: LightningModules with per-example losses."""

import inspect
from collections.abc import Iterator

from flstudy.tasks.classifiers import Cnn, Logistic, Mlp
from flstudy.tasks.fasttext import FastText
from flstudy.tasks.penalty import Penalty
from flstudy.tasks.quadratic import Quadratic
from flstudy.tasks.recurrent import Lstm
from flstudy.tasks.resnet import ResNet18, ResNet34
from flstudy.tasks.tags import TagLogistic
from flstudy.tasks.task import Task
from flstudy.tasks.task_function import TaskFunction, initial_parameters
from flstudy.tasks.vgg import Vgg
from flstudy.tasks.vit import Vit

__all__ = [
    "Cnn",
    "FastText",
    "Logistic",
    "Lstm",
    "Mlp",
    "Penalty",
    "Quadratic",
    "ResNet18",
    "ResNet34",
    "TagLogistic",
    "Task",
    "TaskFunction",
    "Vgg",
    "Vit",
    "initial_parameters",
    "registry",
]


def registry() -> dict[str, type[Task]]:
    """Every task that a config can name without its module."""
    return {cls.__name__: cls for cls in sorted(children(Task), key=lambda cls: cls.__name__)}


def children(base: type[Task]) -> Iterator[type[Task]]:
    """Classes right below this one, or below what they share."""
    for cls in base.__subclasses__():
        if inspect.isabstract(cls):
            yield from children(cls)
        else:
            yield cls
