"""A federated run without a Trainer: an object over an explicit state, which Lightning, tests and notebooks drive."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm, Batch
from flstudy.algorithms.parts.buffers import with_buffers
from flstudy.controllers import Controller, Detector, ProbeRounds, Schedule
from flstudy.execution import ClientBank, Executor, TrainingContext, following, make_executor, training_context
from flstudy.execution.devices import accelerated, forked_random
from flstudy.execution.freed_memory import keep_freed_memory, return_freed_memory
from flstudy.execution.model_evaluator import ModelEvaluator
from flstudy.execution.sharded import Sharded, of_one_place
from flstudy.execution.torch_threads import ONE_THREAD, one_thread, takes_one_thread
from flstudy.federation import checkpoint as files
from flstudy.federation.asked_devices import stacked
from flstudy.federation.blocks import BankRows, jobs_at_once
from flstudy.federation.checkpoint_rows import local_folder
from flstudy.federation.controller_runner import ControllerRunner
from flstudy.federation.evaluation import Evaluation
from flstudy.federation.initial import BuildTask, InitialModels
from flstudy.federation.local_fits import Horizon, LocalFits, no_limit
from flstudy.federation.method_forms import MethodForms
from flstudy.federation.module_metrics import foresee, promised, refuse_second, training_metrics, with_logged
from flstudy.federation.play_round import RoundResult, play_probe_rounds, play_round
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.federation.round_metrics import Record, RoundMetrics
from flstudy.federation.run_state import RunState
from flstudy.federation.trained_models import TrainedModels
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import Measure, measured_names
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import measured_by
from flstudy.metrics.wireless import Wireless
from flstudy.population import Cohort, ExampleStore, Population, Split
from flstudy.population.ahead import Ahead
from flstudy.population.streams import torch_seed
from flstudy.privacy import Privacy
from flstudy.process_state import PROCESS_STATE
from flstudy.run_settings import RunSettings
from flstudy.tasks import TaskFunction
from flstudy.tasks.findings import TO_SAY_CORRECT, check_module
from flstudy.tasks.own_optimizer import by_own_optimizer, refuse_schedule, stepping
from flstudy.user_error import UserError


class FederatedRun:
    """Federated run: trains a task on a population with an algorithm, round by round, without a Trainer.

        run = FederatedRun(Net(), Flash(lr=0.1), RunSettings(seeds=[0, 44]))
        run.start(Population(data, clients=20, participants=10), rounds=60)
        for record in run.play(evaluate_every=5):
            print(record.round, record.metrics["train/loss"])

    Everything that rounds change is in ``state``; ``save`` writes it to a file from which ``resume`` goes on bit for
    bit. A run with a Coordinator under a Trainer is this one: same digits, same files.

    Args:
        task: any LightningModule with ``training_step`` or ``example_losses``, or a function that builds one.
        algorithm: the method.
        settings: replicas, and how local fits are carried out.
        controllers: what changes the server's state around rounds, whatever the algorithm.
        schedule: how the devices' learning rate falls within a session; null keeps it.
        wireless: the radio cell whose seconds and joules every round logs; null logs none.
        regret: how to solve for the best model of each round, so that every round logs its regret; null logs none.
        privacy: clipping and noise between the devices and the server; null changes nothing.
        measure: what evaluations tell of the devices beside means and deviations; null tells no more.
        panel: whom evaluations ask; null asks everybody.

    Attributes:
        last: the result of the last round; None before the first one, and after a resume.
        models: the trained models, global and personal.
    """

    executor: Executor
    population: Population

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
        carried = self.task_function.buffers.carried()
        algorithm = with_buffers(algorithm, settings.buffers, carried)
        self.algorithm = stepping(algorithm, self.task, self.task_function.layout, settings.local_optimizer)
        refuse_schedule(self.task, schedule, settings.local_optimizer)
        self.controllers, self.schedule, self.measure, self.panel = tuple(controllers), schedule, measure, panel
        self.round_metrics = RoundMetrics(wireless, regret)
        self.aggregator = PrivateAggregator(privacy, self.algorithm, self.controllers, self.seeds)
        self.task_function.serves(self.algorithm)
        self.models = TrainedModels(self)
        self.device = torch.device("cpu")
        self.trainer: L.Trainer | None = None  # to which the task is attached where its own steps measure it
        self._state: RunState | None = None
        self._small = False  # whether it takes one thread
        self.last: RoundResult | None = None
        self._of_round: tuple[str, ...] = ()  # names of the last round's metrics but those of its evaluation
        self.evaluation: Any = None  # an Evaluation, once there is a world
        self._read: dict[str, Any] | None = None  # the checkpoint whose models these are, where no round was played

    def __getstate__(self) -> dict[str, Any]:
        """The run with its models and its world, but without what computes: it goes on as from a checkpoint."""
        parts = {name: part for name, part in vars(self).items() if name not in ("executor", "fits")}
        return {**parts, "trainer": None, "evaluation": None}

    def measures(self, population: Population, rounds: int) -> list[str]:
        """Names of all metrics that a run of ``rounds`` rounds in this world will have measured at its end; the world
        need not be settled.

        Raises:
            UserError: for two measures of one name.
        """
        foresee(self.task_function, population.dataset)
        return self._measures(population, rounds)

    def _measures(self, population: Population, rounds: int) -> list[str]:
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
            "panel": self.panel is not None,
            "detector": any(isinstance(controller, Detector) for controller in self.controllers),
        }
        names = [*self.algorithm.measures, *(name for controller in self.controllers for name in controller.measures)]
        names = measured_by([need for need, holds in met.items() if holds], [*names, *measured_names(self.measure)])
        return [*names, *promised(self.task_function, names)]

    # ---- setting up ------------------------------------------------------------------------------------------------

    def start(
        self,
        population: Population,
        rounds: int | None = None,
        *,
        device: torch.device | str = "cpu",
        precision: str = "32-true",
        devices: Sequence[torch.device] = (),
        nodes: int = 1,
        seconds_left: Callable[[], float | None] = no_limit,
        saved: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Make the state before the first round, or take up a saved one.

        Args:
            population: the world; its data are divided where they are not yet.
            rounds: the last round; None: nobody knows.
            device: of the models.
            precision: as a Trainer's: ``32-true`` (the task's own), ``64-true`` or ``bf16-mixed``.
            devices: those over which a round's lanes are divided, where they are several.
            nodes: machines of a Ray cluster with so many devices each.
            seconds_left: until a limit of time; None without one.
            saved: what ``state_dict`` returned.
            folder: of the checkpoint that held it.

        Raises:
            UserError: for parts that do not suit each other, or a saved state of another run.
        """
        self._read, self.last = None, None
        self.population, self.device, self.precision = population.settle(self.seeds), torch.device(device), precision
        population.ahead = Ahead()  # what an earlier run planned may be of another world
        self.horizon, self.devices, self.nodes = Horizon(rounds, seconds_left), devices or [self.device], nodes
        template = next(p for p in self.task.parameters() if p.requires_grad)
        dtype = torch.float64 if precision == "64-true" else template.dtype
        self.task_function.rounds = rounds
        context = training_context(self.task_function, population.store, self.device, dtype, population.dataset)
        self.executor = self._make_executor(context)
        self.algorithm.meets(population.count_concepts())
        self._measures(population, rounds or 1)  # before a round: two measures of one name are refused
        if population.dataset.classes > 1 and not self.task_function.scores_accuracy:
            name = type(self.task).__name__
            rank_zero_info(f"no accuracy is measured, since {name} does not say what is correct: {TO_SAY_CORRECT}")
        self._evaluate_by(ModelEvaluator(context, self.executor.loops))
        note = f"{self.settings.executor} executor, {type(self.algorithm).__name__}"
        parts = self.executor, self.task_function, population, self.seeds, self.device, self.horizon, note
        self.fits = LocalFits(*parts)
        layout, starts = self.task_function.layout, self.algorithm.starts
        if any(controller.draws for controller in self.controllers):
            self.initial.refuse_unknown()
        x = self._no_models() if saved else self.initial.first(self.task_function, starts)
        x = x.to(self.device, dtype)
        if not accelerated(self.device):
            keep_freed_memory(layout.n * x.element_size())
        self._small = not accelerated(self.device) and takes_one_thread(sum(p.numel() for p in self.task.parameters()))
        if self._small:
            rank_zero_info(ONE_THREAD.format(threads=torch.get_num_threads()))
        self._check_method(x[0], context.store)
        bank = ClientBank(len(self.seeds), population.clients, self.settings.bank_memory)
        self._state = RunState(torch.vmap(lambda x: self.algorithm.server_init(x, layout))(x), bank)
        self._block = 0  # jobs of a replica that train at once; 0: not known yet
        draw = partial(self.initial.drawn, self.task_function, x, starts)
        self.runner = ControllerRunner(
            self.controllers, self.algorithm, layout, population, self.state, self.schedule, draw=draw
        )
        # A run that goes on keeps the horizon for which it was planned.
        self.runner.start((saved or {}).get("horizon") or rounds)
        self.round_metrics.start(population, self.task)
        self.aggregator.start(population, rounds, None if saved is None else dict(saved))
        if saved is not None:
            self._take_up(saved, folder)

    def _check_method(self, x: Tensor, store: ExampleStore) -> None:
        """Try the method on the models [..., n] that a replica begins with, and on a small batch of any example."""
        rows = torch.zeros(min(self.population.plan.batch_size, 32), dtype=torch.int64, device=store.x.device)
        batch = Batch(*store.gather(rows, rows[0]), rows == 0)
        with self._computing("start"), torch.no_grad():
            MethodForms(self.algorithm, self.task_function.layout, batch, self.executor.maps).check(x)

    def resume(self, path: str | Path, population: Population, rounds: int | None = None, **how: Any) -> None:
        """Start from a checkpoint, which ``save`` or a Trainer wrote, and go on bit for bit.

        Args:
            path: of the checkpoint.
            population: as in ``start``.
            rounds: likewise.
            how: device and precision, likewise.

        Raises:
            UserError: for a damaged file, or one of another run.
        """
        content = files.read_file(path)
        saved = files.state_of_run(content, path)
        self.refuse_other(saved, content["state_dict"])
        self.load_untrained(content["state_dict"])
        self.start(population, rounds, saved=saved, folder=local_folder(path), **how)

    def look(self, population: Population, device: torch.device) -> None:
        """Prepare evaluations of the models of a checkpoint, without a round.

        Raises:
            UserError: for a population of another number of devices, or models that lack the devices' own.
        """
        state = self.models.state
        self.population, self.device = population.settle(self.seeds), device
        if self.algorithm.personalized:
            self.models.refuse_lost_rows()
        if (there := state.bank.slot.shape[1]) != population.clients and state.bank.rows:
            raise UserError(f"the models are those of {there} devices, but the population has {population.clients}")
        state.server = pytree.tree_map(lambda leaf: leaf.to(device), state.server)
        context = training_context(
            self.task_function, population.store, device, state.server.x.dtype, population.dataset
        )
        self._evaluate_by(ModelEvaluator(context))

    def _evaluate_by(self, evaluator: ModelEvaluator) -> None:
        arguments = self.algorithm, evaluator, self.population, self.device, self.measure, self.panel
        self.evaluation = Evaluation(*arguments, trainer=self.trainer)

    def _make_executor(self, context: TrainingContext) -> Executor:
        """An executor on the run's device, or on all of them, until the run is closed."""
        settings = self.settings
        name = following(settings.executor, self.algorithm)
        if len(self.devices) * self.nodes == 1:
            return make_executor(name, context, settings.compile, settings.max_lanes)
        return Sharded(name, context, self.devices, settings.compile, settings.max_lanes, self.nodes)

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def play(self, evaluate_every: int = 1) -> Iterator[Record]:
        """Play rounds until the last one, or until privacy allows no more; yields each round's record with its
        evaluation.

        Args:
            evaluate_every: rounds between evaluations; the last round is always evaluated.
        """
        if self.panel is not None:
            self.panel.check(self.population.clients, evaluate_every)
        while self.goes_on:
            round = self.state.round + 1
            due = round % evaluate_every == 0 or self.is_last(round)
            record = self.play_round(evaluated=due)
            if due:
                self.evaluate(evaluate_every)
                record = self.state.record or record
            yield record
        self.finish()

    @property
    def steps_by_module(self) -> bool:
        """Whether devices step by the task's ``configure_optimizers``, at rates that the method does not know."""
        return by_own_optimizer(self.task, self.settings.local_optimizer)

    @property
    def goes_on(self) -> bool:
        """Whether another round is planned, and privacy allows it."""
        done = self.state.round
        return done != self.horizon.last and (done == 0 or not self.is_last(done))

    def is_last(self, round: int) -> bool:
        """Whether no round follows a round (from 1): none is planned, or privacy allows none."""
        return round == self.horizon.last or not self.aggregator.allows(round)

    def play_round(self, cohort: Cohort | None = None, *, round: int | None = None, evaluated: bool = False) -> Record:
        """Play one round: controllers, the round itself, controllers, record.

        Args:
            cohort: the work, on the run's device; None: the population's.
            round: its number; None: the next.
            evaluated: whether an evaluation follows: local models that do not stay are then measured meanwhile.

        Returns:
            The measurements of the round.
        """
        state = self.state
        round = state.round + 1 if round is None else round
        if cohort is None:
            cohort = self.population.ahead.made(self.population.cohort, round).to(self.device)
        with self._computing(f"round {round}"):
            if not self._block:  # known in the first round, since states are of the types that hold while one is played
                layout, bound = self.task_function.layout, self.settings.cohort_memory
                self._block = jobs_at_once(self.algorithm, state.server, layout, self.population, bound)
            return self._play(state, cohort, round, evaluated)

    def _play(self, state: RunState, cohort: Cohort, round: int, evaluated: bool) -> Record:
        start, replicas = time.perf_counter(), len(self.seeds)
        algorithm = self.runner.scheduled(round)
        cohort = cohort.repeated(algorithm.jobs_per_device)
        self.fits.begin(round, -(-cohort.jobs.client.shape[1] // self._block))
        probes: list[RoundResult] = []
        places = None if self.fits.spread is None else self.fits.spread.parts

        def play(wanted: ProbeRounds) -> Tensor:
            probe = wanted, round, self.population, algorithm, self.evaluation, self.fits.probing()
            x, results = play_probe_rounds(*probe, self._block, places)
            probes.extend(results)
            return x

        server, events = self.runner.before(state.server, round, play)
        rows = BankRows(state.bank, self.algorithm, cohort.jobs.client, stacked(server.x)[:, 0])
        tests = partial(self.evaluation.tests, round=round) if evaluated else None
        work = rows, cohort, algorithm, self.evaluation, self.fits, self.aggregator.of(round), self._block
        server, result = play_round(server, *work, tests, places)
        losses = self.aggregator.hidden(result.fit.loss)
        state.server, after = self.runner.after(server, losses, result.inbox.weights, round)
        stepped, self.last = time.perf_counter(), result
        before = {} if state.record is None else state.record.metrics
        metrics = self.round_metrics(round, state.server.x, result, probes, before)
        metrics |= {} if self.steps_by_module else {"train/lr": [algorithm.lr] * replicas}
        metrics |= self.aggregator.metrics | self.runner.metrics()
        fitted = self.fits.ended
        times = {"fit": fitted - start, "server": stepped - fitted, "round": time.perf_counter() - start}
        metrics |= {f"time/{name}_s": [seconds] * replicas for name, seconds in times.items()}
        logged = training_metrics(self.task_function, result.fit.logged)
        metrics = with_logged(metrics, logged, self.task_function)
        self._of_round = tuple(metrics)
        state.record = Record(round, metrics, (*events, *after))
        return state.record

    @torch.no_grad()
    def evaluate(self, every: int = 1) -> dict[str, list[float]]:
        """Evaluate the global models on everybody, and the participants' local models on themselves.

        Args:
            every: rounds between evaluations, by which it is weighed whether compiling them pays.

        Returns:
            The metrics, a value per replica, which the round's record holds from now on; that record's own directly
            after a resume.
        """
        state = self.models.state
        assert state.record is not None
        if self.last is None:
            return state.record.metrics
        start = time.perf_counter()
        trained = state.server, state.bank, self.last.cohort, self.last.fit, state.round, self.last.looked
        with self._computing(f"evaluation {state.round}"):
            metrics = self.evaluation(*trained)
        took = time.perf_counter() - start
        metrics["time/evaluation_s"] = [took] * len(self.seeds)
        rounds = self.horizon.rounds_left(state.round, took + state.record.metrics["time/round_s"][0])
        self.evaluation.evaluator.weigh(took, rounds / every)
        refuse_second(self._of_round, metrics, self.task_function)
        state.record = state.record._replace(metrics={**state.record.metrics, **metrics})
        return metrics

    def metrics_of(self, split: Split) -> dict[str, list[float]]:
        """Metrics of a split in the world of the last round, as they were then, a value per replica."""
        state = self.models.state
        world = self.population.cohort(state.round).to(self.device).round
        with PROCESS_STATE, self._drawing(f"evaluation {state.round}"):
            return self.evaluation.of_devices(state.server, state.bank, world, state.round, [split])

    def finish(self) -> None:
        """Leave the first replica's model in the task, and give freed memory back to the system."""
        self.models.load_into(self.task)
        return_freed_memory()

    def close(self, orderly: bool = True) -> None:
        """Bring the devices' rows home and end the places of several devices; only after an ``orderly`` end do these
        wait for another run."""
        executor = getattr(self, "executor", None)  # a start that failed may have made none
        if not isinstance(executor, Sharded):
            return
        if self.begun:
            with contextlib.suppress(RuntimeError):  # rows that are lost are missed where they are asked for
                self.state.bank.bring_home()
        executor.close(orderly)

    def _drawing(self, purpose: str) -> contextlib.AbstractContextManager[None]:
        """Context in which a module of the user's that draws from torch's generators draws the run's own numbers,
        also where it measures; flstudy's own draw in local fits only, which have numbers of their own."""
        if self.task_function.shipped:
            return contextlib.nullcontext()
        return forked_random(self.device, torch_seed(self.seeds[0], purpose))

    @contextlib.contextmanager
    def _computing(self, purpose: str) -> Iterator[None]:
        """Compute with new tensors and products in the run's precision, a small model on one thread, alone in the
        process."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(PROCESS_STATE)
            stack.enter_context(self._drawing(purpose))
            before = torch.get_default_dtype()
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float64 if self.precision == "64-true" else before)
            if self.precision == "bf16-mixed":
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            if self._small:
                stack.enter_context(one_thread())
            yield

    @property
    def begun(self) -> bool:
        """Whether there is a state."""
        return self._state is not None

    @property
    def state(self) -> RunState:
        """Server, client rows, controllers' states and record.

        Raises:
            UserError: before the run has begun.
        """
        if self._state is None:
            raise UserError("the run has not begun: call start(population, rounds=...) first")
        return self._state

    # ---- state -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: ``resume`` goes on from it; ``flstudy.load_task`` and the task's own
        ``load_from_checkpoint`` read the trained model."""
        torch.save({"pytorch-lightning_version": L.__version__, **self.checkpoint()}, path)

    def checkpoint(self) -> dict[str, Any]:
        """The entries of a checkpoint, as plain tensors and containers: the task with the first replica's global model,
        and the state."""
        tensors = self.task_function.tensors(self.models.global_model(0))
        return {**files.task_entries(self.task, tensors), "flstudy": self.state_dict()}

    def save_model(self, path: Path) -> None:
        """Write the first seed's global model of a run that was started. ``Coordinator.load_from_checkpoint``,
        ``flstudy.load_task`` and the task's own class read it, too."""
        inputs, _ = self.population.store.read(slice(1))  # as a batch is given them
        whole = self.checkpoint()
        content = {
            **whole,
            "flstudy": files.of_first_replica(whole["flstudy"]),
            "pytorch-lightning_version": L.__version__,
            "version": 1,
            "seed": self.seeds[0],
            "shape": list(inputs.shape[1:]),
            "dtype": str(inputs.dtype).removeprefix("torch."),
            "state": whole["state_dict"],
        }
        torch.save(content, path)

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

    def refuse_other(self, saved: Mapping[str, Any], state: Mapping[str, Any], *, goes_on: bool = True) -> None:
        """Raise UserError for a checkpoint that another algorithm, task or the like wrote.

        Args:
            saved: the checkpoint's state of a run.
            state: the checkpoint's ``state_dict`` of a task.
            goes_on: whether rounds follow; models alone are the same under any executor and optimizer.
        """
        for name, here in self.identity.items():
            there = saved.get(name, here)  # an earlier flstudy's checkpoint has not all of them
            if there != here and (goes_on or name not in ("executor", "local_optimizer")):
                raise UserError(f"the checkpoint was written with {name} {there!r}, but this run has {here!r}")
        layout = self.task_function.layout
        files.refuse_other_task(self.task, dict(zip(layout.names, map(tuple, layout.shapes), strict=True)), state)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-exact resume needs, and how the run was made, as plain tensors and containers."""
        if self._read is not None:
            return self._read
        return {
            "version": 1,
            **self.identity,
            "made": self.recipe,
            "first_buffers": self.task_function.buffers.named_first(),
            "horizon": self.runner.rounds if self.runner.takes_horizon else None,
            "choices": {**self.executor.choices(), **self.evaluation.evaluator.choices()},
            "devices": len(self.devices) * self.nodes,
            **self.state.plain(),
            "privacy": self.aggregator.state_dict(),
        }

    def load_untrained(self, state: Mapping[str, Any]) -> None:
        """Load from a checkpoint's ``state_dict`` of the task what is not trained: frozen layers and buffers. Trained
        tensors come with the server's state, for all replicas."""
        here, function = self.task.state_dict(), self.task_function
        trained = {*function.layout.names, *function.buffers.layout.names}
        untrained = {name: value for name, value in state.items() if name in here and name not in trained}
        if any(not torch.equal(here[name].cpu(), value.cpu()) for name, value in untrained.items()):
            self.task.load_state_dict(untrained, strict=False)
            self.task_function = TaskFunction(self.task, self.settings.buffers)

    def revive(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Take up the models of a checkpoint, to be looked at, and leave the first replica's in the task."""
        layout = self.task_function.layout
        server = torch.vmap(lambda x: self.algorithm.server_init(x, layout))(self._no_models())
        bank = ClientBank(len(self.seeds), saved["bank"]["slot"].shape[1], self.settings.bank_memory)
        self._state, self.last = RunState(server, bank), None
        self.state.take_up_models(saved, folder)
        self._read = {**saved, "bank": bank.state_dict()}
        self.models.load_into(self.task)

    def _no_models(self) -> Tensor:
        """Zeros in the place of initial models, which those of a checkpoint replace."""
        starts = self.algorithm.starts
        return torch.zeros(len(self.seeds), *([] if starts == 1 else [starts]), self.task_function.layout.n)

    def _take_up(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        self.state.take_up(saved, folder, self.device)
        if (there := saved.get("devices", 1)) != (here := len(self.devices) * self.nodes):
            warnings.warn(
                f"the checkpoint was written with devices {there}, and this run has {here}: it goes on equal but for "
                "rounding",
                stacklevel=2,
            )
        choices = saved["choices"]
        self.executor.choose(choices if isinstance(self.executor, Sharded) else of_one_place(choices))
        self.evaluation.evaluator.choose(choices)
