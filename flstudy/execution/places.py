"""Places where a round's jobs are trained: what each of them does, and threads that drive the accelerators of this
machine. Ray actors are in `flstudy.execution.actors`."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.execution.bank import Fetch
from flstudy.execution.context import TrainingContext
from flstudy.execution.executor import Executor
from flstudy.execution.model_evaluator import ModelEvaluator
from flstudy.execution.parts import PartResult, PartWork, RoundPart, fit_by_seed, train_part
from flstudy.population import ExampleStore
from flstudy.population.batches import HOST
from flstudy.population.streams import torch_seed

Make = Callable[[TrainingContext], Executor]


class Rows(Protocol):
    """Rows of client state of a round's jobs."""

    def gather(self, part: RoundPart | None) -> Any:
        """Return the rows of some jobs, leaves [S, P, ...]; None stands for all."""

    def scatter(self, part: RoundPart | None, states: Any) -> None:
        """Write the rows of some jobs back as they are now, leaves [S, P, ...]."""

    def lend(self, part: RoundPart) -> tuple[Tensor | None, list[Any]]:
        """Return the models [S, n] that first visitors are sent, and the rows as `ClientBank.lend` has them."""

    def leave(self, part: RoundPart, lying: Sequence[Any], fetch: Fetch) -> None:
        """Leave the rows where they are, as `ClientBank.leave` does."""


class Modes(NamedTuple):
    """Settings of torch, of a process or a thread, on which a round's fit depends."""

    dtype: torch.dtype
    autocast: torch.dtype | None
    grad: bool
    seeds: tuple[int, ...]  # of the round's dropout masks, one or each replica's

    @classmethod
    def here(cls, kind: str, part: int, seeds: Sequence[int]) -> Self:
        """Return the modes of this thread, for a part with streams of masks of its own."""
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        of_part = tuple(torch_seed(seed % 2**32, f"place {part}") for seed in seeds)
        return cls(torch.get_default_dtype(), autocast, torch.is_grad_enabled(), of_part)


class LaneWorker:
    """Worker that trains parts of rounds in one place.

    Args:
        make: an executor on a context.
        context: task and examples, on the place's device.
    """

    def __init__(self, make: Make, context: TrainingContext) -> None:
        self.device = context.store.x.device
        self.executor, self.evaluator = make(context), ModelEvaluator(context)

    def train(self, modes: Modes, work: PartWork, rows: Any) -> PartResult:
        """Train a part, whose rows of client state have leaves [S, P, ...]; the result is where the work was."""
        home, batches = work.jobs.client.device, work.batches
        moved = tree_on((work.servers, work.jobs, work.weights, rows), self.device)
        on_device = {name: part for name, part in batches._asdict().items() if name not in HOST}
        work = work._replace(
            servers=moved[0],
            jobs=moved[1],
            weights=moved[2],
            batches=batches._replace(**tree_on(on_device, self.device)),
            tests=None if work.tests is None else work.tests.to(self.device),
        )
        fit = partial(fit_by_seed, self.executor.fit, self.device, modes.seeds)
        autocast = torch.autocast(self.device.type, modes.autocast, enabled=modes.autocast is not None)
        with autocast, torch.set_grad_enabled(modes.grad):
            return tree_on(train_part(fit, self.evaluator, work, moved[3]), home)  # type: ignore[no-any-return]


def tree_on(tree: Any, device: torch.device) -> Any:
    """Return a tree whose tensors are on a device."""
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


class Place(ABC):
    """Place where some of a round's jobs are trained."""

    @abstractmethod
    def begin(self, modes: Modes, work: PartWork, rows: Rows, part: RoundPart) -> Any:
        """Begin to train a part of a round, without waiting for it; returns a claim on the result."""

    @abstractmethod
    def end(self, claim: Any) -> PartResult:
        """Wait for the result of a claim, in which rows are as the place has them."""

    @abstractmethod
    def keep(self, rows: Rows, part: RoundPart, result: PartResult) -> None:
        """Keep the rows of a part that is done."""

    @abstractmethod
    def ask(self, call: str, *arguments: Any) -> Any:
        """Return the result of a method of the place's executor."""

    @abstractmethod
    def close(self, orderly: bool) -> None:
        """End the place, since the run is over, or was ended by something else and not ``orderly``."""


class DeviceThread(Place):
    """A thread of this process that drives an accelerator.

    Args:
        make: an executor on a context.
        context: task and examples, where the run's models are; both are copied to the device.
        device: where this place computes.
    """

    def __init__(self, make: Make, context: TrainingContext, device: torch.device) -> None:
        dtype = next(context.task_function.module.parameters()).dtype
        # Parameters are swapped in while a task is called, so places must not share one.
        task_function = copy.deepcopy(context.task_function).to(device, dtype)
        store = ExampleStore(*(part.to(device) for part in context.store))
        self.worker = LaneWorker(make, context._replace(task_function=task_function, store=store))
        self.pool = ThreadPoolExecutor(1, f"{device}")

    def begin(self, modes: Modes, work: PartWork, rows: Rows, part: RoundPart) -> Future[PartResult]:
        return self.pool.submit(self.worker.train, modes, work, rows.gather(part))

    def end(self, claim: Future[PartResult]) -> PartResult:
        return claim.result()

    def keep(self, rows: Rows, part: RoundPart, result: PartResult) -> None:
        rows.scatter(part, result.rows)

    def ask(self, call: str, *arguments: Any) -> Any:
        return self.pool.submit(getattr(self.worker.executor, call), *arguments).result()

    def close(self, orderly: bool) -> None:
        self.pool.shutdown(cancel_futures=True)
