"""Interface of executors: the context that each stands on, and the fits that it returns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from flstudy.algorithms import Algorithm, Batch, Job
from flstudy.algorithms.parts.signatures import Gradient
from flstudy.execution.trees import grid, nbytes, stack, take
from flstudy.population import Batches, ExampleStore
from flstudy.tasks import TaskFunction

if TYPE_CHECKING:
    from flstudy.execution.programs import Programs


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
        """All local fits of one round.

        Raises:
            UserError: the executor cannot train the task so; the message names one that can.
        """

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """Choose how to go on by the seconds that a round's fits took; returns whether that is settled for good."""
        return True

    def loops(self) -> "Programs | None":
        """The programs by which it trains, once these are compiled loops; others can then be made beside them."""
        return None

    def choices(self) -> dict[str, Any]:
        """Choices made while running; checkpointed, since another choice would round differently."""
        return {}

    def choose(self, choices: dict[str, Any]) -> None:
        """Take up the choices of a checkpoint."""
        return


class TrainingContext(NamedTuple):
    """Task and examples on one device, on which all executors stand."""

    task_function: TaskFunction
    store: ExampleStore


def one_by_one(
    fit_one: Callable[..., tuple[Any, ...]],
    algorithm: Algorithm,
    servers: Any,
    clients: Any,
    jobs: Job,
    batches: Batches,
    mapped: Callable[..., Iterable[tuple[Any, ...]]] = map,
) -> Fit:
    """All fits, each by itself. ``fit_one(algorithm, server, client, job, batches)`` returns (message, upload, client,
    personal model, steps, loss, logged) of a single job; ``mapped`` is ``map`` or a pool's."""
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
    """Logged sums of several fits, each under the names of all; 0 of 0 examples where a fit logged nothing."""
    like = {name: values for logged in logs for name, values in logged.items()}
    return [{name: logged.get(name, torch.zeros_like(values)) for name, values in like.items()} for logged in logs]


def divided(sums: Tensor, names: Sequence[str] | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Split sums over steps, losses [...] or [..., 1 + 2 L] with what training_step logs under L names, into both."""
    if not names:
        return sums, {}
    return sums[..., 0], dict(zip(names, sums[..., 1:].reshape(*sums.shape[:-1], -1, 2).unbind(-2), strict=True))


def gradient(algorithm: Algorithm, task_function: TaskFunction, msg: Any, client: Any) -> Gradient:
    """∇ of the algorithm's local objective. It differentiates with respect to the named tensors and concatenates:
    differentiating through slices of the flat vector would cost one full-size addition for each tensor. The gradient of
    a model with buffers is followed by the buffers after the pass."""
    layout, buffers, names = task_function.layout, task_function.buffers, task_function.findings.training_logs

    def with_logs(loss: Tensor, listener: TaskFunction) -> Tensor:
        return torch.cat([loss.reshape(1), listener.heard_sums(loss)]) if names else loss

    def grad(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if len(y) > layout.n:
            x, b = torch.split(y, [layout.n, len(y) - layout.n])
            return with_buffers(x, b, batch)
        if names:
            return and_logs(y, batch, names)
        tensors, loss = grad_and_value(lambda named: algorithm.loss(task_function, named, batch, msg, client))(
            layout.split(y)
        )
        return layout.flat(tensors), loss

    def and_logs(y: Tensor, batch: Batch, names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        listener = task_function.listening(names)

        def objective(named: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            loss = algorithm.loss(listener, named, batch, msg, client)
            return loss, with_logs(loss.detach(), listener)

        tensors, (_, losses) = grad_and_value(objective, has_aux=True)(layout.split(y))
        return layout.flat(tensors), losses

    def with_buffers(x: Tensor, b: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        task = task_function.holding(b)
        task = task.listening(names) if names else task

        def objective(named: dict[str, Tensor]) -> tuple[Tensor, Any]:
            live = {name: part.clone() for name, part in buffers.split(b).items()}  # which the pass writes to
            loss = algorithm.loss(task, {**named, **live}, batch, msg, client)
            return loss, (live, with_logs(loss.detach(), task))

        tensors, (_, (live, losses)) = grad_and_value(objective, has_aux=True)(layout.split(x))
        return torch.cat([layout.flat(tensors), buffers.flat(live, b).detach()]), losses

    return grad


def validation_loss(algorithm: Algorithm, task_function: TaskFunction, y: Tensor, batch: Batch) -> Tensor:
    """[]: the loss on a device's validation examples by which it stops early (FLASH, Alg. 1 line 9)."""
    with task_function.evaluating():
        mean = task_function.fit(y, batch)
    if algorithm.valid_loss == "mean":
        return mean
    count = batch.mask.sum() if batch.mask is not None else torch.tensor(len(batch.y), device=y.device)
    return mean * count
