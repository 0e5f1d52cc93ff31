"""The devices that an evaluation asks, and the models that they use."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.algorithms import Algorithm, Job, Round
from flstudy.execution import ModelEvaluator
from flstudy.execution.devices import to_device
from flstudy.execution.model_evaluator import Sheets
from flstudy.metrics.panel import Panel
from flstudy.population import EvaluationIndex, Population, Split
from flstudy.tasks.findings import TO_DECLARE, TO_SAY_CORRECT
from flstudy.user_error import UserError


class Asked(NamedTuple):
    """Devices that an evaluation asks."""

    clients: Tensor | None  # [S, P] the panel's devices, on the CPU; None: all devices
    concepts: Tensor  # [S, P] concept of each device's examples
    available: NDArray[np.bool_]  # [S, P] whether a device is available, and so counts
    error: list[float] | None  # [S] standard error of a mean, in standard deviations over devices; None: not reported

    @property
    def devices(self) -> Tensor:
        """[S, P]: their numbers, on the CPU."""
        if self.clients is not None:
            return self.clients
        return torch.arange(self.concepts.shape[1]).expand(self.concepts.shape)


class LoggedByDevice(Protocol):
    """Number that a module's own steps have logged of one device."""

    @property
    def replica(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def value(self) -> Tensor: ...  # []


class AskedDevices:
    """Devices that are asked in a round, a panel of them or all: what they hold, and which model each of them uses.

    Args:
        algorithm: the method.
        evaluator: measures models.
        population: the devices and their data, settled.
        device: where the models are.
        panel: the devices that are asked; None: all.
        trainer: to which the task is attached while its own steps measure it; None: there is none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        evaluator: ModelEvaluator,
        population: Population,
        device: torch.device,
        panel: Panel | None = None,
        trainer: L.Trainer | None = None,
    ) -> None:
        self.trainer, self.panel = trainer, panel
        self.algorithm, self.evaluator, self.population, self.device = algorithm, evaluator, population, device
        self.logged = dict[str, Sequence[LoggedByDevice]]()  # what a module's own steps measured of single devices last
        self.undefined = set[str]()  # a module's measures that were undefined on a device, which is told once
        self.examples: dict[Split, EvaluationIndex] = {}  # of those asked, in the round that was evaluated last
        self._moment_of_examples: dict[Split, Hashable] = {}  # key of `examples`, which hold while it is the same
        self._sheets: dict[Split, Sheets] = {}  # of `examples` under `_last_concepts`
        self._last_concepts = torch.empty(0, 0, dtype=torch.int64)  # [S, N] of the round that was evaluated last
        self._panel_of_available: tuple[NDArray[np.bool_], Tensor] | None = None  # [S, N] available, [S, P] their panel
        self._last_clients: Tensor | None = None  # [S, P] who was asked last; None: everybody

    def asked(self, round: int) -> Asked:
        """Return the devices that are asked in a round (from 1): the panel, or all."""
        everybody = self._all_devices(round)  # of whom those count who are available, as in eq. (1)
        if self.panel is None or self.panel.clients is None:
            return self._note_asked(everybody)
        if self.panel.asks_everybody(round):
            return self._note_asked(everybody._replace(error=[0.0] * len(everybody.available)))
        clients = self._panel(self.panel, self.panel.clients, everybody.available)
        error = [self.panel.error(clients.shape[1], int(line.sum())) for line in everybody.available]
        concepts = everybody.concepts.gather(1, clients.to(self.device))
        return self._note_asked(Asked(clients, concepts, np.ones(clients.shape, dtype=bool), error))

    def everybody(self, round: int) -> Asked:
        """Return all devices in a round (from 1), whoever is asked else."""
        return self._note_asked(self._all_devices(round))

    def _all_devices(self, round: int) -> Asked:
        return Asked(None, self._concepts_in(round), self.population.available(round), None)

    def _note_asked(self, asked: Asked) -> Asked:
        """Note who is asked next, and drop the sheets of others."""
        if asked.clients is not self._last_clients:
            self._last_clients, self._moment_of_examples, self._sheets = asked.clients, {}, {}
        return asked

    def _panel(self, panel: Panel, clients: int, available: NDArray[np.bool_]) -> Tensor:
        """Return [S, P]: the panel of the available devices [S, N]; the same tensor as long as these are the same."""
        if self._panel_of_available is None or not np.array_equal(self._panel_of_available[0], available):
            population, count = self.population, min(clients, int(available.sum(1).min()))
            pairs = zip(population.seeds, population.members, available, strict=True)
            lines = [panel.draw(seed, membership.shared.sum(1), line, count) for seed, membership, line in pairs]
            self._panel_of_available = available, torch.from_numpy(np.stack(lines))
        return self._panel_of_available[1]

    def _concepts_in(self, round: int) -> Tensor:
        """Return [S, N]: the concepts of a round; the same tensor as long as they are the same."""
        concepts = self.population.concepts(round)
        if not torch.equal(concepts, self._last_concepts):
            self._last_concepts, self._concepts_on_device = concepts, to_device(concepts, self.device)
            self._sheets = {}
        return self._concepts_on_device

    def _examples(self, split: Split, asked: Asked, round: int) -> EvaluationIndex:
        """Return the examples of the devices asked; collected only where they have changed since the last time."""
        moment = self.population.device_data.moment(split, round)
        if self._moment_of_examples.get(split) != moment:
            per_device = None if split == "train" else self.examples_per_device(round)
            selection = () if asked.clients is None else (asked.clients, per_device)
            index = self.population.device_data.evaluation_index(split, round, *selection)
            self.examples[split] = self._on_device(index)
            self._moment_of_examples[split] = moment
            self._sheets.pop(split, None)
        return self.examples[split]

    def weights(self, split: Split, asked: Asked, round: int) -> Tensor | None:
        """Return what each device asked counts in a mean, [S, P]: its number of examples; None: all count alike."""
        if self.panel is None or self.panel.weighting == "uniform":
            return None
        rows, device = self._examples(split, asked, round)
        counts = torch.zeros(asked.available.shape, dtype=torch.float64, device=rows.device)
        return counts.scatter_add_(1, device.clamp(min=0), (rows >= 0).double())  # padding is nobody's, and counts 0

    def examples_per_device(self, round: int) -> int | None:
        """Return the most examples of a split on which a device is evaluated in a round (from 1); None: all of them.

        Devices that choose among global models always use all their training examples.
        """
        return None if self.panel is None or self.panel.asks_everybody(round) else self.panel.examples

    def _sheets_of(self, models: Tensor, split: Split, asked: Asked, round: int) -> Sheets:
        """Return the current examples of the devices asked, laid out."""
        examples = self._examples(split, asked, round)
        if split not in self._sheets:
            self._sheets[split] = self.evaluator.sheets(models, examples, asked.concepts)
        return self._sheets[split]

    def choice(self, server: Any, this_round: Round, round: int, asked: Asked) -> Tensor:
        """Return [S, P]: the index of the global model that each of the devices asked uses.

        Args:
            server: the server's state, leaves [S, ...].
            this_round: the round as algorithms see it.
            round: the round's number, from 1.
            asked: the devices.

        Raises:
            UserError: where devices choose by a measure that the task does not tell.
        """
        asks, concepts = self.algorithm.asks is not None, asked.concepts
        survey = self._ask(server, self._sheets_of(self.models(server), "train", asked, round))[0] if asks else None
        devices = asked.devices.to(self.device)
        this_round = this_round._replace(concepts=concepts if self.algorithm.oracle else None)
        choose = torch.vmap(self.algorithm.choose, in_dims=(0, None if survey is None else 0, 0, axes(this_round)))
        choice: Tensor = choose(server, survey, Job(devices, torch.zeros_like(devices)), this_round)
        return choice

    def _ask(self, server: Any, sheets: Sheets) -> tuple[Tensor, Tensor]:
        """Return the devices' losses or error rates [S, P, M] of the global models, ∞ for models that are not in use,
        and which models [S, M] are in use."""
        models, in_use = self.models(server), torch.vmap(self.algorithm.in_use)(server)
        measured = models.new_full((*sheets.concepts.shape, models.shape[1]), torch.inf)
        for m in in_use.any(0).nonzero().squeeze(1).tolist():
            scores = self.evaluator.on(models[:, m], sheets)
            value = scores.loss if self.algorithm.asks == "loss" else scores.accuracy
            if value is None:
                add = TO_DECLARE if self.algorithm.asks == "loss" else TO_SAY_CORRECT
                raise UserError(
                    f"algorithm: {type(self.algorithm).__name__} needs the {self.algorithm.asks} of single examples, "
                    f"which the task does not tell; {add}"
                )
            measured[..., m] = value if self.algorithm.asks == "loss" else 1 - value
        worst = torch.finfo(measured.dtype).max  # a model that has diverged is the worst of those in use
        return torch.where(in_use[:, None], measured.nan_to_num(nan=worst, posinf=worst), torch.inf), in_use

    def models(self, server: Any) -> Tensor:
        """Return [S, M, n]: the global models."""
        return stacked(self.algorithm.global_models(server))

    def _on_device(self, examples: EvaluationIndex) -> EvaluationIndex:
        return EvaluationIndex(*(table.to(self.device) for table in examples))


def stacked(x: Tensor) -> Tensor:
    """Return global models [S, n] or [S, M, n] as [S, M, n]."""
    return x.unsqueeze(1) if x.dim() == 2 else x


def axes(this_round: Round) -> Round:
    """Return ``in_dims`` of a round [S, ...] for a map over replicas."""
    return Round(*(None if part is None else 0 for part in this_round))  # type: ignore[arg-type]
