"""The devices that an evaluation asks, and the models that they use."""

from collections.abc import Hashable
from typing import Any, NamedTuple

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
    there: NDArray[np.bool_]  # [S, P] whether a device is available, and so counts
    error: list[float] | None  # [S] standard error of a mean, in standard deviations over devices; None: not reported

    @property
    def devices(self) -> Tensor:
        """[S, P]: their numbers, on the CPU."""
        if self.clients is not None:
            return self.clients
        return torch.arange(self.concepts.shape[1]).expand(self.concepts.shape)


class AskedDevices:
    """Devices that are asked in a round, a panel of them or all: what they hold, and which model each of them uses.

    Args:
        algorithm: the method.
        evaluator: measures models.
        population: the world.
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
        self.undefined = set[str]()  # a module's measures that were undefined on a device, which is told once
        self.examples: dict[Split, EvaluationIndex] = {}  # of those asked, in the round that was evaluated last
        self._moments: dict[Split, Hashable] = {}
        self._sheets: dict[Split, Sheets] = {}
        self._concepts = torch.empty(0, 0, dtype=torch.int64)  # [S, N] of the round that was evaluated last
        self._drawn: tuple[NDArray[np.bool_], Tensor] | None = None  # [S, N] who was there last, [S, P] the panel
        self._last: Tensor | None = None  # [S, P] who was asked last; None: everybody

    def asked(self, round: int) -> Asked:
        """Return the devices that are asked in a round (from 1): the panel, or all."""
        everybody = self._everybody(round)  # of whom those count who are there: the available devices of eq. (1)
        if self.panel is None:
            return self._going_to(everybody)
        if self.panel.asks_everybody(round):
            return self._going_to(everybody._replace(error=[0.0] * len(everybody.there)))
        clients = self._panel(self.panel, everybody.there)
        error = [self.panel.error(clients.shape[1], int(line.sum())) for line in everybody.there]
        concepts = everybody.concepts.gather(1, clients.to(self.device))
        return self._going_to(Asked(clients, concepts, np.ones(clients.shape, dtype=bool), error))

    def everybody(self, round: int) -> Asked:
        """Return all devices in a round (from 1), whoever is asked else."""
        return self._going_to(self._everybody(round))

    def _everybody(self, round: int) -> Asked:
        return Asked(None, self._lived(round), self.population.available(round), None)

    def _going_to(self, asked: Asked) -> Asked:
        """Note who is asked next, and drop the sheets of others."""
        if asked.clients is not self._last:
            self._last, self._moments, self._sheets = asked.clients, {}, {}
        return asked

    def _panel(self, panel: Panel, there: NDArray[np.bool_]) -> Tensor:
        """Return [S, P]: the panel of the available devices [S, N]; the same tensor as long as these are the same."""
        if self._drawn is None or not np.array_equal(self._drawn[0], there):
            population, count = self.population, min(panel.clients, int(there.sum(1).min()))
            pairs = zip(population.seeds, population.members, there, strict=True)
            lines = [panel.draw(seed, membership.shared.sum(1), line, count) for seed, membership, line in pairs]
            self._drawn = there, torch.from_numpy(np.stack(lines))
        return self._drawn[1]

    def _lived(self, round: int) -> Tensor:
        """Return [S, N]: the concepts of a round; the same tensor as long as they are the same."""
        concepts = self.population.concepts(round)
        if not torch.equal(concepts, self._concepts):
            self._concepts, self._there = concepts, to_device(concepts, self.device)
            self._sheets = {}
        return self._there

    def _examples(self, split: Split, asked: Asked, round: int) -> EvaluationIndex:
        """Return the examples of the devices asked; collected only where they have changed since the last time."""
        moment = self.population.device_data.moment(split, round)
        if self._moments.get(split) != moment:
            most = None if split == "train" else self.most(round)
            selection = () if asked.clients is None else (asked.clients, most)
            self.examples[split] = self._moved(self.population.device_data.evaluation_index(split, round, *selection))
            self._moments[split] = moment
            self._sheets.pop(split, None)
        return self.examples[split]

    def most(self, round: int) -> int | None:
        """Return the most examples of a split on which a device is evaluated in a round (from 1); None: all of them.

        Devices that choose among global models always use all their training examples.
        """
        return None if self.panel is None or self.panel.asks_everybody(round) else self.panel.examples

    def _laid_out(self, models: Tensor, split: Split, asked: Asked, round: int) -> Sheets:
        """Return the current examples of the devices asked, laid out."""
        examples = self._examples(split, asked, round)
        if split not in self._sheets:
            self._sheets[split] = self.evaluator.sheets(models, examples, asked.concepts)
        return self._sheets[split]

    def choice(self, server: Any, world: Round, round: int, asked: Asked) -> Tensor:
        """Return [S, P]: the index of the global model that each of the devices asked uses.

        Args:
            server: the server's state, leaves [S, ...].
            world: the round as algorithms see it.
            round: the round's number, from 1.
            asked: the devices.

        Raises:
            UserError: where devices choose by a measure that the task does not tell.
        """
        asks, concepts = self.algorithm.asks is not None, asked.concepts
        survey = self._ask(server, self._laid_out(self.models(server), "train", asked, round))[0] if asks else None
        devices = asked.devices.to(self.device)
        world = world._replace(concepts=concepts if self.algorithm.oracle else None)
        choose = torch.vmap(self.algorithm.choose, in_dims=(0, None if survey is None else 0, 0, axes(world)))
        chosen: Tensor = choose(server, survey, Job(devices, torch.zeros_like(devices)), world)
        return chosen

    def _ask(self, server: Any, sheets: Sheets) -> tuple[Tensor, Tensor]:
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
        most = torch.finfo(measured.dtype).max  # a model that has diverged is the worst of those in use
        return torch.where(in_use[:, None], measured.nan_to_num(nan=most, posinf=most), torch.inf), in_use

    def models(self, server: Any) -> Tensor:
        """Return [S, M, n]: the global models."""
        return stacked(self.algorithm.global_models(server))

    def _moved(self, examples: EvaluationIndex) -> EvaluationIndex:
        return EvaluationIndex(*(table.to(self.device) for table in examples))


def stacked(x: Tensor) -> Tensor:
    """Return global models [S, n] or [S, M, n] as [S, M, n]."""
    return x.unsqueeze(1) if x.dim() == 2 else x


def axes(round: Round) -> Round:
    """Return ``in_dims`` of a round [S, ...] for a map over replicas."""
    return Round(*(None if part is None else 0 for part in round))  # type: ignore[arg-type]
