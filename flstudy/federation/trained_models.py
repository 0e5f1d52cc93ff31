"""The trained models of a run, given back as tasks, vectors and predictions."""

import copy
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor

from flstudy.execution.trees import take
from flstudy.federation.asked_devices import stacked
from flstudy.federation.run_parts import RunParts
from flstudy.federation.run_state import RunState
from flstudy.lightning_hooks import PREDICTION_HOOKS
from flstudy.metrics.registry import Deployed
from flstudy.tasks.module_steps import overrides
from flstudy.user_error import UserError

NOTHING = "there is nothing to evaluate before the first round: call trainer.fit, which evaluates, or give ckpt_path="


class Predictions(NamedTuple):
    """Outputs of a device's model for its test examples, as they are in the last round."""

    device: int
    labels: Tensor  # [V], or [V, ...] for several labels per example
    outputs: Tensor  # [V, ...] the task's ``forward``


class TrainedModels:
    """Trained models in a run's state: global ones, and those that single devices use.

    Args:
        run: whose state holds them.
    """

    def __init__(self, run: RunParts) -> None:
        self.run = run
        self._choice: tuple[Any, Tensor] | None = None  # a server's state; [S, N] models that devices choose of it

    @property
    def state(self) -> RunState:
        """The run's state; UserError before the first round."""
        if not self.run.begun or self.run.state.record is None:
            raise UserError(NOTHING)
        return self.run.state

    @property
    def deployed(self) -> Deployed:
        """Which models devices use: models of their own, of several global ones the one that each chooses, or the
        global one."""
        if self.run.algorithm.personalized:
            return "own"
        return "chosen" if stacked(self.state.server.x).shape[1] > 1 else "global"

    def load_into(self, task: L.LightningModule, replica: int = 0) -> L.LightningModule:
        """Copy a replica's global model into a task and return it; of several models, the first."""
        return self._filled(task, self.global_model(replica))

    def personal(self, client: int, replica: int = 0) -> L.LightningModule:
        """Return a copy of the task with the model that a device has.

        That is its own where the method keeps one, of several global models the one that it chooses, or else the global
        one.

        Raises:
            UserError: as `of_device` does.
        """
        model = self.of_device(client, replica)
        return self._filled(copy.deepcopy(self.run.task), model).eval()

    def predictions(self, device: int) -> Predictions:
        """Return the outputs of a device's model for its test examples, in the first replica.

        Raises:
            UserError: the task has no ``forward``, or predicts by itself.
        """
        run, round = self.run, self.state.round
        if not overrides(run.task, "forward"):
            raise UserError(f"task: {type(run.task).__name__} defines no forward(x), so it predicts nothing; add one")
        if (hook := next((hook for hook in PREDICTION_HOOKS if overrides(run.task, hook)), None)) is not None:
            raise UserError(
                f"task: {type(run.task).__name__}.{hook} would not be called, since outputs are forward's: give "
                "coordinator.task to a Trainer of its own, trainer.predict(coordinator.task, loader)"
            )
        rows = run.population.device_data.held(0, device, "test", round)
        store = run.evaluation.evaluator.store
        concept = run.population.concepts(round)[0, device].to(run.device)
        x, y = store.gather(torch.from_numpy(rows).to(run.device), concept)
        with run.task_function.evaluating():
            outputs = run.task_function.logits(self.of_device(device, 0), x, fixed=True)
        return Predictions(device, y, outputs)

    def global_model(self, replica: int, model: Any = 0) -> Tensor:
        """Return [n]: one of the replica's global models."""
        return stacked(self.run.algorithm.global_models(self.run.state.server))[replica, model]

    def of_device(self, client: int, replica: int) -> Tensor:
        """Return [n]: the model that a device has, as a vector.

        Raises:
            UserError: before the first round, for no such device, for lost rows, or where devices choose by their data
                and there is no population yet.
        """
        run, state = self.run, self.state
        if not 0 <= client < (count := state.bank.slot.shape[1]):
            raise UserError(f"client must be a device from 0 to {count - 1}, got {client}")
        x, algorithm = stacked(state.server.x), run.algorithm
        if algorithm.personalized:
            self.refuse_lost_rows()
            clients = torch.full((len(run.seeds), 1), client)
            server, row = take((state.server, state.bank.read(algorithm, clients, x[:, 0])), replica)
            return algorithm.deployed(server, take(row, 0))
        if x.shape[1] == 1:
            return self.global_model(replica)
        if run.evaluation is None:
            raise UserError(
                f"the devices of {type(algorithm).__name__} choose a model by their data: call trainer.validate("
                "coordinator, datamodule=...) first"
            )
        if self._choice is None or self._choice[0] is not state.server:
            this_round = run.population.cohort(state.round).to(x.device).round
            everybody = run.evaluation.everybody(state.round)
            self._choice = state.server, run.evaluation.choice(state.server, this_round, state.round, everybody)
        return self.global_model(replica, self._choice[1][replica, client])

    def refuse_lost_rows(self) -> None:
        """Raise UserError where the rows of single devices are not there."""
        if not self.state.bank.rows:
            raise UserError(
                f"the models of single devices of {type(self.run.algorithm).__name__} are in checkpoints, not in a "
                "model that a study kept: load a checkpoint"
            )

    def _filled(self, task: L.LightningModule, model: Tensor) -> L.LightningModule:
        tensors = self.run.task_function.tensors(model)
        with torch.no_grad():
            for name, part in (*task.named_parameters(), *task.named_buffers()):
                if name in tensors:
                    part.copy_(tensors[name])
        return task
