"""Losses, accuracies and gradients without training: of global models on everybody, of local ones on their devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.func import grad

from flstudy.algorithms import Batch
from flstudy.execution.executor import TrainingContext
from flstudy.execution.tape import Tape
from flstudy.population import EvaluationIndex, ExampleStore
from flstudy.tasks import Task

CHUNK = 4096  # examples (of sequences: tokens) per replica at once: enough to be fast, few enough for any memory
MOST = 2**26  # bytes of a split's inputs that are kept laid out


class Scores(NamedTuple):
    """Means over each device's examples; NaN where a device has none."""

    loss: Tensor | None  # [S, N] or [S, J]; None where the task knows no loss per example
    accuracy: Tensor | None  # the same shape; None where the task does not say what is correct


class Sheet(NamedTuple):
    """Examples that are measured at once, as they lie in memory."""

    x: Tensor  # [S, B, ...]
    y: Tensor  # [S, B, ...]
    device: Tensor  # [S, B]
    real: Tensor  # [S, B] 1 for an example, 0 for padding


class Sheets:
    """All examples of a split under each device's concept [S, N], laid out sheet by sheet.

    Those that are kept are gathered once, for as many models as are measured on them; unless they take too much memory.
    """

    def __init__(
        self, store: ExampleStore, examples: EvaluationIndex, concepts: Tensor, dtype: torch.dtype, keep: bool
    ) -> None:
        self.store, self.examples, self.concepts, self.dtype = store, examples, concepts, dtype
        x = store.x
        self.size = CHUNK if x.is_floating_point() else max(1, CHUNK // x[0].numel())
        few = examples.rows.numel() * x[0].numel() * x.element_size() <= MOST
        self._kept = list(self._laid_out()) if keep and few else None
        self.counts = concepts.new_zeros(concepts.shape, dtype=dtype)  # [S, N] examples
        for sheet in self:
            self.counts.scatter_add_(1, sheet.device, sheet.real)

    def __iter__(self) -> Iterator[Sheet]:
        return iter(self._kept) if self._kept is not None else self._laid_out()

    def _laid_out(self) -> Iterator[Sheet]:
        for start in range(0, self.examples.rows.shape[1], self.size):
            rows, device = (table[:, start : start + self.size] for table in self.examples)
            device = device.clamp(min=0)
            x, y = self.store.gather(rows[..., None], self.concepts.gather(1, device))
            yield Sheet(x.squeeze(2), y.squeeze(2), device, (rows >= 0).to(self.dtype))


class Survey:
    """Evaluates models in batches over all replicas."""

    def __init__(self, context: TrainingContext) -> None:
        self.task_function, self.store = context
        self.tape = Tape()

    @torch.no_grad()
    def sheets(self, models: Tensor, examples: EvaluationIndex, concepts: Tensor, *, keep: bool = True) -> Sheets:
        """All devices' examples under each device's concept [S, N], for models like these; to be kept, or read once."""
        return Sheets(self.store, examples, concepts, models.dtype, keep)

    def population(self, models: Tensor, examples: EvaluationIndex, concepts: Tensor) -> Scores:
        """The models x [S, n] on all devices' examples, under each device's concept [S, N]."""
        return self.on(models, self.sheets(models, examples, concepts, keep=False))

    @torch.no_grad()
    def on(self, models: Tensor, sheets: Sheets) -> Scores:
        """The models x [S, n] on examples that are laid out."""
        losses = correct = torch.zeros_like(sheets.counts)
        for sheet in sheets:
            losses, correct = self.tape("add", self, self._add, models, sheet, losses, correct)
        return self._scores(losses / sheets.counts, correct / sheets.counts)

    def _add(self, models: Tensor, sheet: Sheet, *sums: Tensor) -> list[Tensor]:
        """Sums [S, N] of losses and of what is correct, a sheet's added."""
        values = self._measure(models, Batch(sheet.x, sheet.y))
        each = [value.to(models.dtype) * sheet.real for value in values]
        return [total.scatter_add(1, sheet.device, value) for total, value in zip(sums, each, strict=True)]

    @torch.no_grad()
    def devices(self, models: Tensor, rows: Tensor, concept: Tensor) -> Scores:
        """The models [S, J, n], each on its own device's examples rows [S, J, V] under concept [S, J]."""
        return self._scores(*self.tape("own", self, self._own, models, rows, concept))

    def _own(self, models: Tensor, rows: Tensor, concept: Tensor) -> list[Tensor]:
        shape = rows.shape[:2]
        rows, models = rows.flatten(0, 1), models.flatten(0, 1)
        real = (rows >= 0).to(models.dtype)
        values = self._measure(models, Batch(*self.store.gather(rows, concept.flatten())))
        count = real.sum(1)
        return [((value.to(models.dtype) * real).sum(1) / count).view(shape) for value in values]

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
        total, inputs = x.new_zeros(len(x), task_function.layout.n), self.store.x
        tokens = 1 if inputs.is_floating_point() else inputs[0].numel()
        size = max(1, CHUNK // (jobs * tokens))

        def one(model: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
            batch = Batch(inputs, labels, mask)
            tensors = task_function.tensors(model)
            trained = {name: tensors.pop(name) for name in task_function.layout.names}
            parts = grad(lambda named: task_function({**named, **tensors}, batch))(trained)
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

        with task_function.evaluating(), one_forward(task_function.module):
            return torch.vmap(one, randomness="different")(models, batch.x, batch.y)


@contextmanager
def one_forward(module: L.LightningModule) -> Iterator[None]:
    """Losses and correctness of a task of flstudy's manner come from one and the same ``forward``; another task may do
    anything with it, and computes it for each."""
    kind = type(module)
    methods = ("example_losses", "example_correct")
    if "forward" in vars(module) or any(getattr(kind, name, None) is not getattr(Task, name) for name in methods):
        yield
        return
    forward, last = module.forward, list[Any]()

    def remembered(x: Tensor) -> Any:
        if not last or last[0] is not x:
            last[:] = x, forward(x)
        return last[1]

    module.forward = remembered  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
