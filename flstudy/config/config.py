"""A validated config: what `run`, `tune` and a study's trials are built from."""

import contextlib
import copy
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import lightning as L
import torch

from flstudy.config.credentials import clean_arguments, clean_values, clean_yaml
from flstudy.config.errors import ConfigError, told
from flstudy.config.objects import chosen, section
from flstudy.config.registry import SECTIONS, check_files
from flstudy.config.rules import Parts, check_parts, check_work
from flstudy.config.sections import Run, Settings, StudySection
from flstudy.config.values import completed, content_of, flat, merged, pairs, put, text_of
from flstudy.federation import Coordinator, Record
from flstudy.metrics.drift import Recovery
from flstudy.population import Event, Population
from flstudy.population.dataset_cache import CachedDataset, DatasetCache, installed


class StopRun(Exception):
    """Raised by a run's ``on_round`` to end it early and cleanly."""


class ModuleExit(RuntimeError):
    """A module called ``sys.exit`` while a run was made or under way: its failure, not the end of the process."""

    def __init__(self, exit: SystemExit) -> None:
        super().__init__(f"sys.exit({'' if exit.code is None else repr(exit.code)}) was called")


class Config:
    """A parsed and checked config.

    Its values are completed once, its parts built once: the first run takes those that were checked, any further one
    fresh ones, since a population and a task change as they are used.

    Attributes:
        path: the YAML file.
        content: its text; a file edited while a study runs must not change its later trials.
        options: of the command line.
        overrides: keys with values that go before both.
        command: what it is for, ``run`` or ``tune``.
        settings: the keys at the top.
        study: the study section.
        run_section: the run section.
        recovery: the recovery section.
    """

    def __init__(
        self, path: str, content: str, options: Sequence[str], overrides: Mapping[str, Any], command: str = "run"
    ) -> None:
        self.path, self.options, self.command = path, clean_arguments(options), command
        self.overrides = clean_values(overrides)
        self.content = clean_yaml(content, content_of(path, content))
        _importable(path)
        self._values = self._completed({})
        self._parts: Parts | None = None
        self._used = False
        with self._refusing():
            self.settings: Settings = section("", {name: self._values[name] for name in Settings.__dataclass_fields__})
            self.study: StudySection = section("study", self._values["study"])
            self.run_section: Run = section("run", self._values["run"])
            self.recovery: Recovery = section("recovery", self._values["recovery"])

    def __getstate__(self) -> dict[str, Any]:
        """Without the parts, which every process builds for itself."""
        return {**self.__dict__, "_parts": None, "_used": False}

    @property
    def rounds(self) -> int:
        """Federated rounds."""
        return self.settings.rounds

    @property
    def seeds(self) -> list[int]:
        """One per replica."""
        return self.settings.seeds

    @property
    def store(self) -> str | None:
        """MLflow's tracking URI."""
        return self.settings.store

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _completed(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        given = [*pairs(self.options), *self.overrides.items(), *overrides.items()]
        return completed(merged(content_of(self.path, self.content), given), imports=True)

    def plain(self) -> dict[str, Any]:
        """Nested plain values, to be written as YAML and loaded again."""
        return copy.deepcopy(self._values)

    def flat(self) -> dict[str, Any]:
        """'algorithm': 'Flash', 'algorithm.tau': 0.001, …: every value but the study's and the run's own."""
        return {key: copy.deepcopy(one) if isinstance(one, list | dict) else one for key, one in _own(self._values)}

    def has_key(self, key: str) -> bool:
        """Whether this config, with its algorithm, has the key."""
        return any(known == key for known, _ in _own(self._values))

    def keys_of(self, overrides: Mapping[str, Any]) -> frozenset[str]:
        """The keys that this config has with some changed; nothing is built."""
        return frozenset(key for key, _ in _own(self._completed(overrides)))

    def tags(self) -> dict[str, str]:
        """What a run is filtered by."""
        flat = self.flat()
        names = {"algorithm": "algorithm", "dataset": "population.dataset", "drift": "population.drift", "task": "task"}
        return {tag: str(flat.get(key) or "none") for tag, key in names.items()}

    def events(self) -> list[Event]:
        """What happens to the world within the config's rounds."""
        return self.parts.population.events(self.rounds)

    def drift_rounds(self) -> list[int]:
        """Rounds (from 1) of the world's drifts."""
        return [event.round for event in self.parts.population.drifts(self.rounds)]

    def session_rounds(self) -> list[int]:
        """Rounds with which sessions begin, but for the first."""
        return [event.round for event in self.parts.population.sessions(self.rounds)]

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Config":
        """The same config with some keys changed.

        Raises:
            ConfigError: for a key or value that it does not allow.
        """
        return Config(self.path, self.content, self.options, {**self.overrides, **overrides}, self.command).checked()

    def variant(self, overrides: Mapping[str, Any]) -> "Config":
        """The same config with some keys changed, to be held against others: where its model is this one's it is not
        made again, which for a ResNet takes a fifth of a second. It keeps no parts, of which a search would have many.

        Raises:
            ConfigError: for a key or value that it does not allow.
        """
        made = Config(self.path, self.content, self.options, {**self.overrides, **overrides}, self.command)
        same = all(made._values[key] == self._values[key] for key in ("task", "population"))
        made._parts = made._build(self.parts.task if same else None)
        made.checked()._parts = None
        return made

    def check_value(self, key: str, value: Any) -> None:
        """Raise ConfigError for a value that the part to which a key belongs refuses; no other part is built."""
        section_of = key.partition(".")[0]
        if section_of not in Parts._fields:
            self.with_overrides({key: value})
            return
        values = self.plain()
        put(values, key, value)
        with self._refusing():
            _part(section_of, values, _part("population", self._values, None) if section_of == "task" else None)

    # ---- building ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """What constructors and rules refuse is the user's to mend."""
        try:
            yield
        except ConfigError:
            raise
        except SystemExit as error:
            raise ModuleExit(error) from error
        except (ValueError, TypeError, ImportError, OSError, ArithmeticError, MemoryError) as error:
            said = str(error) if isinstance(error, ValueError) else told(error)
            raise ConfigError(f"{Path(self.path).name}: {said}") from error
        except RuntimeError as error:  # torch has no other word for a tensor that memory does not hold
            if "memory" not in str(error) and "overflow" not in str(error):
                raise
            raise ConfigError(f"{Path(self.path).name}: {error}: make the model or the population smaller") from error

    def _build(self, task: Any = None) -> Parts:
        """All parts; a task that is given is taken as it is."""
        with self._refusing():
            population = _part("population", self._values, None)
            keys = [key for key in Parts._fields[1:-1] if key != "task" or task is None]
            built = {"task": task} | {key: _part(key, self._values, population) for key in keys}
            controller, settings = built["controller"], self.settings
            coordinator = Coordinator(
                built["task"],
                built["algorithm"],
                seeds=self.seeds,
                initial=settings.initial,
                executor=settings.executor,
                compile=settings.compile,
                local_optimizer=settings.local_optimizer,
                buffers=settings.buffers,
                max_lanes=settings.max_lanes,
                bank_memory=settings.bank_memory,
                cohort_memory=settings.cohort_memory,
                controllers=() if controller is None else (controller,),
                **{key: built[key] for key in ("wireless", "regret", "privacy", "schedule", "measure")},
                panel=built["evaluation"],
            )
            return Parts(population, **built, coordinator=coordinator)

    @property
    def parts(self) -> Parts:
        """The parts as they were built first: to be looked at."""
        if self._parts is None:
            self._parts = self._build()
        return self._parts

    @property
    def parameter_count(self) -> int:
        """Numbers in the task's model, frozen ones included."""
        return sum(part.numel() for part in self.parts.coordinator.task.parameters())

    def checked(self) -> Self:
        """This config, whose parts were built and held against each other.

        Raises:
            ConfigError: what a constructor refused, or a rule between parts.
        """
        with self._refusing():
            check_parts(self, self.parts)
        return self

    def rehearse(self) -> dict[str, CachedDataset]:
        """Load, partition and split the data of every seed, so that an impossible world fails before any work.

        Returns:
            The loaded examples by key, for whoever can share them.

        Raises:
            ConfigError: what the data set or the partition said, or of work that its devices are too small for.
        """
        cache = DatasetCache()
        with self._refusing(), installed(cache):
            population = _part("population", self._values, None)
            population.settle(self.seeds)
        check_work(self.parts.algorithm, population)
        return dict(cache.own)

    def settled(self) -> Population:
        """A population of the first seed whose data are divided, to be looked at.

        Raises:
            ConfigError: what the data set or the partition said.
        """
        with self._refusing():
            population: Population = _part("population", self._values, None)
            return population.settle(self.seeds[:1])

    def build(self) -> tuple[Coordinator, Population]:
        """A coordinator and its population, which no other run has."""
        parts = self._build() if self._used else self.parts
        self._used = True
        return parts.coordinator, parts.population

    # ---- running -----------------------------------------------------------------------------------------------------

    def trainer(
        self, callbacks: Sequence[L.Callback] = (), *, progress: bool = False, checkpoints: bool = False
    ) -> L.Trainer:
        """An ordinary Lightning Trainer for this config's rounds."""
        return L.Trainer(
            max_epochs=self.rounds,
            accelerator=self.settings.accelerator,
            devices=self.settings.devices,
            strategy="auto" if self.settings.devices == 1 else "lanes",
            precision=self.settings.precision,
            callbacks=list(callbacks),
            check_val_every_n_epoch=self.settings.evaluate_every,
            enable_checkpointing=checkpoints,
            enable_progress_bar=progress,
            enable_model_summary=False,
            logger=False,
            num_sanity_val_steps=0,
        )

    def run(
        self,
        on_round: Callable[[Record], None],
        *,
        callbacks: Sequence[L.Callback] = (),
        progress: bool = False,
        resume: str | None = None,
    ) -> Coordinator:
        """Train to the end, or until ``on_round`` raises StopRun.

        Args:
            on_round: called with each round's record, evaluation included.
            callbacks: more Lightning callbacks.
            progress: show Lightning's progress bar.
            resume: a checkpoint to go on from.
        """
        torch.set_float32_matmul_precision(self.settings.matmul_precision)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its banners are not about this run
        for noise in (".*LeafSpec.*", ".*exists and is not empty.*", ".*does not have many workers.*"):
            warnings.filterwarnings("ignore", noise)
        coordinator, population = self.build()
        checkpoints = any(isinstance(callback, L.pytorch.callbacks.Checkpoint) for callback in callbacks)
        trainer = self.trainer([OnRound(on_round), *callbacks], progress=progress, checkpoints=checkpoints)
        with _as_it_was_raised():
            trainer.fit(coordinator, datamodule=population, ckpt_path=resume, weights_only=True if resume else None)
        return coordinator


@contextlib.contextmanager
def _as_it_was_raised() -> Iterator[None]:
    """Lightning makes of Ctrl-C an exit with status 1, or outside the main thread a ValueError, and ignores later ones;
    and an exit that a module asks for must not end a study as if nothing had happened."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    except (SystemExit, ValueError) as error:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        if isinstance(error, SystemExit):
            raise ModuleExit(error) from error
        raise


class OnRound(L.Callback):
    """Calls a function with the coordinator's record after each round and its evaluation."""

    def __init__(self, on_round: Callable[[Record], None]) -> None:
        self.on_round = on_round

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Lightning has run the evaluation by now."""
        assert isinstance(pl_module, Coordinator)
        assert pl_module.record is not None
        try:
            self.on_round(pl_module.record)
        except StopRun:
            trainer.should_stop = True


def load(
    path: str | Path, overrides: Mapping[str, Any] | None = None, *, options: Sequence[str] = (), command: str = "run"
) -> Config:
    """Parse, build and check a config.

    Args:
        path: YAML file.
        overrides: config keys with values that replace the file's.
        options: command-line options that do the same.
        command: what it is for, ``run`` or ``tune``.

    Raises:
        ConfigError: one sentence naming key, value, domain and next step.
    """
    text, changes = text_of(path), overrides or {}
    check_files([content_of(path, text), *(value for _, value in pairs(options)), dict(changes)], Path(path).parent)
    return Config(str(path), text, options, changes, command).checked()


def _own(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of what is trained: none of the study, the run and the store."""
    return flat({key: one for key, one in values.items() if key not in ("study", "run", "store")})


def _part(key: str, values: Mapping[str, Any], population: Population | None) -> Any:
    """One part of a run; a task is built for the population's data set."""
    if key in SECTIONS:
        return section(key, values[key])
    return chosen(key, values[key], population.dataset if key == "task" and population is not None else None)


def _importable(path: str) -> None:
    """Classes in files beside the YAML can be named."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file of the user's hides no package
