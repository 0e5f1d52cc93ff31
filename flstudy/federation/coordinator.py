"""The coordinator: a federated run under an ordinary Lightning Trainer, its rounds as epochs."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from flstudy.algorithms import Algorithm
from flstudy.controllers import Controller, Schedule
from flstudy.federation import checkpoint as files
from flstudy.federation import trainer_flags
from flstudy.federation.checkpoint_rows import RowsBeside, local_folder
from flstudy.federation.federated_run import FederatedRun
from flstudy.federation.hyper_parameters import hyper_parameters
from flstudy.federation.initial import BuildTask
from flstudy.federation.round_clock import RoundClock
from flstudy.federation.run_properties import of_run, of_state
from flstudy.federation.shown_metrics import as_tensors, log_round, show_metrics
from flstudy.federation.trained_models import Predictions
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import Measure
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import replica_means
from flstudy.metrics.wireless import Wireless
from flstudy.population import Cohort, Population, Split
from flstudy.privacy import Privacy
from flstudy.run_settings import RunSettings, settings_with


class Coordinator(L.LightningModule):
    """LightningModule that trains a task on a population with a federated algorithm: one round is one epoch.

    Use it under any ``lightning.Trainer`` with a :class:`~flstudy.population.Population` as datamodule. Checkpoints,
    loggers and callbacks work as usual, ``check_val_every_n_epoch`` says how often it evaluates, and the last round is
    evaluated always. After ``fit``, ``task`` holds the first replica's global model.

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
        earlier: fields of the settings as arguments of their own, as earlier versions took them: deprecated.

    Attributes:
        run: the federated run, which needs no Trainer.
        task, task_function, algorithm, seeds, controllers, schedule: its parts.
        population, executor, evaluation, last: its devices, what trains and asks them, and its latest round.
        server, bank, record: its state.
    """

    task, task_function, algorithm = of_run("task"), of_run("task_function"), of_run("algorithm")
    seeds, controllers, schedule = of_run("seeds"), of_run("controllers"), of_run("schedule")
    population, executor, evaluation, last = map(of_run, ("population", "executor", "evaluation", "last"))
    server, bank, record = map(of_state, ("server", "bank", "record"))
    _repr_html_ = of_run("_repr_html_")

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
        **earlier: Any,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.clock = torch.nn.Parameter(torch.zeros(()))
        self.run = FederatedRun(
            task,
            algorithm,
            settings_with(settings or RunSettings(), earlier),
            controllers=controllers,
            schedule=schedule,
            wireless=wireless,
            regret=regret,
            privacy=privacy,
            measure=measure,
            panel=panel,
        )
        self._saved: dict[str, Any] | None = None  # of a checkpoint, until the fit starts
        self._folder: Path | None = None  # of the checkpoint
        self._validates_now = contextlib.ExitStack()  # from the end of the last round to its evaluation

    def measures(self, population: Population, rounds: int) -> list[str]:
        """Return the names of all metrics of a run of ``rounds`` rounds in this world, which need not be settled."""
        return self.run.measures(population, rounds)

    # ---- setting up ------------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[L.Callback]:
        """Return the task's own callbacks; this is the first hook of every run, which refuses a Trainer's flags."""
        trainer_flags.refuse_flags(self.trainer)
        trainer_flags.follow_task(self.trainer)
        callbacks = self.task.configure_callbacks()
        return list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]

    def teardown(self, stage: str) -> None:
        """Let the task clean up what its ``setup`` made, which is called for a fit."""
        if stage == "fit":
            self.task.teardown(stage)

    def configure_optimizers(self) -> RoundClock:
        """Return the clock that counts rounds, in the place of an optimizer."""
        return RoundClock(self.clock, self.algorithm.lr)

    def on_fit_start(self) -> None:
        """Start the run on the Trainer's devices, from the state of a checkpoint where one is loaded."""
        strategy, run = self.trainer.strategy, self.run
        run.trainer = self.trainer
        if isinstance(strategy, trainer_flags.LanesStrategy):
            strategy.at_end(lambda: run.close(self.trainer.state.status != TrainerStatus.INTERRUPTED))
        run.start(
            trainer_flags.world_of(self.trainer, self.run.panel),
            trainer_flags.last_round(self.trainer),
            device=self.device,
            precision=self.trainer.precision,
            devices=trainer_flags.lanes_devices(self.trainer),
            nodes=self.trainer.num_nodes,
            seconds_left=partial(trainer_flags.seconds_left, self.trainer),
            saved=self._saved,
            folder=self._folder,
        )
        self._saved = None
        for logger in self.loggers:
            logger.log_hyperparams(hyper_parameters(run, run.population))
        if not isinstance(io := strategy.checkpoint_io, RowsBeside):
            strategy.checkpoint_io = RowsBeside(io, lambda: self.bank)

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Let the clock show the learning rate of the first round."""
        self._tell_rate(self.trainer.current_epoch + 1)

    def training_step(self, cohort: Cohort, batch_idx: int) -> None:
        """Play one round, unless a checkpoint holds it: Lightning repeats one whose evaluation was not planned."""
        round = self.trainer.current_epoch + 1
        if round == self.run.state.round:
            return
        may_end = self.run.is_last(round) or trainer_flags.seconds_left(self.trainer) is not None
        due = self.trainer.enable_validation and (may_end or round % trainer_flags.evaluate_every(self.trainer) == 0)
        record = self.run.play_round(cohort, round=round, evaluated=due)
        clock = self.optimizers()
        assert not isinstance(clock, list)
        clock.step()
        show_metrics(self.trainer, record.metrics, self.task_function.display)
        if not self.run.aggregator.allows(round):
            self.trainer.should_stop = True

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let Lightning evaluate the last round, too, by plan or by a callback that ends the fit, as a Timer does."""
        round = self.trainer.current_epoch + 1
        if self.trainer.enable_validation and (self.run.is_last(round) or trainer_flags.stops(self.trainer, round)):
            self._validates_now.enter_context(trainer_flags.validating_now(self.trainer))

    def on_train_epoch_end(self) -> None:
        """Log the round, its evaluation included."""
        self._tell_rate(self.trainer.current_epoch + 2)
        if self.loggers and self.record is not None:
            log_round(self.trainer, self.record)

    def on_fit_end(self) -> None:
        """Leave the first replica's model in the user's task."""
        self.run.finish()

    def _tell_rate(self, round: int) -> None:
        """Let the clock show the learning rate of a round, if it comes."""
        if (last := trainer_flags.last_round(self.trainer)) is None or round <= last:
            clock = self.trainer.optimizers[0]
            assert isinstance(clock, RoundClock)
            clock.tell(math.nan if self.run.steps_by_module else self.run.runner.scheduled(round).lr)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the models that devices use and the global ones; in a fit also the participants' local models.

        Raises:
            UserError: nothing was trained or loaded.
        """
        if self.trainer.state.fn != TrainerFn.FITTING:
            self._log_split("valid")
        elif not self.trainer.sanity_checking:
            self._validates_now.close()
            metrics = self.run.evaluate(trainer_flags.evaluate_every(self.trainer))
            show_metrics(self.trainer, metrics, self.task_function.display)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the models that devices use on everybody's test examples."""
        self._log_split("test")

    def predict_step(self, batch: Any, batch_idx: int) -> Predictions:
        """Return the outputs of a device's model for its test examples; devices are numbered by the loader.

        Raises:
            UserError: the task has no ``forward``, or predicts by itself.
        """
        return self.run.models.predictions(int(batch))

    def on_validation_start(self) -> None:
        """Put models and examples where the Trainer computes, for ``trainer.validate`` without a fit."""
        if self.trainer.state.fn != TrainerFn.FITTING:
            self.run.trainer = self.trainer
            self.run.look(trainer_flags.world_of(self.trainer, self.run.panel), self.device)

    on_test_start = on_predict_start = on_validation_start

    def _log_split(self, split: Split) -> None:
        for name, value in as_tensors(replica_means(self.run.metrics_of(split))).items():
            self.log(name, value, batch_size=1)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save all that a bit-exact resume and loading the model need, as plain tensors and containers."""
        checkpoint.pop("state_dict", None)
        checkpoint |= self.run.saved_state.checkpoint()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check a checkpoint, which a fit takes up when it starts; an evaluation uses its models.

        Raises:
            UserError: it was written with another algorithm, population or the like.
        """
        saved = files.state_of_run(checkpoint)
        trainer = trainer_flags.trainer_of(self)
        fits = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        if trainer is not None and trainer.ckpt_path is not None:
            self._folder = local_folder(trainer.ckpt_path)
        self.run.saved_state.refuse_other(saved, checkpoint["state_dict"], goes_on=fits)
        if fits:
            self._saved = saved
        else:
            self.run.saved_state.show_models(saved, self._folder)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a checkpoint's ``state_dict`` but for trained tensors, which come with the server's state."""
        self.run.saved_state.load_untrained(state_dict)
        return torch.nn.Module().load_state_dict({})  # no key is missing, none unexpected

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **parts: Any,
    ) -> "Coordinator":
        """Return a coordinator with a checkpoint's trained models, of which ``task`` holds the first replica's global
        one.

        Args:
            checkpoint_path: a coordinator's checkpoint, or a model that a study kept.
            map_location: as in ``torch.load``; the CPU by default.
            hparams_file: of the task, as in its own ``load_from_checkpoint``.
            strict: likewise.
            weights_only: nothing else is ever loaded.
            parts: arguments of the coordinator, or fields of its settings, that the checkpoint lacks, or that are to
                be others: ``task``, where its class is not imported or its arguments were not saved, is one.

        Raises:
            UserError: for a damaged file, one that no coordinator wrote, or a part that has to be given.
        """
        content = files.read_file(checkpoint_path, map_location or "cpu")
        how = {"hparams_file": hparams_file, "strict": strict}
        coordinator = cls(**files.run_arguments(checkpoint_path, content, parts, **how))
        coordinator._folder = local_folder(checkpoint_path)
        coordinator.on_load_checkpoint(content)
        coordinator.load_state_dict(content["state_dict"])
        return coordinator

    def personal(self, client: int, replica: int = 0) -> L.LightningModule:
        """Return a copy of the task with the model that a device has: its own where the method keeps one, of several
        global models the one that it chooses, or else the global one."""
        return self.run.models.personal(client, replica)

    def load_into(self, task: L.LightningModule, replica: int = 0) -> L.LightningModule:
        """Copy a replica's global model into a task and return it; of several, the first."""
        return self.run.models.load_into(task, replica)
