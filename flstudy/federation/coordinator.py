"""The coordinator: federated rounds as epochs of an ordinary Lightning Trainer."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from flstudy.algorithms import Algorithm
from flstudy.controllers import Controller, Detector, ProbeRounds, Schedule
from flstudy.execution import ClientBank, Compile, ExecutorName, Fit, Survey, make_executor, training_context
from flstudy.execution.devices import forked_random, synchronize
from flstudy.execution.trees import leaves, refill
from flstudy.federation.controller_runner import ControllerRunner
from flstudy.federation.evaluation import Evaluation, stacked
from flstudy.federation.initial import drawn_model, initial_models
from flstudy.federation.play_round import RoundResult, RoundState, play_probe_rounds, play_round
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.federation.round_metrics import Record, RoundMetrics
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.registry import measured_by, replica_means
from flstudy.metrics.wireless import Wireless
from flstudy.population import Cohort, Event, Population
from flstudy.population.streams import torch_seed
from flstudy.privacy import Privacy
from flstudy.tasks import TaskFunction


class RoundClock(torch.optim.Optimizer):
    """Stepped once per round. Lightning's ``global_step`` counts optimizer steps, and ModelCheckpoint silently writes
    nothing while it stands at 0; the coordinator's own mathematics needs no torch optimizer."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__([parameter], {})

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
        compile: compile the vectorised steps; ``auto`` does after the first round if the rounds ahead pay for it.
        max_lanes: most lanes that train at once, for models that fill the memory; null trains all of them.
        controllers: what changes the server's state around rounds, whatever the algorithm.
        schedule: how the devices' learning rate falls within a session; null keeps it.
        wireless: the radio cell whose seconds and joules every round logs; null logs none.
        regret: how to solve for the best model of each round, so that every round logs its regret; null logs none.
        privacy: clipping and noise between the devices and the server; null changes nothing.
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
        max_lanes: int | None = None,
        controllers: Sequence[Controller] = (),
        schedule: Schedule | None = None,
        wireless: Wireless | None = None,
        regret: Regret | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError(f"seeds must be one or more different integers ≥ 0, got {list(seeds)}")
        if max_lanes is not None and max_lanes < 1:
            raise ValueError(f"max_lanes must be ≥ 1, got {max_lanes}")
        # Not a submodule: its own hooks and log calls must not meet the outer trainer.
        self.__dict__["task"] = task
        self.algorithm, self.seeds, self.initial = algorithm, tuple(seeds), initial
        self.executor_name, self.compile_step, self.max_lanes = executor, compile, max_lanes
        self.controllers, self.schedule = tuple(controllers), schedule
        self.round_metrics = RoundMetrics(wireless, regret)
        self.aggregator = PrivateAggregator(privacy, algorithm, self.controllers, self.seeds)
        self.clock = torch.nn.Parameter(torch.zeros(()))
        self.task_function = TaskFunction(task)
        self.task_function.serves(algorithm)
        self.server: Any = None  # leaves [S, ...]
        self.record: Record | None = None
        self.last: RoundResult | None = None  # None in the round that a resume begins in
        self._saved: dict[str, Any] | None = None
        self._weighed = False

    def measures(self, population: Population, rounds: int) -> list[str]:
        """Names of all metrics that a run of so many rounds in this world will have measured at its end; the world need
        not be settled."""
        met = {
            "losses": self.task_function.per_example,
            "correctness": self.task_function.scores_accuracy,
            "drift": bool(population.drifts(rounds)),
            "sessions": bool(population.sessions(rounds)),
            "wireless": self.round_metrics.wireless is not None,
            "regret": self.round_metrics.regret is not None,
            "clip": self.aggregator.privacy is not None,
            "noise": self.aggregator.private,
            "detector": any(isinstance(controller, Detector) for controller in self.controllers),
        }
        own = [*self.algorithm.measures, *(name for controller in self.controllers for name in controller.measures)]
        return measured_by([need for need, holds in met.items() if holds], own)

    # ---- setting up ------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> RoundClock:
        """Only a clock."""
        return RoundClock(self.clock)

    def on_fit_start(self) -> None:
        """Build the first state, or take up that of a checkpoint."""
        population = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(population, Population):
            raise ValueError(
                "the coordinator needs a Population: call trainer.fit(coordinator, datamodule=Population(dataset, "
                f"clients=..., participants=...)), got {type(population).__name__}"
            )
        self.population = population.settle(self.seeds)
        template = next(p for p in self.task.parameters() if p.requires_grad)
        dtype = torch.float64 if self.clock.dtype == torch.float64 else template.dtype
        context = training_context(self.task_function, population.store, self.device, dtype)
        self.executor = make_executor(self.executor_name, context, self.compile_step, self.max_lanes)
        self._weighed = False
        self.algorithm.meets(population.count_concepts())
        self.evaluation = Evaluation(self.algorithm, Survey(context), population, self.device)
        layout = self.task_function.layout
        x = initial_models(self.task, layout, self.seeds, self.initial, self.algorithm.starts).to(self.device, dtype)
        self.server = torch.vmap(lambda x: self.algorithm.server_init(x, layout))(x)
        self.bank = ClientBank(len(self.seeds), population.clients)
        draw = partial(drawn_model, self.task, layout, x, self.algorithm.starts)
        self.runner = ControllerRunner(self.controllers, self.algorithm, layout, population, self.schedule, draw=draw)
        last = self.trainer.max_epochs
        planned = None if last is None or last < 0 else last
        saved = self._saved or {}  # a run that goes on keeps the horizon for which it was planned
        self.runner.start(self.server, saved.get("horizon") or planned)
        self.round_metrics.start(population, self.task)
        self.aggregator.start(population, last, self._saved)
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def training_step(self, cohort: Cohort, batch_idx: int) -> None:
        """One round: controllers, the round itself, controllers, record."""
        start = fitted = time.perf_counter()
        round = self.trainer.current_epoch + 1
        algorithm = self.runner.scheduled(round)
        probes: list[RoundResult] = []

        def play(wanted: ProbeRounds) -> Tensor:
            fits = self.executor.fit
            x, results = play_probe_rounds(wanted, round, self.population, algorithm, self.evaluation, fits)
            probes.extend(results)
            return x

        def fit(*work: Any) -> Fit:
            nonlocal fitted
            with forked_random(self.device, torch_seed(self.seeds[0], f"dropout {round - 1}")):  # on a resume the same
                try:
                    done = self.executor.fit(*work)
                except Exception as error:
                    error.add_note(f"in round {round}, {self.executor_name} executor, {type(self.algorithm).__name__}")
                    raise
            if not self._weighed:
                self._weigh(start)
            fitted = time.perf_counter()
            return done

        server, events = self.runner.before(self.server, round, play)
        cohort = cohort.repeated(algorithm.jobs_per_device)
        clients = self.bank.gather(self.algorithm, cohort.jobs.client, stacked(server.x)[:, 0])
        (server, clients), result = play_round(
            RoundState(server, clients), cohort, algorithm, self.evaluation, fit, partial(self.aggregator, round=round)
        )
        self.bank.scatter(cohort.jobs.client, clients)
        losses = self.aggregator.hidden(result.fit.loss)
        self.server, after = self.runner.after(server, losses, result.inbox.weights, round)
        stepped = time.perf_counter()
        self.last = result
        clock = self.optimizers()
        assert not isinstance(clock, list)
        clock.step()
        known = {} if self.record is None else self.record.metrics
        metrics = self.round_metrics(round, self.server.x, result, probes, known)
        metrics |= {"train/lr": [algorithm.lr] * len(self.seeds)} | self.aggregator.metrics | self.runner.metrics()
        times = {"fit": fitted - start, "server": stepped - fitted, "round": time.perf_counter() - start}
        metrics |= {f"time/{name}_s": [seconds] * len(self.seeds) for name, seconds in times.items()}
        self.record = Record(round, metrics, (*events, *after))
        self._show(metrics)
        if not self.aggregator.allows(round):
            self.trainer.should_stop = True

    def _weigh(self, start: float) -> None:
        """After fits, let the executor choose how to go on, until it has settled that."""
        synchronize(self.device)
        last = self.trainer.max_epochs
        left = math.inf if last is None or last < 0 else last - self.trainer.current_epoch - 1
        self._weighed = self.executor.weigh(time.perf_counter() - start, left)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the global models on everybody, and the participants' local models on themselves."""
        if self.trainer.sanity_checking:
            return
        if self.record is None:
            raise ValueError("there is nothing to evaluate before the first round: call trainer.fit, which evaluates")
        if self.last is None:  # the checkpoint was written at the end of this evaluation: Lightning asks for it again
            self._show(self.record.metrics)
            return
        start = time.perf_counter()
        metrics = self.evaluation(self.server, self.bank, self.last.cohort, self.last.fit, self.record.round)
        metrics["time/evaluation_s"] = [time.perf_counter() - start] * len(self.seeds)
        self.record = self.record._replace(metrics={**self.record.metrics, **metrics})
        self._show(metrics)

    def _show(self, metrics: dict[str, list[float]]) -> None:
        """Means over replicas for callbacks and the progress bar. ``self.log`` takes a third of a millisecond a metric,
        a third of a whole round; a round's values are final when they are measured and need none of its reductions."""
        means: dict[str, Any] = as_tensors(replica_means(metrics))
        self.trainer.callback_metrics.update(means)
        shown = {name: value for name, value in means.items() if name in ("train/loss", "valid/accuracy")}
        self.trainer.progress_bar_metrics.update(shown)

    def on_train_epoch_end(self) -> None:
        """The round, its evaluation included, as one row of every logger."""
        if not self.loggers or self.record is None:
            return
        means = replica_means(self.record.metrics)
        self.trainer.logged_metrics.update(as_tensors(means))
        for logger in self.loggers:
            logger.log_metrics({**means, "epoch": self.record.round - 1}, step=self.record.round)
            logger.save()

    # ---- state -----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Everything that a bit-exact resume needs, as plain tensors and containers."""
        number, metrics, events = self.record or Record(0, {})
        clockless = {name: values for name, values in metrics.items() if not name.startswith("time/")}
        checkpoint["flstudy"] = {
            "version": 1,
            **self._identity(),
            "horizon": self.runner.rounds if self.runner.takes_horizon else None,
            "choices": self.executor.choices(),
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

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checked now, applied when the fit starts."""
        saved = checkpoint.get("flstudy")
        if saved is None:
            raise ValueError("this checkpoint was not written by a flstudy Coordinator")
        for name, here in self._identity().items():
            if saved[name] != here:
                raise ValueError(f"the checkpoint was written with {name} {saved[name]!r}, but this run has {here!r}")
        self._saved = saved

    def _restore(self, saved: dict[str, Any]) -> None:
        number, metrics, events = saved["record"]
        self.record, self.last = Record(number, metrics, tuple(Event(*event) for event in events)), None
        self.server = refill(self.server, [leaf.to(self.device) for leaf in saved["server"]])
        self.bank.load_state_dict(saved["bank"])
        self.executor.choose(saved["choices"])
        self.runner.states = [
            refill(state, [leaf.to(self.device) for leaf in values])
            for state, values in zip(self.runner.states, saved["control"], strict=True)
        ]

    def on_fit_end(self) -> None:
        """Leave the first replica's model in the user's task."""
        self.load_into(self.task)

    def load_into(self, task: L.LightningModule, replica: int = 0) -> L.LightningModule:
        """Copy a replica's global model into a task and return it; of several, the first."""
        tensors = self.task_function.layout.split(stacked(self.server.x)[replica, 0])
        with torch.no_grad():
            for name, parameter in task.named_parameters():
                if name in tensors:
                    parameter.copy_(tensors[name])
        return task


def as_tensors(values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """As Lightning keeps metrics."""
    return dict(zip(values, torch.tensor(list(values.values()), dtype=torch.float64).unbind(), strict=True))
