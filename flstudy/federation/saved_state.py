"""The saved state of a federated run: what its checkpoints hold, and how a run takes it up."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch

from flstudy.execution import ClientBank
from flstudy.execution.sharded import Sharded, of_one_place
from flstudy.federation import checkpoint as files
from flstudy.federation.run_parts import RunParts
from flstudy.federation.run_state import RunState
from flstudy.federation.trained_models import TrainedModels
from flstudy.tasks import TaskFunction
from flstudy.user_error import UserError


class SavedState:
    """Saved state of a run: makes the content of a checkpoint, and takes it up.

    Args:
        run: whose state it is.
        models: its trained models.
    """

    def __init__(self, run: RunParts, models: TrainedModels) -> None:
        self.run, self.models = run, models
        self.viewed: dict[str, Any] | None = None  # the state whose models the run shows without having played a round

    def state_dict(self) -> dict[str, Any]:
        """Return all that a bit-exact resume needs, and how the run was made, as plain tensors and containers."""
        if self.viewed is not None:
            return self.viewed
        run = self.run
        return {
            "version": 1,
            **run.identity,
            "made": run.recipe,
            "first_buffers": run.task_function.buffers.named_first(),
            "horizon": run.runner.rounds if run.runner.takes_horizon else None,
            "choices": {**run.executor.choices(), **run.evaluation.evaluator.choices()},
            "devices": len(run.devices) * run.nodes,
            **run.state.plain(),
            "privacy": run.aggregator.state_dict(),
        }

    def checkpoint(self) -> dict[str, Any]:
        """Return a checkpoint's entries: the task with the first replica's global model, and the state."""
        tensors = self.run.task_function.tensors(self.models.global_model(0))
        return {**files.task_entries(self.run.task, tensors), "flstudy": self.state_dict()}

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, from which a run goes on bit for bit."""
        torch.save({"pytorch-lightning_version": L.__version__, **self.checkpoint()}, path)

    def save_model(self, path: Path) -> None:
        """Write the first seed's global model of a run that was started. ``Coordinator.load_from_checkpoint``,
        ``flstudy.load_task`` and the task's own class read it, too."""
        inputs, _ = self.run.population.store.read(slice(1))  # as a batch is given them
        checkpoint = self.checkpoint()
        content = {
            **checkpoint,
            "flstudy": files.of_first_replica(checkpoint["flstudy"]),
            "pytorch-lightning_version": L.__version__,
            "version": 1,
            "seed": self.run.seeds[0],
            "shape": list(inputs.shape[1:]),
            "dtype": str(inputs.dtype).removeprefix("torch."),
            "output_shape": output_shape(self.run.task, inputs),
            "state": checkpoint["state_dict"],
        }
        torch.save(content, path)

    def refuse_other(self, saved: Mapping[str, Any], state: Mapping[str, Any], *, goes_on: bool = True) -> None:
        """Raise UserError for a checkpoint that another algorithm, task or the like wrote.

        Args:
            saved: the checkpoint's state of a run.
            state: the checkpoint's ``state_dict`` of a task.
            goes_on: whether rounds follow; models alone are the same under any executor and optimizer.
        """
        for name, here in self.run.identity.items():
            value = saved.get(name, here)  # an earlier flstudy's checkpoint has not all of them
            if value != here and (goes_on or name not in ("executor", "local_optimizer")):
                raise UserError(f"the checkpoint was written with {name} {value!r}, but this run has {here!r}")
        layout = self.run.task_function.layout
        trained = dict(zip(layout.names, map(tuple, layout.shapes), strict=True))
        files.refuse_other_task(self.run.task, trained, state)

    def load_untrained(self, state: Mapping[str, Any]) -> None:
        """Load frozen layers and buffers from a checkpoint's ``state_dict`` of the task; trained tensors come with the
        server's state, for all replicas."""
        run = self.run
        here, function = run.task.state_dict(), run.task_function
        trained = {*function.layout.names, *function.buffers.layout.names}
        untrained = {name: value for name, value in state.items() if name in here and name not in trained}
        if any(not torch.equal(here[name].cpu(), value.cpu()) for name, value in untrained.items()):
            run.task.load_state_dict(untrained, strict=False)
            run.task_function = TaskFunction(run.task, run.settings.buffers)

    def show_models(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Take up the models of a checkpoint, to be looked at, and leave the first replica's in the task.

        Args:
            saved: the checkpoint's state of a run.
            folder: the checkpoint's, beside which rows may lie.
        """
        run = self.run
        bank = ClientBank(len(run.seeds), saved["bank"]["slot"].shape[1], run.settings.bank_memory)
        run.begin(RunState(run.first_servers(run.no_models()), bank))
        run.state.take_up_models(saved, folder)
        self.viewed = {**saved, "bank": bank.state_dict()}
        self.models.load_into(run.task)

    def take_up(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Replace the state of a run that has just been started by a checkpoint's, with what its executor chose."""
        run = self.run
        run.state.take_up(saved, folder, run.device)
        if (saved_devices := saved.get("devices", 1)) != (devices := len(run.devices) * run.nodes):
            warnings.warn(
                f"the checkpoint was written with devices {saved_devices}, and this run has {devices}: it goes on "
                "equal but for rounding",
                stacklevel=2,
            )
        choices = saved["choices"]
        run.executor.choose(choices if isinstance(run.executor, Sharded) else of_one_place(choices))
        run.evaluation.evaluator.choose(choices)


def output_shape(task: L.LightningModule, inputs: torch.Tensor) -> list[int] | None:
    """Return the shape of a task's output for one example; None where ``forward`` takes no batch of inputs alone, or
    returns no tensor.

    Args:
        task: the module.
        inputs: [B, ...], as a batch is given them.
    """
    real = next((part.dtype for part in task.state_dict().values() if part.is_floating_point()), torch.float32)
    example, was_training = inputs[:1].to(task.device), task.training
    task.eval()
    try:
        with torch.no_grad():
            output = task(example.to(real) if example.is_floating_point() else example)
    except Exception:  # whatever a module says of a call that it does not expect
        return None
    finally:
        task.train(was_training)
    return list(output.shape[1:]) if isinstance(output, torch.Tensor) else None
