"""The local objective of a device: its gradient by batches, and its loss on examples for validation."""

from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.parts.signatures import Gradient
from flstudy.tasks import TaskFunction


def gradient(algorithm: Algorithm, task_function: TaskFunction, msg: Any, client: Any) -> Gradient:
    """Return ∇ of the algorithm's local objective: a function of a model y [n] and a batch.

    It returns the gradient [n] and the loss [], or [1 + 2 L] where ``training_step`` logs L names. For a model with
    buffers [n + b] the gradient is followed by the buffers after the pass.

    It differentiates with respect to the named tensors and concatenates: differentiating through slices of the flat
    vector would cost one full-size addition for each tensor.
    """
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
    """Return []: the loss of a model y [n] on a device's validation examples, by which it stops early (FLASH, Alg. 1
    line 9)."""
    with task_function.evaluating():
        mean = task_function.fit(y, batch)
    if algorithm.valid_loss == "mean":
        return mean
    count = batch.mask.sum() if batch.mask is not None else torch.tensor(len(batch.y), device=y.device)
    return mean * count
