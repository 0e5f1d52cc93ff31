"""The mapped local step, eager or compiled, kept by the process so that trials share it."""

import os
import shutil
import warnings
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.hyper import traced
from flstudy.execution.executor import gradient
from flstudy.tasks import Objective


class Programs:
    """Runs one local step of all lanes.

    Args:
        objective: the task.
        compile: whether the step is compiled. Compiling costs some seconds for each (task, algorithm, lanes, batch
            shape) and is then free: hyper-parameters are 0-d tensors, so that their values never recompile.
    """

    def __init__(self, objective: Objective, compile: bool = False) -> None:
        self.objective = objective
        self.compiled = compile and has_compiler()
        self._step = torch.compile(self._mapped, dynamic=False) if self.compiled else self._mapped

    def width(self, active: int, lanes: int) -> int:
        """Lanes to run when ``active`` of ``lanes`` still train: all that is needed when eager; when compiled a
        halving of the full width, so that few shapes are compiled."""
        if not self.compiled:
            return active
        while lanes // 2 >= max(active, 1):
            lanes //= 2
        return lanes

    def step(
        self, algorithm: Algorithm, local: Any, batch: Batch, active: Tensor, msg: Any, client: Any
    ) -> tuple[Any, Tensor]:
        """One step of every active lane; the others keep their state. Returns the states and losses [A]."""
        if self.compiled:
            algorithm = traced(algorithm, local.y)
        return self._step(algorithm, local, batch, active, msg, client)

    def _mapped(
        self, algorithm: Algorithm, local: Any, batch: Batch, active: Tensor, msg: Any, client: Any
    ) -> tuple[Any, Tensor]:
        def one(local: Any, batch: Batch, active: Tensor, msg: Any, client: Any) -> tuple[Any, Tensor]:
            grad = gradient(algorithm, self.objective, msg, client)
            stepped, loss = algorithm.local_step(local, batch, grad, msg, client)
            return pytree.tree_map(lambda new, old: torch.where(active, new, old), stepped, local), loss

        return torch.vmap(one, randomness="different")(local, batch, active, msg, client)


def has_compiler() -> bool:
    """Whether torch.compile can work here; warns once if it cannot."""
    if torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"):
        return True
    warnings.warn("no C++ compiler found: local steps run eagerly; install g++ for compiled ones", stacklevel=2)
    return False


CompileMode = Literal["auto", "on", "off"]
