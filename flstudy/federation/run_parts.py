"""The parts of a federated run: what is trained by which method, what acts around rounds, and the state."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor

from flstudy.algorithms import Algorithm
from flstudy.controllers import Controller, Detector, Schedule
from flstudy.execution import Executor
from flstudy.federation import checkpoint as files
from flstudy.federation.controller_runner import ControllerRunner
from flstudy.federation.initial import BuildTask, InitialModels
from flstudy.federation.module_metrics import foresee, promised
from flstudy.federation.own_parts import with_own_parts
from flstudy.federation.play_round import RoundResult
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.federation.round_metrics import RoundMetrics
from flstudy.federation.run_state import RunState
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import Measure, measured_names
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import measured_by
from flstudy.metrics.wireless import Wireless
from flstudy.population import Population
from flstudy.privacy import Privacy
from flstudy.run_settings import RunSettings
from flstudy.tasks import TaskFunction
from flstudy.tasks.findings import check_module
from flstudy.tasks.own_optimizer import by_own_optimizer, refuse_schedule, stepping
from flstudy.user_error import UserError


class RunParts:
    """Parts of a federated run, which its trained models and its saved state read.

    The arguments are those of `FederatedRun`.

    Attributes:
        population: the devices and their data, once the run has started or a checkpoint is looked at.
        executor, runner: carry out local fits, and the controllers, once the run has started.
        evaluation: asks devices, once there is a population; None before.
        device: of the models.
        devices, nodes: over which a round's lanes are divided: so many devices on so many machines.
        trainer: to which the task is attached where its own steps measure it; None: there is none.
        last: the result of the last round; None before the first one, and after a resume.
    """

    population: Population
    executor: Executor
    runner: ControllerRunner
    evaluation: Any = None  # an Evaluation, once there is a population
    device = torch.device("cpu")
    devices: Sequence[torch.device] = ()
    nodes = 1
    trainer: L.Trainer | None = None
    last: RoundResult | None = None

    def __init__(
        self,
        task: L.LightningModule | BuildTask,
        algorithm: Algorithm,
        settings: RunSettings | None = None,
        *,
        controllers: Sequence[Controller] = (),
        schedule: Schedule | None = None,
        wireless: Wireless | None = None,
        regret: Regret | None = None,
        privacy: Privacy | None = None,
        measure: Measure | None = None,
        panel: Panel | None = None,
    ) -> None:
        self.settings = settings = settings or RunSettings()
        self.initial = InitialModels(task, settings)
        self.task, self.seeds = self.initial.task, tuple(settings.seeds)
        check_module(self.task)
        self.task_function = TaskFunction(self.task, settings.buffers)
        algorithm = with_own_parts(algorithm, self.task_function, settings.buffers)
        self.algorithm = stepping(algorithm, self.task, self.task_function.layout, settings.local_optimizer)
        refuse_schedule(self.task, schedule, settings.local_optimizer)
        self.controllers, self.schedule, self.measure, self.panel = tuple(controllers), schedule, measure, panel
        self.round_metrics = RoundMetrics(wireless, regret)
        self.aggregator = PrivateAggregator(privacy, self.algorithm, self.controllers, self.seeds)
        self.task_function.serves(self.algorithm)
        self._state: RunState | None = None

    def measures(self, population: Population, rounds: int) -> list[str]:
        """Return the names of all metrics that a run of ``rounds`` rounds in this world will have measured at its end;
        the world need not be settled.

        Raises:
            UserError: for two measures of one name.
        """
        foresee(self.task_function, population.dataset)
        return self.known_measures(population, rounds)

    def known_measures(self, population: Population, rounds: int) -> list[str]:
        """Return the names that ``measures`` does, for a task that was tried on the world's examples.

        Raises:
            UserError: for two measures of one name.
        """
        met = {
            "losses": self.task_function.has_loss,
            "correctness": self.task_function.scores_accuracy,
            "rule": not self.steps_by_module,
            "drift": bool(population.drifts(rounds)),
            "sessions": bool(population.sessions(rounds)),
            "wireless": self.round_metrics.wireless is not None,
            "regret": self.round_metrics.regret is not None,
            "clip": self.aggregator.privacy is not None,
            "noise": self.aggregator.private,
            "panel": self.panel is not None and self.panel.clients is not None,
            "detector": any(isinstance(controller, Detector) for controller in self.controllers),
        }
        names = [*self.algorithm.measures, *(name for controller in self.controllers for name in controller.measures)]
        names = measured_by([need for need, holds in met.items() if holds], [*names, *measured_names(self.measure)])
        return [*names, *promised(self.task_function, names)]

    @property
    def steps_by_module(self) -> bool:
        """Return whether devices step by the task's ``configure_optimizers``, at rates that the method does not
        know."""
        return by_own_optimizer(self.task, self.settings.local_optimizer)

    @property
    def begun(self) -> bool:
        """Return whether there is a state."""
        return self._state is not None

    def begin(self, state: RunState) -> None:
        """Begin with a state, before the first round of this process."""
        self._state, self.last = state, None

    @property
    def state(self) -> RunState:
        """Server, client rows, controllers' states and record.

        Raises:
            UserError: before the run has begun.
        """
        if self._state is None:
            raise UserError("the run has not begun: call start(population, rounds=...) first")
        return self._state

    @property
    def identity(self) -> dict[str, Any]:
        """The values that a checkpoint's run must have in common with one that takes it up."""
        shared = ("executor", "local_optimizer", "buffers")
        how = {name: getattr(self.settings, name) for name in shared}
        return {"algorithm": type(self.algorithm).__name__, "seeds": list(self.seeds), **how}

    @property
    def recipe(self) -> dict[str, Any]:
        """The class paths and arguments by which the run is made again; None for a part that is no plain value."""
        parts: dict[str, Any] = {
            "algorithm": self.algorithm,
            **{field.name: getattr(self.settings, field.name) for field in dataclasses.fields(RunSettings)},
            "controllers": list(self.controllers),
            "schedule": self.schedule,
            "wireless": self.round_metrics.wireless,
            "regret": self.round_metrics.regret,
            "privacy": self.aggregator.privacy,
            "measure": self.measure,
            "panel": self.panel,
        }
        del parts["seeds"]  # which stand in the identity
        plain = {name: files.recipe_or_none(part) for name, part in parts.items()}
        unknown = [name for name, part in parts.items() if part is not None and plain[name] is None]
        return {"task": files.class_path(self.task), "parts": plain, "unknown": unknown}

    def first_servers(self, x: Tensor) -> Any:
        """Return the server's first states, leaves [S, ...], with the models x [S, n], or [S, M, n] of several."""
        layout = self.task_function.layout
        return torch.vmap(lambda model: self.algorithm.server_init(model, layout))(x)

    def no_models(self) -> Tensor:
        """Return zeros in the place of initial models [S, n], or [S, M, n] of several, which those of a checkpoint
        replace."""
        starts = self.algorithm.starts
        return torch.zeros(len(self.seeds), *([] if starts == 1 else [starts]), self.task_function.layout.n)
