"""Validated configs, from which `run`, `tune` and a study's trials are built."""

import contextlib
import copy
import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import lightning as L
import torch

from flstudy.config.changed_files import forget_changed, imported_files
from flstudy.config.composition import checked_values, left_out, modules_of, set_key, whole_study
from flstudy.config.credentials import clean_arguments, clean_values, clean_yaml
from flstudy.config.errors import ConfigError, describe_error
from flstudy.config.lines import errors_with_line
from flstudy.config.objects import build_object, build_section
from flstudy.config.reading import content_of, parse_options, text_of
from flstudy.config.registry import SECTIONS, add_to_path, check_files
from flstudy.config.rules import Parts, check_measures, check_parts, check_work
from flstudy.config.sections import Run, Settings, StudySection
from flstudy.config.values import class_label, class_tags, classes_in, trained_items
from flstudy.federation import Coordinator, Record
from flstudy.federation.divergence import divergence
from flstudy.federation.hyper_parameters import hyper_parameters
from flstudy.metrics.drift import Recovery
from flstudy.population import Event, Population
from flstudy.population.dataset_cache import CachedDataset, DatasetCache, installed


class StopRun(Exception):
    """Exception that a run's ``on_round`` raises to end it early and cleanly."""


class ModuleExit(RuntimeError):
    """Failure of a module that called ``sys.exit`` while a run was built or under way; it does not end the process."""

    def __init__(self, exit: SystemExit) -> None:
        super().__init__(f"sys.exit({'' if exit.code is None else repr(exit.code)}) was called")


class Config:
    """A parsed and checked config.

    Values are completed once and parts built once: the first run takes the parts that were checked, any further run
    builds fresh ones, since a population and a task change as they are used.

    Attributes:
        path: the YAML file.
        content: its text; a file edited while a study runs must not change its later trials.
        options: of the command line.
        overrides: keys with values that a script sets, with the effect of options.
        proposal: the values that a search chose; a class by the name of its arm.
        command: the config's purpose, ``run`` or ``tune``.
        settings: the keys at the top.
        study: the study section.
        run_section: the run section.
        recovery: the recovery section.
    """

    def __init__(
        self,
        path: str,
        content: str,
        options: Sequence[str],
        overrides: Mapping[str, Any],
        command: str = "run",
        proposal: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.options, self.command = path, clean_arguments(options), command
        self.overrides, self.proposal = clean_values(overrides), dict(proposal or {})
        self.content = clean_yaml(content, content_of(path, content))
        self.modules = modules_of(path, self.edits, content_of(path, content))
        add_to_path(self.modules, [content_of(path, content), dict(self.edits), self.proposal])
        self._values = self._completed({})
        self._own_modules = imported_files(self._values, self.modules)
        self._parts: Parts | None = None
        self._used = False
        with self._refusing():
            settings = {name: self._values[name] for name in Settings.__dataclass_fields__}
            self.settings: Settings = build_section("", settings)
            self.study: StudySection = build_section("study", self._values["study"])
            self.run_section: Run = build_section("run", self._values["run"])
            self.recovery: Recovery = build_section("recovery", self._values["recovery"])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the parts, which every process builds for itself."""
        return {**self.__dict__, "_parts": None, "_used": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up the state in a process that may have imported the user's modules for another config."""
        self.__dict__.update(state)
        forget_changed(imported_files(self._values, self.modules), self._own_modules)

    @property
    def rounds(self) -> int:
        """Federated rounds."""
        return self.settings.rounds

    @property
    def seeds(self) -> list[int]:
        """Seeds, one per replica."""
        return list(self.settings.seeds)

    @property
    def store(self) -> str | None:
        """MLflow's tracking URI."""
        return self.settings.store

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def edits(self) -> list[tuple[str, Any]]:
        """Options and overrides as keys and values; of two with one key the last counts."""
        return [*parse_options(self.options), *self.overrides.items()]

    def _completed(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        content, every = content_of(self.path, self.content), {**self.proposal, **proposal}
        with errors_with_line(self.path, self.content, [*self.edits, *every.items()]):
            return checked_values(content, self.edits, every, imports=True)

    def plain(self) -> dict[str, Any]:
        """Return nested plain values of this one configuration, to be written as YAML and loaded again: without the
        search, since its presets and arms are applied."""
        values = copy.deepcopy(self._values)
        values["study"] |= {"search": {}, "arms": {}, "presets": {}}
        return self._movable(values)

    def _movable(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values that can be read from another folder, with the place of the user's own modules."""
        return {**values, "modules": self.modules} if any("." in path for _, path in classes_in(values)) else values

    def whole_study(self) -> dict[str, Any]:
        """Return nested plain values of the study, in which every arm is complete."""
        return self._movable(whole_study(content_of(self.path, self.content), self.edits, imports=True))

    def flat(self) -> dict[str, Any]:
        """Return dotted keys and values ('algorithm.tau': 0.001), except for study, run, ``store`` and ``modules``."""
        return {key: copy.deepcopy(v) if isinstance(v, list | dict) else v for key, v in trained_items(self._values)}

    def hyper_parameters(self) -> dict[str, Any]:
        """Return `flat`, with what the parts know beyond the config, such as a user's task's own ``hparams``."""
        return hyper_parameters(self.parts.coordinator.run, self.parts.population) | self.flat()

    def has_key(self, key: str) -> bool:
        """Return whether this config, with its algorithm, has the key."""
        return any(config_key == key for config_key, _ in trained_items(self._values))

    def keys_of(self, proposal: Mapping[str, Any]) -> frozenset[str]:
        """Return the keys of this config with some values changed; nothing is built."""
        return frozenset(key for key, _ in trained_items(self._completed(proposal)))

    def left_out(self) -> list[str]:
        """Return a sentence for each key that the file or options give the algorithm, and that some methods do not
        have."""
        content, without = content_of(self.path, self.content), dict[str, list[str]]()
        compared = self.command == "tune" and self.study.arms
        for name in compared or [self.method]:
            proposal = {"algorithm": name} if compared else {}
            for key in left_out(content, self.edits, self._completed(proposal)):
                without.setdefault(key, []).append(name)
        return [f"{key}, which the config gives, is no key of {', '.join(names)}" for key, names in without.items()]

    @property
    def method(self) -> str:
        """The name of the arm, or of the algorithm's class."""
        named = {key: value for key, value in [*self.edits, *self.proposal.items()] if key == "algorithm"}
        name = named.get("algorithm")
        if isinstance(name, str) and name in self.study.arms:
            return name
        return class_label("algorithm", self.flat()["algorithm"])

    def tags(self) -> dict[str, str]:
        """Return the tags by which runs are filtered, the algorithm by its `method`."""
        return {**class_tags(self._values), "algorithm": self.method}

    def events(self) -> list[Event]:
        """Return the events of the world within the config's rounds."""
        return self.parts.population.events(self.rounds)

    def drift_rounds(self) -> list[int]:
        """Return the rounds (from 1) of the world's drifts."""
        return [event.round for event in self.parts.population.drifts(self.rounds)]

    def session_rounds(self) -> list[int]:
        """Return the rounds with which sessions begin, but for the first."""
        return [event.round for event in self.parts.population.sessions(self.rounds)]

    def _proposed(self, proposal: Mapping[str, Any]) -> "Config":
        every = {**self.proposal, **proposal}
        return Config(self.path, self.content, self.options, self.overrides, self.command, every)

    def with_overrides(self, proposal: Mapping[str, Any]) -> "Config":
        """Return this config with some keys as a search proposed them.

        Raises:
            ConfigError: for a key or value that it does not allow.
        """
        return self._proposed(proposal).checked()

    def variant(self, proposal: Mapping[str, Any]) -> "Config":
        """Return this config with some keys changed, for comparison with others. An unchanged model is not built again,
        which for a ResNet takes a fifth of a second. The variant keeps no parts, of which a search would have many.

        Raises:
            ConfigError: for a key or value that it does not allow.
        """
        variant = self._proposed(proposal)
        same = all(variant._values[key] == self._values[key] for key in ("task", "population"))
        variant._parts = variant._build(self.parts.task if same else None)
        variant.checked()._parts = None
        return variant

    def check_value(self, key: str, value: Any) -> None:
        """Raise ConfigError for a value that the part to which a key belongs refuses; no other part is built, unless
        the value is a part itself."""
        section_of = key.partition(".")[0]
        if section_of not in Parts._fields or section_of == key:
            self.with_overrides({key: value})
            return
        values = self.plain()
        set_key(values, key, value)
        with self._refusing():
            _part(section_of, values, _part("population", self._values, None) if section_of == "task" else None)

    # ---- building ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn the errors of constructors and rules into ConfigErrors that name the config's file, and a key's line."""
        with errors_with_line(self.path, self.content, [*self.edits, *self.proposal.items()]):
            try:
                yield
            except ConfigError:
                raise
            except SystemExit as error:
                raise ModuleExit(error) from error
            except (ValueError, TypeError, ImportError, OSError, ArithmeticError) as error:
                message = str(error) if isinstance(error, ValueError) else describe_error(error)
                raise ConfigError(f"{Path(self.path).name}: {message}") from error
            except (RuntimeError, MemoryError) as error:  # torch has no word of its own for what memory does not hold
                if isinstance(error, RuntimeError) and "memory" not in str(error) and "overflow" not in str(error):
                    raise
                message = f"{error}: make the model or the population smaller"
                raise ConfigError(f"{Path(self.path).name}: {message}") from error

    def _build(self, task: L.LightningModule | None = None) -> Parts:
        """Build all parts; a task that is given is used as it is."""
        with self._refusing():
            population = _part("population", self._values, None)
            keys = [key for key in Parts._fields[1:-1] if key != "task"]
            built = {key: _part(key, self._values, population) for key in keys}
            controller = built["controller"]
            coordinator = Coordinator(
                task or partial(_part, "task", self._values, population),
                built["algorithm"],
                self.settings,
                controllers=() if controller is None else (controller,),
                **{key: built[key] for key in ("wireless", "regret", "privacy", "schedule", "measure")},
                panel=built["evaluation"],
            )
            return Parts(population, coordinator.task, **built, coordinator=coordinator)

    @property
    def parts(self) -> Parts:
        """The parts as they were built first, for inspection."""
        if self._parts is None:
            self._parts = self._build()
        return self._parts

    @property
    def parameter_count(self) -> int:
        """Number of parameters of the task's model, frozen ones included."""
        return sum(part.numel() for part in self.parts.coordinator.task.parameters())

    def checked(self) -> Self:
        """Return this config, after its parts were built and checked against each other.

        Raises:
            ConfigError: a constructor, or a rule between parts, refuses them.
        """
        with self._refusing():
            check_parts(self.parts, self.settings, self.recovery, self.study if self.command == "tune" else None)
        return self

    def rehearse(self) -> dict[str, CachedDataset]:
        """Load, partition and split the data of every seed, so that an impossible world fails before any work.

        Returns:
            The loaded examples by key, for whoever can share them.

        Raises:
            ConfigError: of the data set or the partition, or for work that the devices are too small for.
        """
        cache = DatasetCache()
        with self._refusing(), installed(cache):
            population = _part("population", self._values, None)
            population.settle(self.seeds)
            check_measures(self.parts, population)
        check_work(self.parts.algorithm, population)
        return dict(cache.own)

    def settled(self) -> Population:
        """Return a population of the first seed whose data are divided, for inspection.

        Raises:
            ConfigError: of the data set or the partition.
        """
        with self._refusing():
            population: Population = _part("population", self._values, None)
            return population.settle(self.seeds[:1])

    def build(self) -> tuple[Coordinator, Population]:
        """Return a coordinator and its population, which no other run shares."""
        parts = self._build() if self._used else self.parts
        self._used = True
        return parts.coordinator, parts.population

    # ---- running -----------------------------------------------------------------------------------------------------

    def trainer(
        self, callbacks: Sequence[L.Callback] = (), *, progress: bool = False, checkpoints: bool = False
    ) -> L.Trainer:
        """Return an ordinary Lightning Trainer for this config's rounds."""
        return L.Trainer(
            max_epochs=self.rounds,
            accelerator=self.settings.accelerator,
            devices=self.settings.devices,
            num_nodes=self.settings.num_nodes,
            strategy="auto" if self.settings.devices * self.settings.num_nodes == 1 else "lanes",
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
    """Raise KeyboardInterrupt where Lightning made another exception of it, and ModuleExit for a module's own exit.

    Lightning turns Ctrl-C into SystemExit, or outside the main thread into a ValueError, and ignores later ones. A
    ``sys.exit`` in a user's module would otherwise end a study silently.
    """
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
    """Lightning callback that calls a function with the coordinator's record after each round and its evaluation."""

    def __init__(self, on_round: Callable[[Record], None]) -> None:
        self.on_round = on_round

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report the round; Lightning has run the evaluation by now."""
        assert isinstance(pl_module, Coordinator)
        assert pl_module.record is not None
        try:
            self.on_round(pl_module.record._replace(divergence=divergence(pl_module.run)))
        except StopRun:
            trainer.should_stop = True


def load(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    options: Sequence[str] = (),
    command: str = "run",
    text: str | None = None,
) -> Config:
    """Parse, build and check a config.

    Args:
        path: YAML file.
        overrides: config keys with values that replace the file's.
        options: command-line options, which replace the file's values, too.
        command: the config's purpose, ``run`` or ``tune``.
        text: the file's content, if it was read before; None reads it.

    Raises:
        ConfigError: one sentence naming key, value, domain and next step.
    """
    text, changes = text_of(path) if text is None else text, overrides or {}
    content, edits = content_of(path, text), parse_options(options)
    folder = Path(modules_of(path, [*edits, *changes.items()], content))
    named = [content, *(value for _, value in edits), dict(changes)]
    check_files(named, folder)
    forget_changed(imported_files(named, str(folder)))
    return Config(str(path), text, options, changes, command).checked()


def _part(key: str, values: Mapping[str, Any], population: Population | None) -> Any:
    """Return one part of a run; a task is built for the population's data set."""
    if key in SECTIONS:
        return build_section(key, values[key])
    return build_object(key, values[key], population.dataset if key == "task" and population is not None else None)
