"""Interface of executors, and the fits that they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Job
from flstudy.execution.programs import Programs
from flstudy.execution.trees import grid, nbytes, stack, take
from flstudy.population import Batches


class Fit(NamedTuple):
    """The result of S × J local fits."""

    uploads: Any  # leaves [S, J, ...]
    clients: Any  # leaves [S, J, ...]
    personal: Tensor  # [S, J, n] the models that the participants end up with
    steps: Tensor  # [S, J] steps done
    loss: Tensor  # [S, J] mean training loss over the steps
    logged: dict[str, Tensor]  # [S, J, 2] of what training_step logs: sum over examples of all steps, their number
    down: int  # bytes sent to each job
    up: int  # bytes returned by each job
    lane_steps: int  # steps executed, padding included


class Executor(ABC):
    """Executor of a round's jobs. Leaves of ``servers`` are [S, ...], of ``clients`` and ``jobs`` [S, J, ...]."""

    maps = True  # whether a method's functions of devices are mapped over these

    @abstractmethod
    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        """Return all local fits of one round.

        Raises:
            UserError: the executor cannot train the task so; the message names one that can.
        """

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """Choose how to go on by the seconds that local fits took; returns whether that is settled for good.

        Args:
            seconds: that the last call took, of a round or, where it is trained in blocks, of a block.
            rounds_left: calls that follow; infinity where nobody knows.
        """
        return True

    def loops(self) -> Programs | None:
        """Return the programs by which it trains, once these are compiled loops; others can then be made beside
        them."""
        return None

    def choices(self) -> dict[str, Any]:
        """Return the choices made while running; checkpointed, since another choice would round differently."""
        return {}

    def choose(self, choices: dict[str, Any]) -> None:
        """Take up the choices of a checkpoint."""
        return


def one_by_one(
    fit_one: Callable[..., tuple[Any, ...]],
    algorithm: Algorithm,
    servers: Any,
    clients: Any,
    jobs: Job,
    batches: Batches,
    mapped: Callable[..., Iterable[tuple[Any, ...]]] = map,
) -> Fit:
    """Return all fits, each by itself. ``fit_one(algorithm, server, client, job, batches)`` returns (message, upload,
    client, personal model, steps, loss, logged) of a single job; ``mapped`` is ``map`` or a pool's."""
    replicas, count = jobs.client.shape

    def fit(place: tuple[int, int]) -> tuple[Any, ...]:
        s, j = place
        try:
            return fit_one(algorithm, take(servers, s), take(clients, place), take(jobs, place), take(batches, place))
        except Exception as error:
            error.add_note(f"in the local fit of device {int(jobs.client[s, j])}, replica {s}")
            raise

    results = list(mapped(fit, [(s, j) for s in range(replicas) for j in range(count)]))
    logs = all_logged([fit[-1] for fit in results])
    fits = stack([(*fit[:-1], logged) for fit, logged in zip(results, logs, strict=True)])
    msg, upload, client, personal, steps, loss, logged = grid(fits, replicas)
    down, up = nbytes(msg, replicas * count), nbytes(upload, replicas * count)
    return Fit(upload, client, personal, steps, loss, logged, down, up, int(steps.sum()))


def all_logged(logs: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Return the logged sums [2] of several fits, each under the names of all; 0 of 0 examples where a fit logged
    nothing."""
    like = {name: values for logged in logs for name, values in logged.items()}
    return [{name: logged.get(name, torch.zeros_like(values)) for name, values in like.items()} for logged in logs]


def divided(sums: Tensor, names: Sequence[str] | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Split sums over steps, losses [...] or [..., 1 + 2 L] with what training_step logs under L names, into both."""
    if not names:
        return sums, {}
    return sums[..., 0], dict(zip(names, sums[..., 1:].reshape(*sums.shape[:-1], -1, 2).unbind(-2), strict=True))
