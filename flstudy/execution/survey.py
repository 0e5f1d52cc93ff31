"""Losses, accuracies and gradients without training: of global models on everybody, of local ones on their devices."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from flstudy.algorithms import Batch
from flstudy.execution.executor import TrainingContext
from flstudy.population import EvaluationIndex

CHUNK = 4096  # examples (of sequences: tokens) per replica at once: enough to be fast, few enough for any memory


class Scores(NamedTuple):
    """Means over each device's examples; NaN where a device has none."""

    loss: Tensor | None  # [S, N] or [S, J]; None where the task knows no loss per example
    accuracy: Tensor | None  # the same shape; None where the task does not say what is correct


class Survey:
    """Evaluates models in batches over all replicas."""

    def __init__(self, context: TrainingContext) -> None:
        self.task_function, self.store = context

    @torch.no_grad()
    def population(self, models: Tensor, examples: EvaluationIndex, concepts: Tensor) -> Scores:
        """The models x [S, n] on all devices' examples, under each device's concept [S, N]."""
        sums = models.new_zeros((3, *concepts.shape))  # examples, losses, correct
        inputs = self.store.x
        size = CHUNK if inputs.is_floating_point() else max(1, CHUNK // inputs[0].numel())
        for start in range(0, examples.rows.shape[1], size):
            rows, device = (table[:, start : start + size] for table in examples)
            real = (rows >= 0).to(models.dtype)
            concept = concepts.gather(1, device.clamp(min=0))
            x, y = self.store.gather(rows[..., None], concept)
            values = self._measure(models, Batch(x.squeeze(2), y.squeeze(2)))
            for total, value in zip(sums, (torch.ones_like(real), *values), strict=True):
                total.scatter_add_(1, device.clamp(min=0), value.to(models.dtype) * real)
        count, losses, correct = sums
        return self._scores(losses / count, correct / count)

    @torch.no_grad()
    def devices(self, models: Tensor, rows: Tensor, concept: Tensor) -> Scores:
        """The models [S, J, n], each on its own device's examples rows [S, J, V] under concept [S, J]."""
        shape = rows.shape[:2]
        rows, models = rows.flatten(0, 1), models.flatten(0, 1)
        x, y = self.store.gather(rows, concept.flatten())
        real = (rows >= 0).to(models.dtype)
        losses, correct = (value.to(models.dtype) * real for value in self._measure(models, Batch(x, y)))
        count = real.sum(1)
        return self._scores((losses.sum(1) / count).view(shape), (correct.sum(1) / count).view(shape))

    @torch.no_grad()
    def gradients(self, models: Tensor, rows: Tensor, concept: Tensor) -> Tensor:
        """[S, J, n]: gradients of the mean loss at the models x [S, n], in evaluation mode, over each device's examples
        rows [S, J, V] under concept [S, J].

        Raises:
            ValueError: if the task tells no loss per example, so that ragged devices cannot be masked.
        """
        task_function, (replicas, jobs) = self.task_function, rows.shape[:2]
        if not task_function.per_example:
            raise ValueError(
                "algorithm: it needs the gradient over all of a device's examples, but the task defines only "
                "training_step; add example_losses(batch) -> [B] to the task"
            )
        rows, lives = rows.flatten(0, 1), concept.flatten()
        x = models.repeat_interleave(jobs, 0)
        total, inputs = torch.zeros_like(x), self.store.x
        tokens = 1 if inputs.is_floating_point() else inputs[0].numel()
        size = max(1, CHUNK // (jobs * tokens))

        def one(model: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
            batch = Batch(inputs, labels, mask)
            parts = grad(lambda named: task_function(named, batch))(task_function.layout.split(model))
            return task_function.layout.flat(parts) * mask.sum()

        with task_function.evaluating():
            for part in torch.split(rows, size, 1):
                total += torch.vmap(one, randomness="different")(x, *self.store.gather(part, lives), part >= 0)
        return (total / (rows >= 0).sum(1, keepdim=True)).view(replicas, jobs, -1)

    def _scores(self, loss: Tensor, accuracy: Tensor) -> Scores:
        task_function = self.task_function
        return Scores(loss if task_function.per_example else None, accuracy if task_function.scores_accuracy else None)

    def _measure(self, models: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses and correctness [L, B] of models [L, n] on batches [L, B, ...]."""
        task_function = self.task_function

        def one(model: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            unknown = model.new_zeros(len(y))
            losses = task_function.example_losses(model, Batch(x, y)) if task_function.per_example else unknown
            correct = task_function.example_correct(model, Batch(x, y)) if task_function.scores_accuracy else unknown
            return losses, correct

        with task_function.evaluating():
            return torch.vmap(one, randomness="different")(models, batch.x, batch.y)
