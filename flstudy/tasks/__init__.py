"""Tasks: LightningModules with per-example losses."""

from flstudy.registry import import_modules
from flstudy.tasks.classifiers import Logistic, Mlp, Quadratic
from flstudy.tasks.convolutional import Cnn, ResNet18, ResNet34, Vgg
from flstudy.tasks.recurrent import Lstm
from flstudy.tasks.task import Penalty, Task
from flstudy.tasks.task_function import TaskFunction
from flstudy.tasks.texts import FastText, TagLogistic
from flstudy.tasks.vit import Vit

import_modules(__name__, __path__)  # a task that is not listed above can be named in configs, too
