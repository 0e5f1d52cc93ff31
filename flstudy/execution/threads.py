"""Local fits side by side, a thread for each core: for models whose single steps keep a core busy."""

import copy
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from flstudy.algorithms import Algorithm, Job
from flstudy.execution.executor import Executor, Fit, TrainingContext, one_by_one
from flstudy.execution.sequential import Sequential
from flstudy.population import Batches


class Threads(Executor):
    """Sequential fits in a pool of threads, each on one core and with a task of its own.

    Mapping a convolution over devices makes a grouped one, which the CPU's libraries run no faster than one device
    after another; a step of such a model is long enough for Python to stand aside.

    Args:
        context: task and examples.
        workers: threads; null takes as many as torch may use.

    Raises:
        ValueError: for a task with dropout, whose masks would be drawn in no fixed order.
    """

    def __init__(self, context: TrainingContext, workers: int | None = None) -> None:
        if any(isinstance(module, _DropoutNd) for module in context.task_function.module.modules()):
            raise ValueError("executor: threads draw dropout masks in no fixed order; use sequential or vectorized")
        self.context = context
        self.workers = workers or min(torch.get_num_threads(), os.cpu_count() or 1)
        self._own = threading.local()

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        with ThreadPoolExecutor(self.workers, initializer=self._start) as pool:
            return one_by_one(self._one, algorithm, servers, clients, jobs, batches, pool.map)

    def _start(self) -> None:
        torch.set_num_threads(1)  # of this thread: several per fit would fight for the same cores
        # Parameters are swapped in while a task is called, so threads must not share one.
        task_function = copy.deepcopy(self.context.task_function)
        self._own.sequential = Sequential(TrainingContext(task_function, self.context.store))

    def _one(self, *arguments: Any) -> tuple[Any, ...]:
        one: tuple[Any, ...] = self._own.sequential.one(*arguments)
        return one
