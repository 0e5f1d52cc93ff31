"""Tasks: LightningModules with per-example losses."""

from flstudy.registry import import_modules
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
]

import_modules(__name__, __path__)  # a task that is not listed above can be named in configs, too
