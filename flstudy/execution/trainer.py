"""The faithful executor: a real ``lightning.Trainer.fit`` per job, with the task's own hooks and training_step."""

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from flstudy.algorithms import Algorithm, Batch, Job, Local
from flstudy.algorithms.parts.module_rule import ModuleOptimizer, plain_class
from flstudy.execution.executor import Fit
from flstudy.execution.local_objective import validation_loss
from flstudy.execution.sequential import Sequential
from flstudy.population import Batches
from flstudy.tasks import TaskFunction
from flstudy.tasks.module_steps import Log, leave_batches, training_logs
from flstudy.tasks.task_function import mean_of
from flstudy.user_error import UserError


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
        """Play one device's round.

        Raises:
            UserError: for a module whose hooks leave no step, or do what the method cannot follow.
        """
        msg = algorithm.broadcast(server, job)
        local = algorithm.local_start(msg, client, self.task_function.layout)
        task = self.task_function.for_trainer()
        fitted = FittedModule(task, self.task_function)
        journal = Journal(task, self.task_function)
        if not task.automatic_optimization:
            local, losses = self.by_itself(algorithm, fitted, local, batches, journal)
            upload, client = algorithm.local_end(local, msg, client)
            done = torch.tensor(len(losses)), losses.mean(), journal.sums
            return msg, upload, client, algorithm.local_model(local, client), *done
        optimizer = LocalSteps(fitted, self.task_function, algorithm, local, msg, client)
        task.configure_optimizers = lambda: optimizer  # type: ignore[method-assign]
        if type(algorithm).loss is not Algorithm.loss:
            leave_batches(task)  # the task function's own call changes them
            task.training_step = lambda batch, batch_idx: algorithm.loss(  # type: ignore
                optimizer.task_function, fitted.live(), Batch(*batch), msg, client
            )
        elif "training_step" not in dir(type(task)) or type(task).training_step is L.LightningModule.training_step:
            losses_of: Callable[[Any], Tensor] = task.example_losses  # type: ignore[assignment]
            task.training_step = lambda batch, batch_idx: self.task_function.regularised(  # type: ignore
                losses_of(batch).mean(), fitted.parameters
            )
        stopping = EarlyStop(optimizer, self.batch(batches.valid, batches.concept), int(batches.round))
        self.train(task, local.y, batches, [stopping, Follow(optimizer), journal])
        optimizer.follow_module()
        fitted.refuse_frozen()
        if not optimizer.losses:
            skips = f"{type(task).__name__}.on_train_batch_start skips all {int(batches.steps)} batches of a device"
            raise UserError(f"task: {skips}, which must take a step: let one pass")
        upload, client = algorithm.local_end(optimizer.local, msg, client)
        personal = algorithm.local_model(optimizer.local, client)
        losses = torch.stack(optimizer.losses)
        return msg, upload, client, personal, torch.tensor(len(losses)), losses.mean(), journal.sums

    def by_itself(
        self, algorithm: Algorithm, fitted: "FittedModule", local: Any, batches: Batches, journal: "Journal"
    ) -> tuple[Any, Tensor]:
        """Train a task in manual optimisation from the device's model; returns its state after that and losses [K]."""
        task, losses = fitted.task, [local.y.new_zeros(()) for _ in range(int(batches.steps))]
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
        fitted.write(model := algorithm.in_training(local))
        self.train(task, local.y, batches, [journal])
        fitted.refuse_frozen()
        local = with_model(local, fitted.read(model))
        return local._replace(steps=local.steps + len(losses)), torch.stack(losses)

    def train(self, task: L.LightningModule, like: Tensor, batches: Batches, callbacks: list[L.Callback]) -> None:
        """Fit by a Trainer on a device's batches, where the model ``like`` [n] is and in its precision."""
        ends = batches.epoch.nonzero().squeeze(1).tolist()
        total = int(batches.steps)
        if not ends or ends[-1] != total - 1:
            ends.append(total - 1)  # a plan of steps may end inside an epoch
        rows = [batches.rows[step] for step in range(total)]
        pairs: Any = [self.batch(line, batches.concept)[:2] for line in rows]  # any sequence is a map-style data set
        loader: DataLoader[Any] = DataLoader(pairs, sampler=EpochSteps(ends), batch_size=None)
        if not self.task_function.shipped:
            callbacks = [ShowRound(int(batches.round), self.task_function.rounds), *callbacks]
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


class RoundView:
    """A device's Trainer as its module sees it: the epoch is the round of the federation, the last one its last round.

    Args:
        trainer: that all else is read from, and written to.
        round: number of the round, from 1.
        rounds: of the federation; None: nobody knows.
    """

    def __init__(self, trainer: L.Trainer, round: int, rounds: int | None) -> None:
        self.__dict__.update(_trainer=trainer, current_epoch=round - 1, max_epochs=-1 if rounds is None else rounds)

    def __getattr__(self, name: str) -> Any:
        """Return the Trainer's attribute."""
        return getattr(self.__dict__["_trainer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the Trainer's attribute, as ``should_stop``."""
        setattr(self._trainer, name, value)


class ShowRound(L.Callback):
    """Callback that shows a module the round in the place of the local epoch."""

    def __init__(self, round: int, rounds: int | None) -> None:
        self.round, self.rounds = round, rounds

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Attach the module to a view of its Trainer, before its own hooks."""
        view: Any = RoundView(trainer, self.round, self.rounds)
        pl_module.trainer = view
        for name in ("optimizer_step", "optimizer_zero_grad"):  # whose first argument is the epoch
            hook = partial(ignore_epoch, getattr(pl_module, name), view.current_epoch)
            setattr(pl_module, name, hook)


def ignore_epoch(hook: Callable[..., Any], round: int, epoch: int, *arguments: Any, **options: Any) -> Any:
    """Call a hook with the round, from 0, in the place of the local epoch."""
    return hook(round, *arguments, **options)


class FittedModule:
    """Parameters and buffers of a module that a Trainer fits, as a flat model.

    Args:
        task: the module.
        task_function: that it is a copy of.
    """

    def __init__(self, task: L.LightningModule, task_function: TaskFunction) -> None:
        self.task, self.layout, self.buffers = task, task_function.layout, task_function.buffers
        self.parameters = {name: p for name, p in task.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in task_function.module.named_parameters() if not p.requires_grad}
        self._tensors = task_function.tensors

    def live(self) -> dict[str, Tensor]:
        """Return the trained parameters and carried buffers by name, shaped as in the module and shared with it."""
        return {**self.parameters, **{name: self.task.get_buffer(name) for name in self.buffers.layout.names}}

    @torch.no_grad()
    def write(self, y: Tensor) -> None:
        """Write a model, [n] or [n + b] with buffers, into the module, and the values of frozen buffers."""
        live = self.live()
        for name, value in self._tensors(y).items():
            live[name].copy_(value)
        for name, whole in self.buffers.frozen().items():
            self.task.get_buffer(name).copy_(whole)

    @torch.no_grad()
    def read(self, like: Tensor) -> Tensor:
        """Return the module's model, [n], or [n + b] with buffers where ``like`` has them."""
        x = self.layout.flat({name: p.detach() for name, p in self.parameters.items()}).to(like)
        return torch.cat([x, self.buffers.flat(self.live(), like)[: len(like) - len(x)]]).clone()

    def refuse_frozen(self) -> None:
        """Raise UserError for a module that has changed or unfrozen a parameter which no model holds."""
        for name, parameter in self.task.named_parameters():
            if (frozen := self._frozen.get(name)) is None:
                continue
            where = f"task: {type(self.task).__name__}, while it trains,"
            if parameter.requires_grad:
                raise UserError(
                    f"{where} unfreezes {name}, which is no part of models: let it be trainable in __init__, and "
                    "freeze it in on_train_start while it is to stay"
                )
            if not torch.equal(parameter.detach().nan_to_num(), frozen.detach().nan_to_num()):
                raise UserError(f"{where} changes its frozen {name}, which no device keeps: register it as a buffer")


class LocalSteps(torch.optim.Optimizer):
    """An algorithm's ``local_step`` as an optimizer: the closure (Lightning's: training_step and backward) is the
    gradient function, called at whatever point the method asks for. Between steps a module of one's own holds the
    device's model, which its hooks may change, as they may set the rate of the optimizer's one group."""

    def __init__(
        self,
        fitted: FittedModule,
        task_function: TaskFunction,
        algorithm: Algorithm,
        local: Local,
        msg: Any,
        client: Any,
    ) -> None:
        super().__init__(fitted.parameters.values(), {"lr": algorithm.lr})
        self.fitted, self.layout, self.algorithm, self.local = fitted, task_function.layout, algorithm, local
        self.task_function = task_function  # at the device's buffers
        self.whole_task = task_function
        self.msg, self.client = msg, client
        self.losses: list[Tensor] = []
        self.batch: Batch | None = None  # of the step; the closure has it by itself
        self._show_module()

    def _show_module(self) -> None:
        """Write the device's model into the module, where somebody may look at it between steps."""
        if self.whole_task.shipped:
            return  # nobody looks, and showing costs two copies of the model in each step
        self.fitted.write(self.algorithm.in_training(self.local))
        self._shown = self.fitted.read(self.algorithm.in_training(self.local))

    def follow_module(self) -> None:
        """Take up a model that the module's hooks have changed since the last step.

        Raises:
            UserError: for a method with a step of its own, whose devices may train several models.
        """
        if self.whole_task.shipped:
            return
        now = self.fitted.read(self._shown)
        if torch.equal(now.nan_to_num(), self._shown.nan_to_num()):  # one that has diverged is not changed by a hook
            return
        if plain_class(self.algorithm).local_step is not Algorithm.local_step:
            self._refuse("changes the model between local steps", "its devices have a step of their own")
        self.local = with_model(self.local, now)

    def _at_rate(self) -> Algorithm:
        """Return the method with the learning rate that the module's hooks have set."""
        if (rate := self.param_groups[0]["lr"]) == self.algorithm.lr:
            return self.algorithm
        if isinstance(self.algorithm, ModuleOptimizer):
            self._refuse("sets lr of the optimizer", "its devices step by configure_optimizers, set it there")
        if self.algorithm.steps_by_sgd:
            self._refuse("sets lr of the optimizer", self.algorithm.steps_by_sgd)
        return replace(self.algorithm, lr=rate)

    def _refuse(self, does: str, why: str) -> NoReturn:
        name, method = type(self.fitted.task).__name__, type(self.algorithm).__name__
        raise UserError(f"task: a hook of {name} {does}, which makes no sense for {method}: {why}")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one local step."""
        assert closure is not None
        self.follow_module()
        buffers = self.whole_task.buffers

        def grad(y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
            self.fitted.write(y)
            b = y[self.layout.n :]
            if len(b):
                self.task_function = self.whole_task.holding(b)
            with torch.enable_grad():
                loss = torch.as_tensor(closure()).detach()
            parameters = self.fitted.parameters
            gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
            return torch.cat([self.layout.flat(gradients), buffers.flat(self.fitted.live(), y)]), loss

        with torch.no_grad():
            assert self.batch is not None
            self.local, loss = self._at_rate().local_step(self.local, self.batch, grad, self.msg, self.client)
        self._show_module()
        self.losses.append(loss)
        return loss


def with_model(local: Any, model: Tensor) -> Any:
    """Return the state of a device that goes on from a model [n], or [n + b] with its buffers."""
    local = local._replace(y=model[: len(local.y)])
    return local._replace(buffers=model[len(local.y) :]) if len(model) > len(local.y) else local


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
        self.heard, self.names = Log(task_function.display), task_function.findings.training_logs
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

    def __init__(self, optimizer: LocalSteps, valid: Batch, round: int) -> None:
        self.algorithm, self.optimizer, self.valid, self.round = optimizer.algorithm, optimizer, valid, round
        self.previous = torch.tensor(torch.inf)

    def _loss(self, trainer: Any) -> Tensor:
        self.optimizer.follow_module()
        task_function, model = self.optimizer.whole_task, self.algorithm.in_training(self.optimizer.local)
        with torch.no_grad(), task_function.attached_to(trainer, self.round - 1):
            return validation_loss(self.algorithm, task_function, model, self.valid)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Measure the model that the device has received, where the method compares with it."""
        if self.algorithm.gamma is not None and self.algorithm.first_epoch == "eval_received":
            self.previous = self._loss(pl_module.trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Test the validation loss."""
        if self.algorithm.gamma is None:
            return
        current = self._loss(pl_module.trainer)
        if not self.algorithm.goes_on(torch.tensor(trainer.current_epoch + 1), self.previous, current):
            trainer.should_stop = True
        self.previous = current


class EpochSteps(Sampler[int]):
    """Sampler of the step numbers of each local epoch; ``ends`` holds each epoch's last step."""

    def __init__(self, ends: list[int]) -> None:
        self.ends, self.epoch = ends, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the steps of a local epoch (from 0); Lightning's loop calls this before each."""
        self.epoch = epoch

    def _range(self) -> range:
        return range(self.ends[self.epoch - 1] + 1 if self.epoch else 0, self.ends[self.epoch] + 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range())

    def __len__(self) -> int:
        return len(self._range())
