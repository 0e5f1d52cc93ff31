"""The coordinator: federated rounds as epochs of an ordinary Lightning Trainer."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm
from flstudy.algorithms.parts.buffers import BufferMode, with_buffers
from flstudy.controllers import Controller, Detector, ProbeRounds, Schedule
from flstudy.execution import (
    ClientBank,
    Compile,
    Executor,
    ExecutorName,
    Fit,
    Survey,
    TrainingContext,
    following,
    make_executor,
    training_context,
)
from flstudy.execution.bank import IN_MEMORY
from flstudy.execution.devices import accelerated, forked_random, synchronize
from flstudy.execution.freed_memory import keep_freed_memory, return_freed_memory
from flstudy.execution.sharded import Sharded, by_replica, of_one_place
from flstudy.execution.trees import leaves, refill, take
from flstudy.federation import checkpoint as files
from flstudy.federation.blocks import COHORT_MEMORY, BankRows, jobs_at_once
from flstudy.federation.checkpoint_rows import RowsBeside, local_folder
from flstudy.federation.controller_runner import ControllerRunner
from flstudy.federation.evaluation import Evaluation, stacked
from flstudy.federation.initial import drawn_model, initial_models
from flstudy.federation.module_metrics import foresee, promised, training_metrics
from flstudy.federation.play_round import RoundResult, play_probe_rounds, play_round
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.federation.round_metrics import Record, RoundMetrics
from flstudy.federation.trainer_flags import (
    LanesStrategy,
    follow_task,
    lanes_devices,
    last_round,
    refuse_flags,
    seconds_left,
)
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import Measure, measured_names
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import measured_by, replica_means
from flstudy.metrics.wireless import Wireless
from flstudy.population import Cohort, Event, Population, Split
from flstudy.population.streams import torch_seed
from flstudy.privacy import Privacy
from flstudy.tasks import TaskFunction
from flstudy.tasks.module_steps import overrides
from flstudy.tasks.own_optimizer import LocalOptimizer, stepping

NOTHING = "there is nothing to evaluate before the first round: call trainer.fit, which evaluates, or give ckpt_path="


class RoundClock(torch.optim.Optimizer):
    """Stepped once per round. Lightning's ``global_step`` counts optimizer steps, and ModelCheckpoint silently writes
    nothing while it stands at 0; the coordinator's own mathematics needs no torch optimizer."""

    def __init__(self, parameter: Tensor, lr: float) -> None:
        super().__init__([parameter], {"lr": lr})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # an earlier flstudy's checkpoint has none
            group.setdefault("lr", self.defaults["lr"])

    def tell(self, lr: float) -> None:
        """The devices' learning rate in the next round, for callbacks that ask the optimizer."""
        for group in self.param_groups:
            group["lr"] = lr

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Count a round; nothing is updated."""


class Coordinator(L.LightningModule):
    """Trains a task on a population with a federated algorithm: one round is one epoch.

    Use it under any ``lightning.Trainer`` with a :class:`~flstudy.population.Population` as datamodule; checkpoints,
    loggers and callbacks work as usual, and evaluation happens as often as ``check_val_every_n_epoch`` says. After
    ``fit``, ``task`` holds the first replica's global model.

    Args:
        task: any LightningModule with ``example_losses`` (or, under some executors, only ``training_step``).
        algorithm: the method.
        seeds: one replica per seed; all are trained at once and reported as mean and spread.
        initial: start every replica from the task's parameters as ``given``, or from fresh ones drawn from its seed by
            the modules' ``reset_parameters`` (``seeded``).
        executor: ``vectorized`` (all replicas and jobs as lanes of one program), ``threads`` (one job per core, for
            CNNs on CPU), ``sequential`` (one after another), ``trainer`` (a real Trainer for each job; faithful), or
            ``auto`` (the fastest of the first three by a short measurement in the first round).
        compile: compile the local steps; ``auto`` does as soon as the rounds ahead pay for it, weighed after each.
        local_optimizer: what devices step by: the algorithm's own ``rule``, or the ``module``'s
            ``configure_optimizers``, whose state and schedule persist on a device over rounds (``module_reset``: the
            state begins anew in every round). SGD, Adam and AdamW without a schedule run in every executor, others
            under sequential and trainer.
        buffers: what becomes of BatchNorm's statistics and other numbers that a task's own steps change: the server
            averages them (``average``), devices keep them, and BatchNorm's weights with them, as in FedBN (``local``),
            or the task's own are used and never change (``freeze``).
        max_lanes: most lanes that train at once, for models that fill the memory; null trains all of them.
        bank_memory: most bytes of the devices' states in memory; where these are more, files in the folder for
            temporary files take them.
        cohort_memory: most bytes of the models and states of jobs that train at once. Of a larger cohort the devices
            train in blocks, and their uploads are added up as they come, unless the method ``reads_each``.
        controllers: what changes the server's state around rounds, whatever the algorithm.
        schedule: how the devices' learning rate falls within a session; null keeps it.
        wireless: the radio cell whose seconds and joules every round logs; null logs none.
        regret: how to solve for the best model of each round, so that every round logs its regret; null logs none.
        privacy: clipping and noise between the devices and the server; null changes nothing.
        measure: what evaluations tell of the devices beside means and deviations; null tells no more.
        panel: whom evaluations ask; null asks everybody.
    """

    task: L.LightningModule

    def __init__(
        self,
        task: L.LightningModule,
        algorithm: Algorithm,
        *,
        seeds: Sequence[int] = (0,),
        initial: Literal["given", "seeded"] = "given",
        executor: ExecutorName = "vectorized",
        compile: Compile = "auto",
        local_optimizer: LocalOptimizer = "rule",
        buffers: BufferMode = "average",
        max_lanes: int | None = None,
        bank_memory: int = IN_MEMORY,
        cohort_memory: int = COHORT_MEMORY,
        controllers: Sequence[Controller] = (),
        schedule: Schedule | None = None,
        wireless: Wireless | None = None,
        regret: Regret | None = None,
        privacy: Privacy | None = None,
        measure: Measure | None = None,
        panel: Panel | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError(f"seeds must be one or more different integers ≥ 0, got {list(seeds)}")
        if max_lanes is not None and max_lanes < 1:
            raise ValueError(f"max_lanes must be ≥ 1, got {max_lanes}")
        if bank_memory < 0:
            raise ValueError(f"bank_memory must be ≥ 0 bytes, got {bank_memory}")
        if cohort_memory < 0:
            raise ValueError(f"cohort_memory must be ≥ 0 bytes, got {cohort_memory}")
        # Not a submodule: its own hooks and log calls must not meet the outer trainer.
        self.__dict__["task"] = task
        self.task_function = TaskFunction(task, buffers)
        self.algorithm = algorithm = with_buffers(algorithm, buffers, self.task_function.buffers.carried())
        self.algorithm = algorithm = stepping(algorithm, task, self.task_function.layout, local_optimizer)
        self.seeds, self.initial, self.buffer_mode = tuple(seeds), initial, buffers
        self.local_optimizer = local_optimizer
        self.executor_name, self.compile_step, self.max_lanes = executor, compile, max_lanes
        self.bank_memory, self.cohort_memory = bank_memory, cohort_memory
        self.controllers, self.schedule, self.measure, self.panel = tuple(controllers), schedule, measure, panel
        self.round_metrics = RoundMetrics(wireless, regret)
        self.aggregator = PrivateAggregator(privacy, algorithm, self.controllers, self.seeds)
        self.clock = torch.nn.Parameter(torch.zeros(()))
        self.task_function.serves(algorithm)
        self.server: Any = None  # leaves [S, ...]
        self.record: Record | None = None
        self.last: RoundResult | None = None  # None in the round that a resume begins in
        self._saved: dict[str, Any] | None = None  # of a checkpoint, until the fit starts
        self._loaded: dict[str, Any] | None = None  # of the checkpoint whose models these are, where no fit made them
        self._folder: Path | None = None  # of the checkpoint
        self._block = 0  # jobs of a replica that train at once; 0: not known yet
        self._weighed = False
        self.evaluation: Any = None  # an Evaluation, once there is a world
        self._chosen: tuple[Any, Tensor] | None = None  # [S, N] of several models those that devices use, of a server

    def measures(self, population: Population, rounds: int) -> list[str]:
        """Names of all metrics that a run of so many rounds in this world will have measured at its end; the world need
        not be settled."""
        foresee(self.task_function, population.dataset)
        met = {
            "losses": self.task_function.has_loss,
            "correctness": self.task_function.scores_accuracy,
            "drift": bool(population.drifts(rounds)),
            "sessions": bool(population.sessions(rounds)),
            "wireless": self.round_metrics.wireless is not None,
            "regret": self.round_metrics.regret is not None,
            "clip": self.aggregator.privacy is not None,
            "noise": self.aggregator.private,
            "panel": self.panel is not None,
            "detector": any(isinstance(controller, Detector) for controller in self.controllers),
        }
        own = [*self.algorithm.measures, *(name for controller in self.controllers for name in controller.measures)]
        own += promised(self.task_function)
        own += measured_names(self.measure)
        return measured_by([need for need, holds in met.items() if holds], own)

    # ---- setting up ------------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[L.Callback]:
        """None of its own: this is the first hook of every run, where a Trainer's flags can be refused."""
        refuse_flags(self.trainer)
        follow_task(self.trainer)
        return []

    def configure_optimizers(self) -> RoundClock:
        """Only a clock."""
        return RoundClock(self.clock, self.algorithm.lr)

    def _settled(self) -> Population:
        """The Trainer's world, with the data of every replica."""
        population = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(population, Population):
            raise ValueError(
                "the coordinator needs a Population: call trainer.fit(coordinator, datamodule=Population(dataset, "
                f"clients=..., participants=...)), got {type(population).__name__}"
            )
        if self.panel is not None:
            self.panel.check(population.clients, self.trainer.check_val_every_n_epoch or 1)
        return population.settle(self.seeds)

    def on_fit_start(self) -> None:
        """Build the first state, or take up that of a checkpoint."""
        self._loaded = None
        self.population = population = self._settled()
        template = next(p for p in self.task.parameters() if p.requires_grad)
        dtype = torch.float64 if self.clock.dtype == torch.float64 else template.dtype
        context = training_context(self.task_function, population.store, self.device, dtype, population.dataset)
        self.executor = self._make_executor(context)
        self._weighed = False
        self.algorithm.meets(population.count_concepts())
        survey = Survey(context, self.executor.loops)
        self.evaluation = Evaluation(self.algorithm, survey, population, self.device, self.measure, self.panel)
        layout = self.task_function.layout
        x = initial_models(self.task, layout, self.seeds, self.initial, self.algorithm.starts).to(self.device, dtype)
        if not accelerated(self.device):
            keep_freed_memory(layout.n * x.element_size())
        self.server = torch.vmap(lambda x: self.algorithm.server_init(x, layout))(x)
        self.bank = ClientBank(len(self.seeds), population.clients, self.bank_memory)
        self._block = 0
        if not isinstance(io := self.trainer.strategy.checkpoint_io, RowsBeside):
            self.trainer.strategy.checkpoint_io = RowsBeside(io, lambda: getattr(self, "bank", None))
        draw = partial(drawn_model, self.task, layout, x, self.algorithm.starts)
        self.runner = ControllerRunner(
            self.controllers, self.algorithm, layout, population, self.bank, self.schedule, draw=draw
        )
        planned = last_round(self.trainer)
        saved = self._saved or {}  # a run that goes on keeps the horizon for which it was planned
        self.runner.start(self.server, saved.get("horizon") or planned)
        self.round_metrics.start(population, self.task)
        self.aggregator.start(population, planned, self._saved)
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None

    def _make_executor(self, context: TrainingContext) -> Executor:
        """On the Trainer's device, or on all of them, until the Trainer is done."""
        devices, strategy = lanes_devices(self.trainer), self.trainer.strategy
        name = following(self.executor_name, self.algorithm)
        if len(devices) == 1:
            return make_executor(name, context, self.compile_step, self.max_lanes)
        assert isinstance(strategy, LanesStrategy)
        sharded = Sharded(name, context, devices, self.compile_step, self.max_lanes)
        strategy.at_end(sharded.close)
        return sharded

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Lightning notes the name of each of its hooks, some forty times a round; a module's own way to keep an
        attribute, which asks whether it is a parameter, then takes a twentieth of a small round."""
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def training_step(self, cohort: Cohort, batch_idx: int) -> None:
        """One round: controllers, the round itself, controllers, record."""
        if not self._block:  # known in the first round, since states are of the types that hold while a Trainer trains
            layout, bound = self.task_function.layout, self.cohort_memory
            self._block = jobs_at_once(self.algorithm, self.server, layout, self.population, bound)
        start = begun = fitted = time.perf_counter()
        round = self.trainer.current_epoch + 1
        ahead, following = self.population.ahead, round + 1 if round != last_round(self.trainer) else None
        algorithm = self.runner.scheduled(round)
        probes: list[RoundResult] = []
        cohort = cohort.repeated(algorithm.jobs_per_device)
        blocks, done_blocks = -(-cohort.jobs.client.shape[1] // self._block), 0

        def play(wanted: ProbeRounds) -> Tensor:
            given = wanted, round, self.population, algorithm, self.evaluation, self.executor.fit
            x, results = play_probe_rounds(*given, self._block)
            probes.extend(results)
            return x

        def fit(*work: Any) -> Fit:
            nonlocal begun, fitted, done_blocks
            with ahead.while_training(self.population.cohort, following):
                try:
                    done = self._fit(round, done_blocks, *work)
                except Exception as error:
                    error.add_note(f"in round {round}, {self.executor_name} executor, {type(self.algorithm).__name__}")
                    raise
            if not self._weighed:
                self._weigh(begun, blocks)
            begun = fitted = time.perf_counter()
            done_blocks += 1
            return done

        server, events = self.runner.before(self.server, round, play)
        rows = BankRows(self.bank, self.algorithm, cohort.jobs.client, stacked(server.x)[:, 0])
        look = partial(self.evaluation.personal, round=round) if self._due else None
        given = rows, cohort, algorithm, self.evaluation, fit, self.aggregator.of(round), self._block, look
        server, result = play_round(server, *given)
        losses = self.aggregator.hidden(result.fit.loss)
        self.server, after = self.runner.after(server, losses, result.inbox.weights, round)
        stepped = time.perf_counter()
        self.last = result
        clock = self.optimizers()
        assert not isinstance(clock, list)
        clock.step()
        known = {} if self.record is None else self.record.metrics
        metrics = self.round_metrics(round, self.server.x, result, probes, known)
        metrics |= training_metrics(self.task_function, result.fit.logged)
        metrics |= {"train/lr": [algorithm.lr] * len(self.seeds)} | self.aggregator.metrics | self.runner.metrics()
        times = {"fit": fitted - start, "server": stepped - fitted, "round": time.perf_counter() - start}
        metrics |= {f"time/{name}_s": [seconds] * len(self.seeds) for name, seconds in times.items()}
        self.record = Record(round, metrics, (*events, *after))
        self._show(metrics)
        if not self.aggregator.allows(round):
            self.trainer.should_stop = True

    @property
    def _due(self) -> bool:
        """Whether this round is evaluated."""
        every = self.trainer.check_val_every_n_epoch or 1
        return self.trainer.enable_validation and (self.trainer.current_epoch + 1) % every == 0

    def _fit(self, round: int, block: int, *work: Any) -> Fit:
        """The local fits of a round's block (from 0). Where they draw random numbers these are each replica's own, as
        in a run of its own, and on a resume the same."""
        purpose = f"dropout {round - 1}" + (f" {block}" if block else "")

        def of_replica(replica: int, *work: Any) -> Fit:
            with forked_random(self.device, torch_seed(self.seeds[replica], purpose)):
                return self.executor.fit(*work)

        if self.task_function.findings.draws and len(self.seeds) > 1:
            return by_replica(of_replica, *work)
        return of_replica(0, *work)

    def _weigh(self, start: float, blocks: int) -> None:
        """After the fits of one of a round's blocks, let the executor choose how to go on, until that is settled."""
        synchronize(self.device)
        took = time.perf_counter() - start
        self._weighed = self.executor.weigh(took, self._rounds_left(took * blocks) * blocks)

    def _rounds_left(self, took: float) -> float:
        """How many rounds there will be after this one, each of which takes so many seconds."""
        last = last_round(self.trainer)
        left = math.inf if last is None else last - self.trainer.current_epoch - 1
        seconds = seconds_left(self.trainer)
        return left if seconds is None else min(left, max(0.0, seconds) / took)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the global models on everybody, and the participants' local models on themselves.

        Raises:
            ValueError: nothing was trained or loaded.
        """
        if self.trainer.state.fn != TrainerFn.FITTING:
            self._measure("valid")
            return
        if self.trainer.sanity_checking:
            return
        if self.record is None:
            raise ValueError(NOTHING)
        if self.last is None:  # the checkpoint was written at the end of this evaluation: Lightning asks for it again
            self._show(self.record.metrics)
            return
        start = time.perf_counter()
        given = self.server, self.bank, self.last.cohort, self.last.fit, self.record.round, self.last.looked
        metrics = self.evaluation(*given)
        took = time.perf_counter() - start
        metrics["time/evaluation_s"] = [took] * len(self.seeds)
        rounds = self._rounds_left(took + self.record.metrics["time/round_s"][0])
        self.evaluation.survey.weigh(took, rounds / (self.trainer.check_val_every_n_epoch or 1))
        self.record = self.record._replace(metrics={**self.record.metrics, **metrics})
        self._show(metrics)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the models that devices use on everybody's test examples."""
        self._measure("test")

    def on_validation_start(self) -> None:
        """Of ``trainer.validate``: be ready to measure without a fit."""
        self._look()

    on_test_start = on_predict_start = on_validation_start

    def _look(self) -> None:
        """Where there was no fit with this Trainer, put models and examples where it computes."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            return
        if self.record is None:
            raise ValueError(NOTHING)
        self.population = population = self._settled()
        if self.algorithm.personalized:
            self._refuse_lost_rows()
        if (there := self.bank.slot.shape[1]) != population.clients and self.bank.rows:
            raise ValueError(f"the models are those of {there} devices, but the population has {population.clients}")
        self.server = pytree.tree_map(lambda leaf: leaf.to(self.device), self.server)
        given = self.device, self.server.x.dtype, population.dataset
        context = training_context(self.task_function, population.store, *given)
        self.evaluation = Evaluation(self.algorithm, Survey(context), population, self.device, self.measure, self.panel)

    def _measure(self, split: Split) -> None:
        """Log the metrics of a split in the world of the last round, as they were then."""
        assert self.record is not None
        round = self.record.round
        world = self.population.cohort(round).to(self.device).round
        metrics = self.evaluation.of_devices(self.server, self.bank, world, round, [split])
        for name, value in as_tensors(replica_means(metrics)).items():
            self.log(name, value, batch_size=1)

    def predict_step(self, batch: Any, batch_idx: int) -> "Predictions":
        """What a device's model says of the device's test examples; devices are numbered by the loader.

        Raises:
            ValueError: the task has no ``forward``.
        """
        assert self.record is not None
        if not overrides(self.task, "forward"):
            raise ValueError(f"task: {type(self.task).__name__} defines no forward(x), so it predicts nothing; add one")
        device, round = int(batch), self.record.round
        rows = self.population.device_data.held(0, device, "test", round)
        store = self.evaluation.survey.store
        concept = self.population.concepts(round)[0, device].to(self.device)
        x, y = store.gather(torch.from_numpy(rows).to(self.device), concept)
        with self.task_function.evaluating():
            outputs = self.task_function.logits(self._model_of(device, 0), x, fixed=True)
        return Predictions(device, y, outputs)

    def _show(self, metrics: dict[str, list[float]]) -> None:
        """Means over replicas for callbacks and the progress bar. ``self.log`` takes a third of a millisecond a metric,
        a third of a whole round; a round's values are final when they are measured and need none of its reductions."""
        means: dict[str, Any] = as_tensors(replica_means(metrics))
        self.trainer.callback_metrics.update(means)
        told = {"train/loss", "valid/accuracy" if "valid/accuracy" in means else "valid/loss"}
        told |= self.task_function.shown
        shown = {name: float(value) for name, value in means.items() if name in told}
        self.trainer.progress_bar_metrics.update(shown)

    def on_train_start(self) -> None:
        """Let the clock show the learning rate of the first round."""
        self._tell_rate(self.trainer.current_epoch + 1)

    def _tell_rate(self, round: int) -> None:
        """Let the clock show the learning rate of a round, if it comes."""
        if (last := last_round(self.trainer)) is None or round <= last:
            clock = self.trainer.optimizers[0]
            assert isinstance(clock, RoundClock)
            clock.tell(self.runner.scheduled(round).lr)

    def on_train_epoch_end(self) -> None:
        """The round, its evaluation included, as one row of every logger."""
        self._tell_rate(self.trainer.current_epoch + 2)
        if not self.loggers or self.record is None:
            return
        means = replica_means(self.record.metrics)
        self.trainer.logged_metrics.update(as_tensors(means))
        for logger in self.loggers:
            logger.log_metrics({**means, "epoch": self.record.round - 1}, step=self.record.round)
            logger.save()

    # ---- state -----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Everything that a bit-exact resume needs, and to have the model back, as plain tensors and containers."""
        checkpoint.pop("state_dict", None)
        checkpoint |= files.task_entries(self.task, self.task_function.tensors(self._global(0)))
        if self._loaded is not None:
            checkpoint["flstudy"] = self._loaded
            return
        number, metrics, events = self.record or Record(0, {})
        clockless = {name: values for name, values in metrics.items() if not name.startswith("time/")}
        checkpoint["flstudy"] = {
            "version": 1,
            **self._identity(),
            "made": self._made(),
            "horizon": self.runner.rounds if self.runner.takes_horizon else None,
            "choices": {**self.executor.choices(), **self.evaluation.survey.choices()},
            "devices": len(lanes_devices(self.trainer)),
            "server": leaves(self.server),
            "bank": self.bank.state_dict(),
            "control": [leaves(state) for state in self.runner.states],
            "privacy": self.aggregator.state_dict(),
            "record": [number, clockless, [list(event) for event in events]],
        }

    def _identity(self) -> dict[str, Any]:
        """What of a run a checkpoint's must be."""
        algorithm = type(self.algorithm).__name__
        return {"algorithm": algorithm, "seeds": list(self.seeds), "executor": self.executor_name}

    def _made(self) -> dict[str, Any]:
        """How to make this coordinator again; None for a part that cannot be told."""
        parts: dict[str, Any] = {"algorithm": self.algorithm, "initial": self.initial, "executor": self.executor_name}
        parts |= {
            "buffers": self.buffer_mode,
            "compile": self.compile_step,
            "max_lanes": self.max_lanes,
            "bank_memory": self.bank_memory,
            "cohort_memory": self.cohort_memory,
            "controllers": list(self.controllers),
        }
        parts |= {
            "schedule": self.schedule,
            "wireless": self.round_metrics.wireless,
            "regret": self.round_metrics.regret,
        }
        parts |= {"privacy": self.aggregator.privacy, "measure": self.measure, "panel": self.panel}
        told = {name: files.recipe_or_none(part) for name, part in parts.items()}
        unknown = [name for name, part in parts.items() if part is not None and told[name] is None]
        return {"task": files.class_path(self.task), "parts": told, "unknown": unknown}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checked now; a fit takes it up when it starts, an evaluation uses its models.

        Raises:
            ValueError: it was written with another algorithm, population or the like.
        """
        saved = files.state_of_run(checkpoint)
        fits = self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING
        if self._trainer is not None and self.trainer.ckpt_path is not None:
            self._folder = local_folder(self.trainer.ckpt_path)
        for name, here in self._identity().items():
            if saved[name] != here and (fits or name != "executor"):
                raise ValueError(f"the checkpoint was written with {name} {saved[name]!r}, but this run has {here!r}")
        layout = self.task_function.layout
        trained = dict(zip(layout.names, map(tuple, layout.shapes), strict=True))
        files.refuse_other_task(self.task, trained, checkpoint["state_dict"])
        if fits:
            self._saved = saved
        else:
            self._revive(saved)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Of a checkpoint's ``state_dict`` what is not trained: frozen layers and buffers. What is trained goes with
        the server's state, for all replicas."""
        here, function = self.task.state_dict(), self.task_function
        trained = {*function.layout.names, *function.buffers.layout.names}
        kept = {name: value for name, value in state_dict.items() if name in here and name not in trained}
        if any(not torch.equal(here[name].cpu(), value.cpu()) for name, value in kept.items()):
            self.task.load_state_dict(kept, strict=False)
            self.task_function = TaskFunction(self.task, self.buffer_mode)
        return _IncompatibleKeys([], [])

    def _revive(self, saved: dict[str, Any]) -> None:
        """The models of a checkpoint, to be looked at."""
        layout, starts = self.task_function.layout, self.algorithm.starts
        x = torch.zeros(len(self.seeds), *([] if starts == 1 else [starts]), layout.n)
        template = torch.vmap(lambda x: self.algorithm.server_init(x, layout))(x)
        self.server = refill(template, list(saved["server"]))
        self.bank = ClientBank(len(self.seeds), saved["bank"]["slot"].shape[1], self.bank_memory)
        self.bank.load_state_dict(saved["bank"], self._folder)
        saved["bank"] = self.bank.state_dict()
        self._remember(saved)
        self._loaded, self._saved = saved, None
        self.load_into(self.task)

    @_restricted_classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **parts: Any,
    ) -> "Coordinator":
        """A coordinator with a checkpoint's trained models, of which ``task`` holds the first replica's global one.

        Args:
            checkpoint_path: a coordinator's checkpoint, or a model that a study kept.
            map_location: as in ``torch.load``; the CPU by default.
            hparams_file: of the task, as in its own ``load_from_checkpoint``.
            strict: likewise.
            weights_only: nothing else is ever loaded.
            parts: arguments of the coordinator that the checkpoint does not tell, or that shall be others: ``task``,
                whose class is not imported or whose arguments it did not save, is one.

        Raises:
            ValueError: for a damaged file, one that no coordinator wrote, or a part that has to be given.
        """
        content = files.read_file(checkpoint_path, map_location or "cpu")
        saved = files.state_of_run(content, checkpoint_path)
        if "task" not in parts:
            given = {"hparams_file": hparams_file, "strict": strict}
            parts["task"] = files.task_from(checkpoint_path, content, **given)
        coordinator: Coordinator = cls(**files.told_arguments(checkpoint_path, saved, parts))
        coordinator._folder = local_folder(checkpoint_path)
        coordinator.on_load_checkpoint(content)
        coordinator.load_state_dict(content["state_dict"])
        return coordinator

    def _remember(self, saved: dict[str, Any]) -> None:
        number, metrics, events = saved["record"]
        self.record, self.last = Record(number, metrics, tuple(Event(*event) for event in events)), None

    def _restore(self, saved: dict[str, Any]) -> None:
        self._remember(saved)
        self.server = refill(self.server, [leaf.to(self.device) for leaf in saved["server"]])
        self.bank.load_state_dict(saved["bank"], self._folder)
        if (there := saved.get("devices", 1)) != (here := len(lanes_devices(self.trainer))):
            warnings.warn(
                f"the checkpoint was written with devices {there}, and this run has {here}: it goes on equal but for "
                "rounding",
                stacklevel=2,
            )
        sharded = isinstance(self.executor, Sharded)
        self.executor.choose(saved["choices"] if sharded else of_one_place(saved["choices"]))
        self.evaluation.survey.choose(saved["choices"])
        self.runner.states = [
            refill(state, [leaf.to(self.device) for leaf in values])
            for state, values in zip(self.runner.states, saved["control"], strict=True)
        ]

    def personal(self, client: int, replica: int = 0) -> L.LightningModule:
        """A copy of the task with the model that a device has: its own where the method keeps one, of several global
        models the one that it chooses, or else the global one."""
        model = self._model_of(client, replica)
        return self._filled(copy.deepcopy(self.task), model).eval()

    def _model_of(self, client: int, replica: int) -> Tensor:
        """[n]: likewise, as a vector."""
        if self.record is None:
            raise ValueError(NOTHING)
        if not 0 <= client < (known := self.bank.slot.shape[1]):
            raise ValueError(f"client must be a device from 0 to {known - 1}, got {client}")
        x, algorithm = stacked(self.server.x), self.algorithm
        if algorithm.personalized or algorithm.keeps_model:
            self._refuse_lost_rows()
            clients = torch.full((len(self.seeds), 1), client)
            server, row = take((self.server, self.bank.read(algorithm, clients, x[:, 0])), replica)
            row = take(row, 0)
            return algorithm.kept(server, row)
        if x.shape[1] == 1:
            return self._global(replica)
        if self.evaluation is None:
            raise ValueError(
                f"the devices of {type(algorithm).__name__} choose a model by their data: call trainer.validate("
                "coordinator, datamodule=...) first"
            )
        if self._chosen is None or self._chosen[0] is not self.server:
            round = self.record.round
            world = self.population.cohort(round).to(x.device).round
            everybody = self.evaluation.everybody(round)
            self._chosen = self.server, self.evaluation.choice(self.server, world, round, everybody)
        return self._global(replica, self._chosen[1][replica, client])

    def _refuse_lost_rows(self) -> None:
        if not self.bank.rows:
            raise ValueError(
                f"the models of single devices of {type(self.algorithm).__name__} are in checkpoints, not in a model "
                "that a study kept: load a checkpoint"
            )

    def on_fit_end(self) -> None:
        """Leave the first replica's model in the user's task."""
        self.load_into(self.task)
        return_freed_memory()

    def load_into(self, task: L.LightningModule, replica: int = 0) -> L.LightningModule:
        """Copy a replica's global model into a task and return it; of several, the first."""
        return self._filled(task, self._global(replica))

    def _global(self, replica: int, model: Any = 0) -> Tensor:
        """[n]: one of the replica's global models."""
        return stacked(self.algorithm.global_models(self.server))[replica, model]

    def _filled(self, task: L.LightningModule, model: Tensor) -> L.LightningModule:
        tensors = self.task_function.tensors(model)
        with torch.no_grad():
            for name, own in (*task.named_parameters(), *task.named_buffers()):
                if name in tensors:
                    own.copy_(tensors[name])
        return task


class Predictions(NamedTuple):
    """What the model of a device says of its test examples, as they are in the last round."""

    device: int
    labels: Tensor  # [V], or [V, ...] for several labels per example
    outputs: Tensor  # [V, ...] the task's ``forward``


def as_tensors(values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """As Lightning keeps metrics."""
    return dict(zip(values, torch.tensor(list(values.values()), dtype=torch.float64).unbind(), strict=True))
