"""A federated run without a Trainer: an object over an explicit state, which Lightning, tests and notebooks drive."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm, Batch
from flstudy.controllers import ProbeRounds
from flstudy.execution import ClientBank, Executor, TrainingContext, following, make_executor, training_context
from flstudy.execution.devices import accelerated, forked_random
from flstudy.execution.freed_memory import keep_freed_memory, return_freed_memory
from flstudy.execution.model_evaluator import ModelEvaluator
from flstudy.execution.sharded import Sharded
from flstudy.execution.torch_threads import ONE_THREAD, one_thread, takes_one_thread
from flstudy.federation import checkpoint as files
from flstudy.federation.asked_devices import stacked
from flstudy.federation.blocks import BankRows, jobs_at_once
from flstudy.federation.candidates import refuse_candidates, with_largest_losses
from flstudy.federation.checkpoint_rows import local_folder
from flstudy.federation.controller_runner import ControllerRunner
from flstudy.federation.evaluation import Evaluation
from flstudy.federation.local_fits import Horizon, LocalFits, no_limit
from flstudy.federation.method_forms import MethodForms
from flstudy.federation.module_metrics import refuse_second, training_metrics, with_logged
from flstudy.federation.own_parts import refuse_copies_without_buffers
from flstudy.federation.play_round import RoundResult, play_probe_rounds, play_round
from flstudy.federation.round_metrics import Record
from flstudy.federation.run_display import RunCurves, run_html
from flstudy.federation.run_parts import RunParts
from flstudy.federation.run_state import RunState
from flstudy.federation.saved_state import SavedState
from flstudy.federation.trained_models import TrainedModels
from flstudy.population import Cohort, ExampleStore, Population, Split
from flstudy.population.ahead import Ahead
from flstudy.population.streams import torch_seed
from flstudy.process_state import PROCESS_STATE
from flstudy.tasks.findings import TO_SAY_CORRECT
from flstudy.user_error import UserError


class FederatedRun(RunParts):
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

    _names_of_round: tuple[str, ...] = ()  # names of the last round's metrics but those of its evaluation
    _one_thread = False  # whether it takes one thread
    _block = 0  # jobs of a replica that train at once; 0: not known yet

    def __getstate__(self) -> dict[str, Any]:
        """Return the run's attributes without executor, fits, evaluation and Trainer, which `start` makes anew."""
        parts = {name: part for name, part in vars(self).items() if name not in ("executor", "fits")}
        if "horizon" in parts:
            parts["horizon"] = self.horizon._replace(seconds_left=no_limit)  # else a Trainer's
        return {**parts, "trainer": None, "evaluation": None}

    @cached_property
    def models(self) -> TrainedModels:
        """The trained models, global and personal."""
        return TrainedModels(self)

    @cached_property
    def saved_state(self) -> SavedState:
        """The content of the run's checkpoints."""
        return SavedState(self, self.models)

    @cached_property
    def curves(self) -> RunCurves:
        """The headline metrics by round, since the run has started in this process."""
        return RunCurves(self.task_function.display)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: what trains, its last metrics and their curves."""
        return run_html(self, self.curves)

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
            population: the devices; their data are divided where they are not yet.
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
        self.saved_state.viewed, self.last = None, None
        self.curves.clear()
        self.population, self.device, self.precision = population.settle(self.seeds), torch.device(device), precision
        population.ahead = Ahead()  # what an earlier run planned may be of another population
        self.horizon, self.devices, self.nodes = Horizon(rounds, seconds_left), devices or [self.device], nodes
        self.task_function.rounds = rounds
        template = next(p for p in self.task.parameters() if p.requires_grad)
        dtype = torch.float64 if precision == "64-true" else template.dtype
        context = training_context(self.task_function, population.store, self.device, dtype, population.dataset)
        self.executor = self._make_executor(context)
        self._check_world(rounds)
        self._evaluate_by(ModelEvaluator(context, self.executor.loops))
        self.fits = LocalFits(
            executor=self.executor,
            task_function=self.task_function,
            population=population,
            seeds=self.seeds,
            device=self.device,
            horizon=self.horizon,
            note=f"{self.settings.executor} executor, {type(self.algorithm).__name__}",
        )
        x = self._first_models(saved).to(self.device, dtype)
        self._spare_memory_and_threads(x)
        self._check_method(x[0], context.store)
        bank = ClientBank(len(self.seeds), population.clients, self.settings.bank_memory)
        self.begin(RunState(self.first_servers(x), bank))
        self._block = 0
        # A run that goes on keeps the horizon for which it was planned.
        self._start_controllers(x, (saved or {}).get("horizon") or rounds)
        self.round_metrics.start(population, self.task)
        self.aggregator.start(population, rounds, None if saved is None else dict(saved))
        if saved is not None:
            self.saved_state.take_up(saved, folder)

    def _check_world(self, rounds: int | None) -> None:
        """Refuse a world in which the method or the panel makes no sense, or two measures of one name, and tell what is
        not measured."""
        if self.panel is not None:
            self.panel.check(self.population.clients)
        self.algorithm.meets(self.population.count_concepts())
        refuse_candidates(self.algorithm, self.population)
        refuse_copies_without_buffers(self.algorithm)
        self.known_measures(self.population, rounds or 1)
        if self.population.dataset.classes > 1 and not self.task_function.scores_accuracy:
            name = type(self.task).__name__
            rank_zero_info(f"no accuracy is measured, since {name} does not say what is correct: {TO_SAY_CORRECT}")

    def _first_models(self, saved: Mapping[str, Any] | None) -> Tensor:
        """Return the models [S, n], or [S, M, n] of several, with which the replicas begin."""
        if any(controller.draws for controller in self.controllers):
            self.initial.refuse_unknown()
        return self.no_models() if saved else self.initial.first(self.task_function, self.algorithm.starts)

    def _spare_memory_and_threads(self, x: Tensor) -> None:
        """Keep memory that rounds free for later ones, and compute on one thread where the models x are small."""
        on_cpu = not accelerated(self.device)
        if on_cpu:
            keep_freed_memory(self.task_function.layout.n * x.element_size())
        self._one_thread = on_cpu and takes_one_thread(sum(p.numel() for p in self.task.parameters()))
        if self._one_thread:
            rank_zero_info(ONE_THREAD.format(threads=torch.get_num_threads()))

    def _start_controllers(self, x: Tensor, rounds: int | None) -> None:
        """Make the controllers' first states, in a run of ``rounds`` rounds whose models are of the kind of x."""
        self.runner = ControllerRunner(
            controllers=self.controllers,
            algorithm=self.algorithm,
            layout=self.task_function.layout,
            population=self.population,
            state=self.state,
            schedule=self.schedule,
            draw=partial(self.initial.drawn, self.task_function, x, self.algorithm.starts),
        )
        self.runner.start(rounds)

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
        self.saved_state.refuse_other(saved, content["state_dict"])
        self.saved_state.load_untrained(content["state_dict"])
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
        if (devices := state.bank.slot.shape[1]) != population.clients and state.bank.rows:
            raise UserError(f"the models are those of {devices} devices, but the population has {population.clients}")
        state.server = pytree.tree_map(lambda leaf: leaf.to(device), state.server)
        context = training_context(
            self.task_function, population.store, device, state.server.x.dtype, population.dataset
        )
        self._evaluate_by(ModelEvaluator(context))

    def _evaluate_by(self, evaluator: ModelEvaluator) -> None:
        self.evaluation = Evaluation(
            algorithm=self.algorithm,
            evaluator=evaluator,
            population=self.population,
            device=self.device,
            measure=self.measure,
            panel=self.panel,
            trainer=self.trainer,
        )

    def _make_executor(self, context: TrainingContext) -> Executor:
        """Return an executor on the run's device, or on all of them, until the run is closed."""
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
    def goes_on(self) -> bool:
        """Return whether another round is planned, and privacy allows it."""
        done = self.state.round
        return done != self.horizon.last and (done == 0 or not self.is_last(done))

    def is_last(self, round: int) -> bool:
        """Return whether no round follows a round (from 1): none is planned, or privacy allows none."""
        return round == self.horizon.last or not self.aggregator.allows(round)

    def play_round(self, cohort: Cohort | None = None, *, round: int | None = None, evaluated: bool = False) -> Record:
        """Play one round: controllers, the round itself, controllers, record.

        Args:
            cohort: the work, on the run's device; None: the population's.
            round: its number, from 1; None: the next.
            evaluated: whether an evaluation follows: local models that do not stay are then measured meanwhile.

        Returns:
            The measurements of the round.
        """
        round = self.state.round + 1 if round is None else round
        if cohort is None:
            cohort = self.population.ahead.made(self.population.cohort, round).to(self.device)
        with self._computing(f"round {round}"):
            self._block = self._block or self._jobs_at_once()
            return self._play(cohort, round, evaluated)

    def _jobs_at_once(self) -> int:
        """Return the number of a replica's jobs that train at once.

        It must be called within a round, where the server's state has the dtypes with which rounds compute.
        """
        bound = self.settings.cohort_memory
        return jobs_at_once(self.algorithm, self.state.server, self.task_function.layout, self.population, bound)

    def _play(self, cohort: Cohort, round: int, evaluated: bool) -> Record:
        state, start, probes = self.state, time.perf_counter(), list[RoundResult]()
        algorithm = self.runner.scheduled(round)
        drawn = cohort.sizes.shape[1]
        participants = min(self.population.participants, drawn) if self.population.asks_candidates else drawn
        self.fits.begin(round, blocks=-(-participants * algorithm.jobs_per_device // self._block))
        probe = partial(self._play_probes, round=round, algorithm=algorithm, probes=probes)
        server, events_before = self.runner.before(state.server, round, probe)
        asking = 0.0, 0.0
        if self.population.asks_candidates:
            cohort, asking = with_largest_losses(cohort, server, participants, self.evaluation)
        cohort = cohort.repeated(algorithm.jobs_per_device)
        server, result = self._train(server, cohort, algorithm, round, evaluated)
        self.last = result._replace(down=result.down + asking[0], up=result.up + asking[1])
        losses = self.aggregator.hidden(self.last.fit.loss)
        state.server, events_after = self.runner.after(server, losses, self.last.inbox.weights, round)
        metrics = self._metrics_of_round(round, algorithm, self.last, probes, start)
        state.record = Record(round, metrics, (*events_before, *events_after))
        self.curves.add(state.record)
        return state.record

    def _train(
        self, server: Any, cohort: Cohort, algorithm: Algorithm, round: int, evaluated: bool
    ) -> tuple[Any, RoundResult]:
        """Let the cohort train from a server's state, leaves [S, ...]; returns its state after that, and the result."""
        return play_round(
            server,
            rows=BankRows(self.state.bank, self.algorithm, cohort.jobs.client, stacked(server.x)[:, 0]),
            cohort=cohort,
            algorithm=algorithm,
            evaluation=self.evaluation,
            fit=self.fits,
            aggregate=self.aggregator.of(round),
            block=self._block,
            divide=self.fits.divide,
            tests=partial(self.evaluation.test_rows, round=round) if evaluated else None,
        )

    def _play_probes(
        self, wanted: ProbeRounds, *, round: int, algorithm: Algorithm, probes: list[RoundResult]
    ) -> Tensor:
        """Play probe rounds before a round, add their results to ``probes``, and return the model x [S, ...] that they
        come to."""
        x, results = play_probe_rounds(
            wanted,
            round=round,
            population=self.population,
            algorithm=algorithm,
            evaluation=self.evaluation,
            fit=self.fits.probe_fit(),
            block=self._block,
            divide=self.fits.divide,
        )
        probes += results
        return x

    def _metrics_of_round(
        self, round: int, algorithm: Algorithm, result: RoundResult, probes: Sequence[RoundResult], start: float
    ) -> dict[str, list[float]]:
        """Return all metrics of a round that began at ``start``, a value per replica."""
        server_end, fit_end, replicas = time.perf_counter(), self.fits.ended, len(self.seeds)
        before = {} if self.state.record is None else self.state.record.metrics
        metrics = self.round_metrics(round, self.state.server.x, result, probes, before)
        metrics |= {} if self.steps_by_module else {"train/lr": [algorithm.lr] * replicas}
        metrics |= self.aggregator.metrics | self.runner.metrics()
        times = {"fit": fit_end - start, "server": server_end - fit_end, "round": time.perf_counter() - start}
        metrics |= {f"time/{name}_s": [seconds] * replicas for name, seconds in times.items()}
        logged = training_metrics(self.task_function, result.fit.logged)
        metrics = with_logged(metrics, logged, self.task_function)
        self._names_of_round = tuple(metrics)
        return metrics

    @torch.no_grad()
    def evaluate(self, every: int = 1) -> dict[str, list[float]]:
        """Evaluate the models that devices use, the global models, and the participants' local models.

        The first two are evaluated on validation and test examples of all devices, or of the panel. Local models are
        evaluated on their own devices' test examples.

        Args:
            every: rounds between evaluations; with the rounds left it decides whether compiling evaluations pays.

        Returns:
            The metrics, a value per replica, which are also added to the round's record. Directly after a resume, the
            record's metrics are returned and nothing is evaluated.

        Raises:
            UserError: before the first round.
        """
        state = self.models.state
        assert state.record is not None
        if self.last is None:
            return state.record.metrics
        start = time.perf_counter()
        with self._computing(f"evaluation {state.round}"):
            metrics = self.evaluation(
                server=state.server,
                bank=state.bank,
                cohort=self.last.cohort,
                fit=self.last.fit,
                round=state.round,
                local_scores=self.last.local_scores,
            )
        took = time.perf_counter() - start
        metrics["time/evaluation_s"] = [took] * len(self.seeds)
        rounds = self.horizon.rounds_left(state.round, took + state.record.metrics["time/round_s"][0])
        self.evaluation.evaluator.weigh(took, rounds / every)
        refuse_second(self._names_of_round, metrics, self.task_function)
        state.record = state.record._replace(metrics={**state.record.metrics, **metrics})
        self.curves.add(state.record)
        return metrics

    def metrics_of(self, split: Split) -> dict[str, list[float]]:
        """Return the metrics of a split in the world of the last round, as they were then, a value per replica.

        Raises:
            UserError: before the first round.
        """
        state = self.models.state
        this_round = self.population.cohort(state.round).to(self.device).round
        with PROCESS_STATE, self._drawing(f"evaluation {state.round}"):
            return self.evaluation.of_devices(state.server, state.bank, this_round, state.round, [split])

    @property
    def has_measured_devices(self) -> bool:
        """Return whether an evaluation has measured single devices."""
        scores = self.evaluation.by_device if self.begun and self.evaluation is not None else None
        return scores is not None and bool(scores.metrics)

    def by_device(self) -> dict[str, NDArray[Any]]:
        """Return the last evaluation's measurements of single devices, as columns of a table.

        A row is a device that was asked in a replica: ``seed``, ``device``, ``round``, ``concept``, ``examples`` (those
        that it owns for training), then metrics such as ``test/accuracy``.

        Raises:
            UserError: before the first evaluation.
        """
        if not self.has_measured_devices:
            raise UserError("nothing has been measured of single devices yet: evaluate first")
        scores = self.evaluation.by_device
        assert scores is not None
        there, devices = scores.available, scores.devices.numpy()
        sizes = [member.counts[line, 0] for member, line in zip(self.population.members, devices, strict=True)]
        columns = {
            "seed": np.broadcast_to(np.array(self.seeds)[:, None], there.shape),
            "device": devices,
            "round": np.full(there.shape, scores.round),
            "concept": scores.concepts.cpu().numpy(),
            "examples": np.stack(sizes),
        }
        columns |= {name: values.double().cpu().numpy() for name, values in scores.metrics.items()}
        return {name: values[there] for name, values in columns.items()}

    def finish(self) -> None:
        """Leave the first replica's model in the task, and give freed memory back to the system."""
        self.models.load_into(self.task)
        return_freed_memory()

    def close(self, orderly: bool = True) -> None:
        """Copy the devices' rows into the bank, and close an executor that trains in several places.

        Args:
            orderly: whether the run ended normally; only then may the places wait for another run.
        """
        executor = getattr(self, "executor", None)  # a start that failed may have made none
        if not isinstance(executor, Sharded):
            return
        if self.begun:
            with contextlib.suppress(RuntimeError):  # rows that are lost are missed where they are asked for
                self.state.bank.bring_home()
        executor.close(orderly)

    def _drawing(self, purpose: str) -> contextlib.AbstractContextManager[None]:
        """Return a context in which torch's random numbers start from the run's first seed and a purpose.

        Only tasks of the user's need it. flstudy's own tasks draw in local fits only, where `LocalFits` sets the seeds.
        """
        if self.task_function.shipped:
            return contextlib.nullcontext()
        return forked_random(self.device, torch_seed(self.seeds[0], purpose))

    @contextlib.contextmanager
    def _computing(self, purpose: str) -> Iterator[None]:
        """Set precision, random numbers and, for a small model, one thread for a computation of the run.

        New tensors get the run's precision. A lock keeps the process's other runs out meanwhile.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(PROCESS_STATE)
            stack.enter_context(self._drawing(purpose))
            before = torch.get_default_dtype()
            stack.callback(torch.set_default_dtype, before)
            torch.set_default_dtype(torch.float64 if self.precision == "64-true" else before)
            if self.precision == "bf16-mixed":
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16))
            if self._one_thread:
                stack.enter_context(one_thread())
            yield

    # ---- state -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: ``resume`` goes on from it; ``flstudy.load_task`` and the task's own
        ``load_from_checkpoint`` read the trained model."""
        self.saved_state.save(path)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs, and how the run was made, as plain tensors and
        containers."""
        return self.saved_state.state_dict()
