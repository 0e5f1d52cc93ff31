"""Evaluation of the models that devices use and of the server's, on all devices or a panel, and of participants' local
models on their own examples.

A metric is of the model that each device uses: its own where the method is ``personalized``, of several global models
the one that it chooses, or else the only one. Its ``global_`` twin is of the server's model, or of the chosen one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.algorithms import Algorithm, Round
from flstudy.execution import ClientBank, Fit, ModelEvaluator, Scores
from flstudy.execution.devices import numbers
from flstudy.execution.model_evaluator import Sheets
from flstudy.execution.parts import TestRows
from flstudy.execution.trace_cache import TraceCache
from flstudy.federation.asked_devices import Asked, AskedDevices, stacked
from flstudy.federation.module_metrics import module_metrics, with_logged
from flstudy.metrics.measure import Measure, values_of
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import of_server
from flstudy.population import Cohort, Population, Split
from flstudy.tasks.findings import TO_DECLARE
from flstudy.user_error import UserError

MEASURED: tuple[Split, ...] = ("valid", "test")
MOST_NUMBERS = 2**26  # in the devices' own models that are measured at once


class DeviceScores(NamedTuple):
    """Measurements of single devices in one evaluation."""

    round: int  # from 1
    devices: Tensor  # [S, P] their numbers
    concepts: Tensor  # [S, P] under which they live
    available: NDArray[np.bool_]  # [S, P] which of them count
    metrics: dict[str, Tensor]  # [S, P] each, by name


class Evaluation(AskedDevices):
    """Evaluation of the models that devices use and of the server's.

    Args:
        algorithm: the method.
        evaluator: measures models.
        population: the devices and their data, settled.
        device: where the models are.
        measure: of the devices, beside means and deviations; None: there is none.
        panel: the devices that are asked; None: all.
        trainer: to which the task is attached while its own steps measure it; None: there is none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        evaluator: ModelEvaluator,
        population: Population,
        device: torch.device,
        measure: Measure | None = None,
        panel: Panel | None = None,
        trainer: L.Trainer | None = None,
    ) -> None:
        super().__init__(algorithm, evaluator, population, device, panel, trainer)
        self.measure, self.trace_cache = measure, evaluator.trace_cache
        self.by_device: DeviceScores | None = None  # of the last evaluation

    def ask(self, server: Any, devices: Tensor, concept: Tensor, round: int) -> tuple[Tensor, Tensor]:
        """Return the answers of a round's devices to the method's survey, and which models [S, M] it is about.

        Args:
            server: the server's state, leaves [S, ...].
            devices: [S, J] the jobs' devices.
            concept: [S, J] the concepts of their examples.
            round: the round's number, from 1.

        Returns:
            The answers are losses or error rates [S, J, M], ∞ for models that are not in use. For a method that asks
            for gradients they are gradients [S, J, 1, n] of its one model on all training examples.
        """
        models = self.algorithm.global_models(server)
        with self.evaluator.attached(round):
            if self.algorithm.asks == "gradient":
                rows = self.population.device_data.examples_of("train", devices, round).to(self.device)
                gradients = self.evaluator.gradients(models, rows, concept).unsqueeze(2)
                return gradients, torch.ones_like(server.x[:, :1]).bool()
            examples = self._on_device(self.population.device_data.evaluation_index("train", round, devices))
            return self._ask(server, self.evaluator.sheets(models, examples, concept))

    def losses(self, server: Any, devices: Tensor, concept: Tensor, round: int) -> Tensor:
        """Return [S, J]: the mean loss of the server's one model on the training examples of a round's devices.

        Args:
            server, devices, concept, round: as for `ask`.

        Raises:
            UserError: where the task does not tell the losses of single examples.
        """
        models = self.algorithm.global_models(server)
        with self.evaluator.attached(round):
            examples = self._on_device(self.population.device_data.evaluation_index("train", round, devices))
            loss = self.evaluator.on(stacked(models)[:, 0], self.evaluator.sheets(models, examples, concept)).loss
        if loss is None:
            selection = type(self.population.selection).__name__
            raise UserError(
                f"population.selection: {selection} needs the loss of single examples, which the task does not tell; "
                f"{TO_DECLARE}"
            )
        return loss

    def __call__(
        self, server: Any, bank: ClientBank, cohort: Cohort, fit: Fit, round: int, local_scores: Scores | None = None
    ) -> dict[str, list[float]]:
        """Return all metrics of an evaluation after a round, a value per replica.

        Args:
            server: leaves [S, ...].
            bank: the devices' rows.
            cohort: of this round, as it was trained.
            fit: its results.
            round: its number, from 1.
            looked: scores [S, D] of the participants' local models, measured during the round. None: they are measured
                here from ``fit.personal``, or left out where it holds no models.
        """
        metrics = self.of_devices(server, bank, cohort.round, round)
        if local_scores is None and fit.personal.shape[-1]:
            with self.evaluator.attached(round, self.trainer):
                local_scores = self.scores_of_local_models(cohort, fit.personal, round)
        of_participants = [] if local_scores is None else [Column("test/personal_accuracy", local_scores.accuracy)]
        return with_logged(over_devices(of_participants, self.trace_cache), metrics, self.evaluator.task_function)

    def of_devices(
        self, server: Any, bank: ClientBank, this_round: Round, round: int, splits: Sequence[Split] = MEASURED
    ) -> dict[str, list[float]]:
        """Return the metrics of the models that devices use and of the server's, a value per replica.

        They are over the devices available in a round (from 1), whose ``this_round`` is given.

        Raises:
            UserError: for two metrics of one name, or devices that choose by a measure that the task does not tell.
        """
        self.by_device = None
        shared = self._metrics(server, None, this_round, round, splits)
        used = self._metrics(server, bank, this_round, round, splits) if self.algorithm.personalized else shared
        twins = {of_server(name): values for name, values in shared.items()}
        return with_logged(used, twins, self.evaluator.task_function)

    def _metrics(
        self, server: Any, bank: ClientBank | None, this_round: Round, round: int, splits: Sequence[Split]
    ) -> dict[str, list[float]]:
        """Return the metrics of the devices' own models, whose rows a ``bank`` holds, or without it of the server's."""
        asked = self.asked(round)
        columns: list[Column] = []
        with self.evaluator.attached(round, self.trainer):
            for split, scores in self._scores_by_split(server, bank, this_round, asked, round, splits).items():
                counting = asked.error, self.weights(split, asked, round)
                columns.append(Column(f"{split}/loss", scores.loss, asked.available, False, *counting))
                columns.append(Column(f"{split}/accuracy", scores.accuracy, asked.available, True, *counting))
            self._note(columns, asked, round, of_server_only=bank is None and self.algorithm.personalized)
            metrics = over_devices(columns, self.trace_cache)
            if self.measure is not None:
                metrics |= values_of(self.measure, columns)
        logged = module_metrics(self, server, bank, this_round, round, splits)
        self._note_logged(asked)
        return with_logged(metrics, logged, self.evaluator.task_function)

    def _note(self, columns: "Sequence[Column]", asked: Asked, round: int, *, of_server_only: bool) -> None:
        """Note what was measured of the devices asked, on models that they use or, if ``of_server_only``, do not."""
        earlier = {} if self.by_device is None else self.by_device.metrics
        measured = {column.name: column.values for column in columns if column.values is not None}
        named = {of_server(name) if of_server_only else name: values for name, values in measured.items()}
        self.by_device = DeviceScores(round, asked.devices, asked.concepts, asked.available, {**earlier, **named})

    def _note_logged(self, asked: Asked) -> None:
        """Note what the task's own steps measured of the devices asked; NaN where they measured nothing."""
        assert self.by_device is not None
        for name, entries in self.logged.items():
            table = torch.full((len(asked.available), self.population.clients), torch.nan, dtype=torch.float64)
            for entry in entries:
                table[entry.replica, entry.device] = float(entry.value)
            self.by_device.metrics[name] = table.gather(1, asked.devices)
        self.logged = {}

    def _scores_by_split(
        self, server: Any, bank: ClientBank | None, this_round: Round, asked: Asked, round: int, splits: Sequence[Split]
    ) -> dict[Split, Scores]:
        """Return the scores [S, P], by split, of models of the devices asked: their own, or without a ``bank`` the
        server's."""
        if bank is not None:
            return {split: self._scores_of_own_models(server, bank, split, asked, round) for split in splits}
        models = self.models(server)
        sheets = {split: self._sheets_of(models, split, asked, round) for split in splits}
        if models.shape[1] == 1:
            return {split: self.evaluator.on(models[:, 0], sheets[split]) for split in splits}
        choice = self.choice(server, this_round, round, asked)
        used = torch.zeros(models.shape[:2], dtype=torch.bool, device=self.device).scatter_(1, choice, True)
        return {split: self._scores_of_choice(models, choice, used, sheets[split]) for split in splits}

    def _scores_of_choice(self, models: Tensor, choice: Tensor, used: Tensor, sheets: Sheets) -> Scores:
        """Return the scores [S, P] of the devices asked, each under the global model that it chose.

        Args:
            models: [S, M, n] the global models.
            choice: [S, P] index of each device's model.
            used: [S, M] whether any device chose a model.
            sheets: the devices' examples.
        """
        models_used = used.any(0).nonzero().squeeze(1).tolist()
        scores = [self.evaluator.on(models[:, m], sheets) for m in models_used]
        place = torch.zeros(models.shape[1], dtype=torch.int64, device=self.device)
        place[models_used] = torch.arange(len(models_used), device=self.device)

        def pick(by_model: list[Any]) -> Tensor | None:
            if by_model[0] is None:
                return None
            return torch.stack(by_model, -1).gather(-1, place[choice][..., None]).squeeze(-1)

        return Scores(pick([score.loss for score in scores]), pick([score.accuracy for score in scores]))

    def _scores_of_own_models(self, server: Any, bank: ClientBank, split: Split, asked: Asked, round: int) -> Scores:
        """Return the scores of the devices' own models, some devices at a time."""
        size = max(1, MOST_NUMBERS // server.x.numel())
        deployed = torch.vmap(torch.vmap(self.algorithm.deployed, in_dims=(None, 0)))
        per_device = self.examples_per_device(round)
        parts = []
        for clients, concepts in zip(asked.devices.split(size, 1), asked.concepts.split(size, 1), strict=True):
            models = deployed(server, bank.read(self.algorithm, clients, stacked(server.x)[:, 0]))
            rows = self.population.device_data.examples_of(split, clients, round, most=per_device).to(self.device)
            parts.append(self.evaluator.devices(models, rows, concepts))
        columns = zip(*parts, strict=True)
        return Scores(*(None if column[0] is None else torch.cat(column, 1) for column in columns))  # type: ignore

    def scores_of_local_models(self, cohort: Cohort, models: Tensor, round: int) -> Scores:
        """Return the scores [S, D] of the participants' local models [S, J, n] on their own test examples in a round
        (from 1)."""
        return self.test_rows(cohort, round).scores(self.evaluator, models)

    def test_rows(self, cohort: Cohort, round: int) -> TestRows:
        """Return the participants' own test examples in a round (from 1), on which their local models are measured.

        Where a device trained several models, the one that it trained under its present concept is measured.
        """
        per_device = self.algorithm.jobs_per_device
        concepts = cohort.batches.concept
        present = concepts == self._concepts_in(round).gather(1, cohort.jobs.client)
        job = present.unflatten(1, (-1, per_device)).to(torch.int64).argmax(-1)
        clients = cohort.devices[:, ::per_device]
        rows = self.population.device_data.examples_of("test", clients, round, most=self.examples_per_device(round))
        first = torch.arange(job.shape[1], device=job.device) * per_device
        return TestRows(job, rows.to(self.device), concepts.gather(1, job + first), per_device)


class Column(NamedTuple):
    """Column of one metric of single devices."""

    name: str  # its standard deviation over devices is called ``name_spread``
    values: Tensor | None  # [S, N]; None: it is not measured
    available: NDArray[np.bool_] | None = None  # [S, N] which devices count, at least one of each replica; None: all
    with_spread: bool = True  # whether the deviation is wanted
    error: list[float] | None = None  # [S] the mean's standard error in deviations, ``name_se``; None: it is not wanted
    weights: Tensor | None = None  # [S, N] what each device counts; None: all count alike


def over_devices(columns: Sequence[Column], trace_cache: TraceCache | None = None) -> dict[str, list[float]]:
    """Return the mean over devices for every replica, and the standard deviation over devices; all metrics leave the
    device at once.

    FLASH (Panchal et al. 2023), eq. (1) and (2): every device counts the same, however many examples it has;
    eq. (3): the deviation divides by the number of devices. With weights they are those of a weighted mean.
    """
    trace_cache, names, lines = trace_cache or TraceCache(), list[str](), list[Tensor]()
    for name, values, available, with_spread, error, weights in columns:
        if values is None:
            continue
        counts = [] if weights is None else counted(weights, available)
        means, deviations = trace_cache("over devices", None, over_lines, counted(values, available), counts)
        names += [name, f"{name}_spread"][: 1 + with_spread]
        lines += [means, deviations][: 1 + with_spread]
        if error is not None:
            names.append(f"{name}_se")
            lines.append(deviations * torch.tensor(error, dtype=deviations.dtype, device=deviations.device))
    return dict(zip(names, torch.stack(lines).tolist(), strict=True)) if lines else {}


def counted(values: Tensor, available: NDArray[np.bool_] | None) -> list[Tensor]:
    """Return the values [S, N] of the devices that count, those ``available`` [S, N]: one table [S, C], or a line
    [1, C_s] for each replica where their numbers differ."""
    doubles = values.double().contiguous()
    if available is None or available.all():
        return [doubles]
    places = [numbers(np.flatnonzero(line).tolist(), values.device) for line in available]
    if (available == available[0]).all():
        return [doubles[:, places[0]]]
    return [line[here][None] for line, here in zip(doubles, places, strict=True)]


def over_lines(parts: Sequence[Tensor], weights: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
    """Return the mean and deviation over devices, [S] each: all count alike, or by weights formed like them."""
    if not weights:
        return torch.cat([part.mean(1) for part in parts]), torch.cat([part.std(1, correction=0) for part in parts])
    shares = [weight / weight.sum(1, keepdim=True) for weight in weights]
    parts = [torch.where(share > 0, part, 0) for part, share in zip(parts, shares, strict=True)]
    means = [(share * part).sum(1) for part, share in zip(parts, shares, strict=True)]
    squares = [
        (share * (part - mean[:, None]) ** 2).sum(1) for part, share, mean in zip(parts, shares, means, strict=True)
    ]
    return torch.cat(means), torch.cat(squares).sqrt()
