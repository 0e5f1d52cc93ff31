"""Losses, accuracies and gradients of models without training: global ones on all devices, local ones on their own."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.func import grad

from flstudy.algorithms import Batch
from flstudy.execution.context import TrainingContext
from flstudy.execution.loops import NotCompiled
from flstudy.execution.programs import COST_S, Programs
from flstudy.execution.trace_cache import TraceCache
from flstudy.population import EvaluationIndex, ExampleStore
from flstudy.tasks import Task, TaskFunction
from flstudy.tasks.attention import mappable_attention
from flstudy.tasks.findings import TO_DECLARE
from flstudy.user_error import UserError

CHUNK = 4096  # examples (of sequences: tokens) per replica at once: enough to be fast, few enough for any memory
MOST_BYTES = 2**26  # of a split's inputs that are kept laid out
LINE = 32  # examples of one step of a compiled loop: devices hold few, and padding takes as long as they do
COPIES = 2**24  # numbers in the models of lanes that are measured at once
GAIN = 0.4  # share of an evaluation's time that compiling saves, measured on small models


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


class LaneRows:
    """Rows of lanes [A, T, LINE], laid out in parts as they are read: all at once would be as long as the longest.

    Args:
        flat: [D] the rows, those of a lane one after another.
        begin: [A] where each lane's begin.
        counts: [A] how many they are.
        lines: T.
    """

    def __init__(self, flat: Tensor, begin: Tensor, counts: Tensor, lines: int) -> None:
        self.flat, self.begin, self.counts, self.lines = flat, begin, counts, lines

    def __getitem__(self, lanes: slice) -> Tensor:
        at, counts = torch.arange(self.lines * LINE, device=self.flat.device), self.counts[lanes]
        there = (self.begin[lanes, None] + at).clamp(max=max(len(self.flat) - 1, 0))
        rows = torch.where(at < counts[:, None], self.flat[there], -1)
        return rows.view(len(counts), self.lines, LINE)


class Lines(NamedTuple):
    """Examples of lanes as compiled loops read them."""

    rows: Tensor | LaneRows  # [A, T, LINE] of the examples, -1 is padding; lanes with more lines come first
    todo: list[int]  # [A] how many of the T lines hold examples
    concept: Tensor  # [A]
    order: Tensor  # [A] the lane that comes at each place
    counts: Tensor  # [A] examples of each lane, by lane


def lines_of(flat: Tensor, begin: Tensor, counts: Tensor, concept: Tensor) -> Lines:
    """Return the lines of lanes under concept [A], whose rows lie in flat [D] from ``begin`` [A] on, ``counts`` [A]
    each."""
    lines = torch.div(counts + LINE - 1, LINE, rounding_mode="floor")
    order = torch.argsort(-lines, stable=True)
    most = max(int(lines.max()), 1)
    rows = LaneRows(flat, begin[order], counts[order], most)
    few = len(counts) * most * LINE * flat.element_size() <= MOST_BYTES
    return Lines(rows[:] if few else rows, lines[order].tolist(), concept[order], order, counts)


def lines_of_table(rows: Tensor, concept: Tensor) -> Lines:
    """Return the lines of examples rows [A, V] under concept [A]; -1 is padding, which comes last."""
    begin = torch.arange(len(rows), device=rows.device) * rows.shape[1]
    return lines_of(rows.flatten(), begin, (rows >= 0).sum(1), concept)


class Sheets:
    """All examples of a split under each device's concept [S, N], laid out sheet by sheet.

    Kept sheets are gathered once, for as many models as are measured on them; unless they take too much memory.
    """

    def __init__(
        self, store: ExampleStore, examples: EvaluationIndex, concepts: Tensor, dtype: torch.dtype, keep: bool
    ) -> None:
        self.store, self.examples, self.concepts, self.dtype = store, examples, concepts, dtype
        x = store.x
        self.size = CHUNK if store.real else max(1, CHUNK // x[0].numel())
        few = examples.rows.numel() * x[0].numel() * x.element_size() <= MOST_BYTES
        self._kept = list(self._laid_out()) if keep and few else None
        self.counts = concepts.new_zeros(concepts.shape, dtype=dtype)  # [S, N] examples
        for sheet in self:
            self.counts.scatter_add_(1, sheet.device, sheet.real)
        self._lines: Lines | None = None

    def lines(self) -> Lines:
        """Return the examples as lines for compiled loops; a lane is a device of a replica."""
        if self._lines is None:
            rows, counts = self.examples.rows, self.counts.long()
            replica = torch.arange(len(rows), device=rows.device)[:, None]
            begin = replica * rows.shape[1] + counts.cumsum(1) - counts
            self._lines = lines_of(rows.flatten(), begin.flatten(), counts.flatten(), self.concepts.flatten())
        return self._lines

    def __iter__(self) -> Iterator[Sheet]:
        return iter(self._kept) if self._kept is not None else self._laid_out()

    def _laid_out(self) -> Iterator[Sheet]:
        for start in range(0, self.examples.rows.shape[1], self.size):
            rows, device = (table[:, start : start + self.size] for table in self.examples)
            device = device.clamp(min=0)
            x, y = self.store.gather(rows[..., None], self.concepts.gather(1, device))
            yield Sheet(x.squeeze(2), y.squeeze(2), device, (rows >= 0).to(self.dtype))


class ModelEvaluator:
    """Evaluator of models, in batches over all replicas or by compiled loops.

    Args:
        context: task and examples.
        loops: the programs of the executor, once it trains by compiled loops; None before.
    """

    def __init__(self, context: TrainingContext, loops: Callable[[], Programs | None] = lambda: None) -> None:
        self.task_function, self.store = context
        self.trace_cache = TraceCache()
        self.compiled: bool | None = None  # None: not decided
        self._loops = loops
        self._took: dict[bool, list[float]] = {False: [], True: []}  # seconds of evaluations, eager and compiled

    @contextmanager
    def attached(self, round: int, trainer: L.Trainer | None = None) -> Iterator[None]:
        """Let a task that is not mapped know the round (from 1), and its Trainer where there is one."""
        if self.task_function.maps_measures:
            yield
            return
        with self.task_function.attached_to(trainer, round - 1):
            yield

    def _cached(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function, from a trace where the task may be traced: where nothing else than tensors
        decides."""
        if self.task_function.maps_measures:
            return self.trace_cache(name, self, function, *arguments)
        return function(*arguments)

    def weigh(self, seconds: float, left: float) -> None:
        """Choose how to go on by the seconds that an evaluation took and how many are ``left``.

        It is compiled where that saves more than it costs, and no longer where it turns out to be slower. A survey that
        a round asks for counts as an evaluation of its own.
        """
        if self.compiled is False or self._loops() is None:
            return
        took = self._took[bool(self.compiled)]
        took.append(seconds)
        if self.compiled is None and len(took) > 1:
            # The first one lays the examples out; a later one may be the first to be repeated from a trace.
            self.compiled = min(took) * GAIN * left > COST_S or None
        elif self.compiled and len(took) == 4 and min(took[1:]) > min(self._took[False], default=math.inf):
            self.compiled = False

    def choices(self) -> dict[str, Any]:
        """Return whether evaluations are compiled (None before that is decided)."""
        return {"compile_survey": self.compiled}

    def choose(self, choices: dict[str, Any]) -> None:
        """Compile, or not, as the checkpoint's run did."""
        self.compiled = choices.get("compile_survey")

    @torch.no_grad()
    def sheets(self, models: Tensor, examples: EvaluationIndex, concepts: Tensor, *, keep: bool = True) -> Sheets:
        """Return all devices' examples under each device's concept [S, N], for models [...] of this type; to be kept,
        or read once."""
        return Sheets(self.store, examples, concepts, models.dtype, keep)

    def population(self, models: Tensor, examples: EvaluationIndex, concepts: Tensor) -> Scores:
        """Return the scores of the models x [S, n] on all devices' examples, under each device's concept [S, N]."""
        return self.on(models, self.sheets(models, examples, concepts, keep=False))

    @torch.no_grad()
    def on(self, models: Tensor, sheets: Sheets) -> Scores:
        """Return the scores of the models x [S, n] on examples that are laid out."""
        if (programs := self._programs()) is not None:
            lines = sheets.lines()
            replica = torch.div(lines.order, sheets.counts.shape[1], rounding_mode="floor")
            if (means := self._by_loops(programs, models, replica, lines)) is not None:
                return self._scores(*means.view(2, *sheets.counts.shape))
        losses = correct = torch.zeros_like(sheets.counts)
        for sheet in sheets:
            losses, correct = self._cached("add", self._add, models, sheet, losses, correct)
        return self._scores(losses / sheets.counts, correct / sheets.counts)

    def _add(self, models: Tensor, sheet: Sheet, *sums: Tensor) -> list[Tensor]:
        """Add a sheet's losses and what is correct to the sums [S, N]."""
        values = self._measure(models, Batch(sheet.x, sheet.y))
        masked = [value.to(models.dtype) * sheet.real for value in values]
        return [total.scatter_add(1, sheet.device, value) for total, value in zip(sums, masked, strict=True)]

    @torch.no_grad()
    def devices(self, models: Tensor, rows: Tensor, concept: Tensor) -> Scores:
        """Return the scores of the models [S, J, n], each on its own device's examples rows [S, J, V] under concept [S,
        J]."""
        if (programs := self._programs()) is not None:
            lines = lines_of_table(rows.flatten(0, 1), concept.flatten())
            if (means := self._by_loops(programs, models.flatten(0, 1), lines.order, lines)) is not None:
                return self._scores(*means.view(2, *concept.shape))
        return self._scores(*self._cached("own", self._own, models, rows, concept))

    def _programs(self) -> Programs | None:
        return self._loops() if self.compiled else None

    def _by_loops(self, programs: Programs, models: Tensor, place: Tensor, lines: Lines) -> Tensor | None:
        """Return [2, A]: mean losses and accuracies of the lanes, the one at each place measured with models[place];
        None, and eager evaluations from then on, if loops cannot be compiled."""
        size, parts = max(COPIES // models.shape[-1], 2), list[Tensor]()
        try:
            for here in (slice(begin, begin + size) for begin in range(0, len(place), size)):
                lane_models = models[place[here]]
                examples = lines.rows[here], lines.todo[here], lines.concept[here]
                start = lane_models.new_zeros(len(lane_models), 2)
                parts.append(programs.measured(line_scored, start, *examples, lane_models))
        except NotCompiled as error:
            self.compiled = False
            warnings.warn(f"evaluations run eagerly, since torch could not compile them: {error}", stacklevel=2)
            return None
        sums = torch.cat(parts)
        return (torch.empty_like(sums).index_copy(0, lines.order, sums) / lines.counts[:, None]).T.contiguous()

    def _own(self, models: Tensor, rows: Tensor, concept: Tensor) -> list[Tensor]:
        shape = rows.shape[:2]
        rows, models = rows.flatten(0, 1), models.flatten(0, 1)
        real = (rows >= 0).to(models.dtype)
        values = self._measure(models, Batch(*self.store.gather(rows, concept.flatten())))
        count = real.sum(1)
        return [((value.to(models.dtype) * real).sum(1) / count).view(shape) for value in values]

    @torch.no_grad()
    def gradients(self, models: Tensor, rows: Tensor, concept: Tensor) -> Tensor:
        """Return [S, J, n]: gradients of the mean loss at the models x [S, n], in evaluation mode, over each device's
        examples rows [S, J, V] under concept [S, J].

        Raises:
            UserError: if the task defines no loss per example, so that ragged devices cannot be masked.
        """
        task_function, (replicas, jobs) = self.task_function, rows.shape[:2]
        if not task_function.per_example:
            raise UserError(
                "algorithm: it needs the gradient over all of a device's examples, but the task declares no losses of "
                f"single ones; {TO_DECLARE}"
            )
        rows, lives = rows.flatten(0, 1), concept.flatten()
        x = models.repeat_interleave(jobs, 0)
        total = x.new_zeros(len(x), task_function.layout.n)
        tokens = 1 if self.store.real else self.store.x[0].numel()
        size = max(1, CHUNK // (jobs * tokens))

        def one(model: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
            batch = Batch(inputs, labels, mask)
            tensors = task_function.tensors(model)
            trained = {name: tensors.pop(name) for name in task_function.layout.names}
            parts = grad(lambda named: task_function({**named, **tensors}, batch))(trained)
            return task_function.layout.flat(parts) * mask.sum()

        with task_function.evaluating():
            for part in torch.split(rows, size, 1):
                total += self._over_lanes(one, x, *self.store.gather(part, lives), part >= 0)
        return (total / (rows >= 0).sum(1, keepdim=True)).view(replicas, jobs, -1)

    def _scores(self, loss: Tensor, accuracy: Tensor) -> Scores:
        task_function = self.task_function
        return Scores(loss if task_function.per_example else None, accuracy if task_function.scores_accuracy else None)

    def _measure(self, models: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the losses and correctness [L, B] of models [L, n] on batches [L, B, ...]."""
        task_function = self.task_function

        def one(model: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return examples_measured(task_function, model, Batch(x, y))

        with task_function.evaluating(), one_forward(task_function.module):
            losses, correct = self._over_lanes(one, models, batch.x, batch.y)
        return losses, correct

    def _over_lanes(self, function: Callable[..., Any], *arguments: Tensor) -> Any:
        """Return the results of a function of one lane for all lanes, at once where the task can be mapped."""
        if self.task_function.maps_measures:
            with mappable_attention(self.store.x.device):
                return torch.vmap(function, randomness="different")(*arguments)
        results = [function(*lane) for lane in zip(*arguments, strict=True)]
        if isinstance(results[0], Tensor):
            return torch.stack(results)
        return tuple(torch.stack(of_lanes) for of_lanes in zip(*results, strict=True))


def examples_measured(task_function: TaskFunction, model: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the losses and correctness [B] of a model [n]; zeros for what the task does not define."""
    unknown = model.new_zeros(len(batch.y))
    losses = task_function.example_losses(model, batch) if task_function.per_example else unknown
    correct = task_function.example_correct(model, batch) if task_function.scores_accuracy else unknown
    return losses, correct


def line_scored(
    task_function: TaskFunction,
    algorithm: None,
    store: ExampleStore,
    sums: Tensor,
    line: Tensor,
    real: Tensor,
    concept: Tensor,
    model: Tensor,
) -> Tensor:
    """Take a step of a compiled loop that measures: add a line's losses and correctness to a lane's sums [2].

    Args:
        task_function: of the task.
        algorithm: there is none.
        store: all examples.
        sums: [2] of losses and correctness before.
        line: [B] rows of the examples, -1 for padding.
        real: [] unused, since lines that are not real are padding.
        concept: [] of the device.
        model: [n].
    """
    with task_function.evaluating(), one_forward(task_function.module):
        measured = examples_measured(task_function, model, Batch(*store.gather(line, concept)))
    return sums + torch.stack([torch.where(line >= 0, value.to(sums.dtype), 0).sum() for value in measured])


@contextmanager
def one_forward(module: L.LightningModule) -> Iterator[None]:
    """Share one ``forward`` between losses and correctness of a `Task` that defines neither itself; another task may do
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
