"""Executors by the name that a config or a script gives."""

from typing import Literal

from flstudy.execution.auto import Auto
from flstudy.execution.executor import Executor, TrainingContext
from flstudy.execution.programs import Compile, Programs
from flstudy.execution.sequential import Sequential
from flstudy.execution.threads import Threads
from flstudy.execution.trainer import PerJobTrainer
from flstudy.execution.vectorized import Vectorized

ExecutorName = Literal["vectorized", "threads", "sequential", "trainer", "auto"]


def make_executor(name: str, context: TrainingContext, compile: Compile, max_lanes: int | None = None) -> Executor:
    """The executor of that name on this context.

    Raises:
        ValueError: for an unknown name.
    """
    if name == "vectorized":
        return Vectorized(context, Programs(context, compile), max_lanes)
    if name == "auto":
        return Auto(context, compile, max_lanes)
    others: dict[str, type[Threads | Sequential | PerJobTrainer]]
    others = {"threads": Threads, "sequential": Sequential, "trainer": PerJobTrainer}
    if name not in others:
        raise ValueError(f"executor must be one of vectorized, {', '.join(others)}, auto, got {name!r}")
    return others[name](context)
