"""The local fits of a run's rounds, with their random numbers, their seconds, and the executor's choices by these."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from flstudy.execution import Executor
from flstudy.execution.devices import synchronize
from flstudy.execution.parts import RoundPart, fit_by_seed
from flstudy.execution.sharded import Sharded
from flstudy.population import Population
from flstudy.population.streams import torch_seed
from flstudy.tasks import TaskFunction


def no_limit() -> float | None:
    """Return the seconds that are left to a run without a limit of time."""
    return None


class Horizon(NamedTuple):
    """The end of a run, as far as it is known."""

    last: int | None = None  # round (from 1)
    seconds_left: Callable[[], float | None] = no_limit

    def rounds_left(self, round: int, took: float) -> float:
        """Return the number of rounds that follow a round: the planned ones, or fewer where the time does not suffice.

        Args:
            round: the round's number, from 1.
            took: seconds that each of them takes.

        Returns:
            A number that may be fractional; infinity where neither a last round nor a limit of time is known.
        """
        left = math.inf if self.last is None else self.last - round
        seconds = self.seconds_left()
        return left if seconds is None else min(left, max(0.0, seconds) / took)


class LocalFits:
    """Local fits of a round's blocks of jobs, one call for each; meanwhile the next round's cohort is planned.

    Args:
        executor: carries them out.
        task_function: of the task.
        population: the devices and their data, settled.
        seeds: of the replicas.
        device: where the run works.
        horizon: of the run.
        note: executor and method, for errors.
    """

    def __init__(
        self,
        executor: Executor,
        task_function: TaskFunction,
        population: Population,
        seeds: Sequence[int],
        device: torch.device,
        horizon: Horizon,
        note: str,
    ) -> None:
        self.executor, self.task_function, self.population = executor, task_function, population
        self.seeds, self.device, self.horizon, self.note = seeds, device, horizon, note
        self.settled = False  # whether the executor has nothing left to choose

    @property
    def sharded(self) -> Sharded | None:
        """The executor, where it trains a round in several places."""
        return self.executor if isinstance(self.executor, Sharded) and self.executor.spreads else None

    @property
    def divide(self) -> Callable[..., Sequence[RoundPart]] | None:
        """Function that divides a round's jobs among several places; None: they train in one."""
        return None if self.sharded is None else self.sharded.parts

    def begin(self, round: int, blocks: int) -> None:
        """Begin a round (from 1) of ``blocks`` blocks; in several places all of it is one."""
        self.round, self.blocks, self.block = round, 1 if self.sharded else blocks, 0
        self.ended = time.perf_counter()  # of the last block, or the round's beginning

    def __call__(self, *work: Any) -> Any:
        """Train the round's next block with the arguments of an executor's ``fit``, and return its fits.

        Where the executor trains in several places, train all parts instead: the arguments are those of its ``train``,
        and the results of all parts are returned.
        """
        following = self.round + 1 if self.round != self.horizon.last else None
        with self.population.ahead.while_training(self.population.cohort, following):
            try:
                fit = self._fit(*work)
            except Exception as error:
                error.add_note(f"in round {self.round}, {self.note}")
                raise
        if not self.settled:
            synchronize(self.device)
            took = time.perf_counter() - self.ended
            rounds_left = self.horizon.rounds_left(self.round, took * self.blocks)
            self.settled = self.executor.weigh(took, rounds_left * self.blocks)
        self.ended = time.perf_counter()
        self.block += 1
        return fit

    def _fit(self, *work: Any) -> Any:
        """Fit with each replica's own random numbers, as in a run of its own, and on a resume the same."""
        purpose = f"dropout {self.round - 1}" + (f" {self.block}" if self.block else "")
        drawing = self.seeds if self.task_function.findings.draws else self.seeds[:1]
        seeds = [torch_seed(seed, purpose) for seed in drawing]
        if self.sharded is not None:
            return self.sharded.train(seeds, *work)
        return fit_by_seed(self.executor.fit, self.device, seeds, *work)

    def probe_fit(self) -> Callable[..., Any]:
        """Return the fit function for probe rounds, whose seconds are not weighed."""
        if self.sharded is None:
            return self.executor.fit
        return partial(self.sharded.train, [torch_seed(self.seeds[0], f"probe {self.round - 1}")])
