"""The faithful executor: a real ``lightning.Trainer.fit`` per job, with the task's own hooks and training_step."""

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from flstudy.algorithms import Algorithm, Batch, Job, Local
from flstudy.execution.executor import Fit, validation_loss
from flstudy.execution.sequential import Sequential
from flstudy.population import Batches
from flstudy.tasks import TaskFunction
from flstudy.tasks.module_steps import Log, training_logs
from flstudy.tasks.task_function import mean_of


class PerJobTrainer(Sequential):
    """Executor whose local fits are Lightning's: its loop, its automatic optimisation, the task's ``training_step``
    (for a method with a ``loss`` of its own: that one); the algorithm's ``local_step`` is the optimizer's step. A task
    that optimises by itself does so with its own optimizers, made anew for each fit; its loss of a step is the sum of
    those that it gives to ``manual_backward``. Costs tens of milliseconds per job."""

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.ERROR)  # one "GPU available" banner per job would drown everything else
        try:
            return super().fit(algorithm, servers, clients, jobs, batches)
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    def one(self, algorithm: Algorithm, server: Any, client: Any, job: Job, batches: Batches) -> tuple[Any, ...]:
        """One device's round."""
        msg = algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, client, self.task_function.layout)
        task = self.task_function.for_trainer()
        journal = Journal(task, self.task_function)
        if not task.automatic_optimization:
            local, losses = self.by_itself(task, local, batches, journal)
            upload, client = algorithm.local_end(local, msg, client)
            done = torch.tensor(len(losses)), losses.mean(), journal.sums
            return msg, upload, client, algorithm.personal(local, client), *done
        optimizer = LocalSteps(task, self.task_function, algorithm, local, msg, client)
        task.configure_optimizers = lambda: optimizer  # type: ignore[method-assign]
        if type(algorithm).loss is not Algorithm.loss:
            task.training_step = lambda batch, batch_idx: algorithm.loss(  # type: ignore
                optimizer.task_function, optimizer.live, Batch(*batch), msg, client
            )
        elif "training_step" not in dir(type(task)) or type(task).training_step is L.LightningModule.training_step:
            losses_of: Callable[[Any], Tensor] = task.example_losses  # type: ignore[assignment]
            task.training_step = lambda batch, batch_idx: self.task_function.regularised(  # type: ignore
                losses_of(batch).mean(), optimizer.parameters
            )
        stopping = EarlyStop(algorithm, self.task_function, optimizer, self.batch(batches.valid, batches.concept))
        self.train(task, local.y, batches, [stopping, Follow(optimizer), journal])
        upload, client = algorithm.local_end(optimizer.local, msg, client)
        personal = algorithm.personal(optimizer.local, client)
        losses = torch.stack(optimizer.losses)
        return msg, upload, client, personal, torch.tensor(len(losses)), losses.mean(), journal.sums

    def by_itself(
        self, task: L.LightningModule, local: Any, batches: Batches, journal: "Journal"
    ) -> tuple[Any, Tensor]:
        """Train a task in manual optimisation from the device's model; returns its state after that and losses [K]."""
        layout, buffers = self.task_function.layout, self.task_function.buffers
        parameters = {name: p for name, p in task.named_parameters() if p.requires_grad}
        held = {name: task.get_buffer(name) for name in buffers.layout.names}
        losses = [local.y.new_zeros(()) for _ in range(int(batches.steps))]
        backward, step = task.manual_backward, task.training_step
        number = -1

        def numbered(*arguments: Any) -> Any:
            nonlocal number
            number += 1
            return step(*arguments)

        def accumulated(loss: Tensor, *more: Any, **options: Any) -> None:
            losses[number] = losses[number] + loss.detach().to(local.y.dtype)
            backward(loss, *more, **options)

        task.manual_backward, task.training_step = accumulated, numbered  # type: ignore
        with torch.no_grad():
            for name, value in self.task_function.tensors(local.y).items():
                {**parameters, **held}[name].copy_(value)
        self.train(task, local.y, batches, [journal])
        with torch.no_grad():
            y = torch.cat([layout.flat({**parameters}), buffers.flat(held, local.y)])
        return local._replace(y=y.detach().clone(), steps=local.steps + len(losses)), torch.stack(losses)

    def train(self, task: L.LightningModule, like: Tensor, batches: Batches, callbacks: list[L.Callback]) -> None:
        """Fit by a Trainer on a device's batches, where the model ``like`` [P] is and in its precision."""
        ends = batches.epoch.nonzero().squeeze(1).tolist()
        total = int(batches.steps)
        if not ends or ends[-1] != total - 1:
            ends.append(total - 1)  # a plan of steps may end inside an epoch
        rows = [batches.rows[step] for step in range(total)]
        pairs: Any = [self.batch(line, batches.concept)[:2] for line in rows]  # any sequence is a map-style data set
        loader: DataLoader[Any] = DataLoader(pairs, sampler=EpochSteps(ends), batch_size=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few workers, few batches: known and meant
            trainer = L.Trainer(
                max_epochs=len(ends),
                strategy=SingleDeviceStrategy(like.device, accelerator=AcceleratorRegistry.get(like.device.type)),
                callbacks=callbacks,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                use_distributed_sampler=False,
                precision="64-true" if like.dtype == torch.float64 else "32-true",
                num_sanity_val_steps=0,
            )
            trainer.fit(task, loader)


class LocalSteps(torch.optim.Optimizer):
    """An algorithm's ``local_step`` as an optimizer: the closure (Lightning's: training_step and backward) is the
    gradient function, called at whatever point the method asks for."""

    def __init__(
        self,
        task: L.LightningModule,
        task_function: TaskFunction,
        algorithm: Algorithm,
        local: Local,
        msg: Any,
        client: Any,
    ) -> None:
        self.parameters = {name: p for name, p in task.named_parameters() if p.requires_grad}
        super().__init__(self.parameters.values(), {})
        self.layout, self.algorithm, self.local = task_function.layout, algorithm, local
        self.buffers = {name: task.get_buffer(name) for name in task_function.buffers.layout.names}
        self.live = {**self.parameters, **self.buffers}
        self.frozen = {name: (task.get_buffer(name), whole) for name, whole in task_function.buffers.frozen().items()}
        self.task_function = task_function  # at the device's buffers
        self._task_function = task_function
        self.msg, self.client = msg, client
        self.losses: list[Tensor] = []
        self.batch: Batch | None = None  # of the step; the closure has it by itself

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One local step."""
        assert closure is not None
        buffers = self._task_function.buffers

        def grad(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                for name, value in self._task_function.tensors(y).items():
                    self.live[name].copy_(value)
                for buffer, whole in self.frozen.values():
                    buffer.copy_(whole)
            b = y[self.layout.n :]
            if len(b):
                self.task_function = self._task_function.holding(b)
            with torch.enable_grad():
                loss = torch.as_tensor(closure()).detach()
            gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.parameters.items()}
            return torch.cat([self.layout.flat(gradients), buffers.flat(self.buffers, y)]), loss

        with torch.no_grad():
            assert self.batch is not None
            self.local, loss = self.algorithm.local_step(self.local, self.batch, grad, self.msg, self.client)
        self.losses.append(loss)
        return loss


class Follow(L.Callback):
    """Callback that tells the optimizer the batch of its next step."""

    def __init__(self, optimizer: LocalSteps) -> None:
        self.optimizer = optimizer

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the optimizer's batch, before training_step."""
        self.optimizer.batch = Batch(*batch)


class Journal(L.Callback):
    """Callback that sums what ``training_step`` logs, each step by its examples; Lightning hears it, too.

    Args:
        task: whose log calls are heard.
        task_function: says under which names it logs what every executor can hear; all numbers where that is unknown.
    """

    def __init__(self, task: L.LightningModule, task_function: TaskFunction) -> None:
        self.heard, self.names = Log(), task_function.findings.training_logs
        self.sums = dict[str, Tensor]()
        self.like = next(p for p in task.parameters() if p.requires_grad).detach().new_zeros(())
        if self.names == ():
            return
        lightning = task.log

        def both(name: str, value: Any, *positional: Any, **options: Any) -> None:
            self.heard(name, value, *positional, **options)
            lightning(name, value, *positional, **options)

        task.log = both  # type: ignore[method-assign]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forget the last step's log, before training_step."""
        self.heard.entries.clear()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add what the step logged."""
        examples = len(batch[1])
        for name, values in training_logs(self.heard).items():
            if self.names is None or name in self.names:
                mean = mean_of(values, self.like)
                heard = torch.stack([mean * examples, mean.new_full((), examples)])
                self.sums[name] = self.sums[name] + heard if name in self.sums else heard


class EarlyStop(L.Callback):
    """FLASH's early stopping, Alg. 1 lines 7-12, as a callback of the local trainer."""

    def __init__(self, algorithm: Algorithm, task_function: TaskFunction, optimizer: LocalSteps, valid: Batch) -> None:
        self.algorithm, self.task_function, self.optimizer, self.valid = algorithm, task_function, optimizer, valid
        self.previous = torch.tensor(torch.inf)
        if algorithm.gamma is not None and algorithm.first_epoch == "eval_received":
            self.previous = self._loss()

    def _loss(self) -> Tensor:
        with torch.no_grad():
            model = self.algorithm.in_training(self.optimizer.local)
            return validation_loss(self.algorithm, self.task_function, model, self.valid)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Test the validation loss."""
        if self.algorithm.gamma is None:
            return
        current = self._loss()
        if not self.algorithm.goes_on(torch.tensor(trainer.current_epoch + 1), self.previous, current):
            trainer.should_stop = True
        self.previous = current


class EpochSteps(Sampler[int]):
    """Sampler of the step numbers of each local epoch; ``ends`` holds each epoch's last step."""

    def __init__(self, ends: list[int]) -> None:
        self.ends, self.epoch = ends, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the steps of an epoch; Lightning's loop calls this before each."""
        self.epoch = epoch

    def _range(self) -> range:
        return range(self.ends[self.epoch - 1] + 1 if self.epoch else 0, self.ends[self.epoch] + 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range())

    def __len__(self) -> int:
        return len(self._range())
