"""A validated config: what `run`, `tune` and a study's trials are built from."""

import copy
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from jsonargparse import ArgumentParser, Namespace

from flstudy.config.checks import check, check_work
from flstudy.config.parser import arguments, build_parser, command_line, parse, short
from flstudy.config.precheck import pairs, precheck
from flstudy.config.sections import ConfigError, Run, Study
from flstudy.federation import Coordinator, Record
from flstudy.metrics.drift import Recovery
from flstudy.population import Event, Population
from flstudy.population.dataset_cache import CachedDataset, DatasetCache, installed


class StopRun(Exception):
    """Raised by a run's ``on_round`` to end it early and cleanly."""


class Config:
    """A parsed and checked config.

    Attributes:
        path: the YAML file.
        values: jsonargparse's namespace.
        study: the study section.
        rounds: federated rounds.
        seeds: one per replica.
        command: what it is for, ``run`` or ``tune``.
    """

    def __init__(
        self, path: str, content: str, options: Sequence[str], overrides: Mapping[str, Any], command: str = "run"
    ) -> None:
        # The content is kept: a file edited while a study runs must not change its later trials.
        self.path, self.content, self.options, self.overrides = path, content, list(options), dict(overrides)
        self.command = command
        self._plain: dict[str, Any] = {}  # filled when it is asked for
        asked = [*self.options, *arguments(self.overrides)]
        self.values = parse(self._parser, command_line(content, [*preset(content, asked), *asked]))
        objects = self._objects()
        self.study: Study = objects.study
        self.run_section: Run = objects.run
        self.recovery: Recovery = objects.recovery
        self.rounds: int = self.values.rounds
        self.seeds: list[int] = self.values.seeds
        self.store: str | None = self.values.store
        check(self, objects)

    @property
    def _parser(self) -> ArgumentParser:
        return build_parser(self.command)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Nested plain values, to be written as YAML and loaded again."""
        if not self._plain:
            values = self.values.clone()
            values.pop("config", None)
            self._plain = yaml.safe_load(
                self._parser.dump(values, skip_link_targets=True, skip_validation=True, skip_none=False)
            )
        return copy.deepcopy(self._plain)

    def flat(self) -> dict[str, Any]:
        """'algorithm': 'Flash', 'algorithm.tau': 0.001, …: every value but the study's and the run's own."""
        plain = self.plain()
        return dict(_flatten({key: value for key, value in plain.items() if key not in ("study", "run", "store")}))

    def has_key(self, key: str) -> bool:
        """Whether this config, with its algorithm, has the key."""
        return key in self.flat()

    def tags(self) -> dict[str, str]:
        """What a run is filtered by."""
        flat = self.flat()
        names = {"algorithm": "algorithm", "dataset": "population.dataset", "drift": "population.drift", "task": "task"}
        return {tag: str(flat.get(key) or "none") for tag, key in names.items()}

    def events(self) -> list[Event]:
        """What happens to the world within the config's rounds."""
        return self._objects().population.events(self.rounds)  # type: ignore[no-any-return]

    def drift_rounds(self) -> list[int]:
        """Rounds (from 1) of the world's drifts."""
        return [event.round for event in self._objects().population.drifts(self.rounds)]

    def session_rounds(self) -> list[int]:
        """Rounds with which sessions begin, but for the first."""
        return [event.round for event in self._objects().population.sessions(self.rounds)]

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Config":
        """The same config with some keys changed.

        Raises:
            ConfigError: for a key or value that it does not allow.
        """
        return Config(self.path, self.content, self.options, {**self.overrides, **overrides}, self.command)

    # ---- checking ----------------------------------------------------------------------------------------------------

    def _objects(self) -> Namespace:
        try:
            return self._parser.instantiate(self.values)
        except (ValueError, TypeError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, ValueError) else error
            raise ConfigError(f"{self.path}: {cause}") from error

    def rehearse(self) -> dict[str, CachedDataset]:
        """Load, partition and split the data of every seed, so that an impossible world fails before any work.

        Returns:
            The loaded examples by key, for whoever can share them.

        Raises:
            ConfigError: what the data set or the partition said, or of work that its devices are too small for.
        """
        cache, objects = DatasetCache(), self._objects()
        try:
            with installed(cache):
                objects.population.settle(self.seeds)
        except (ValueError, OSError, ImportError) as error:
            raise ConfigError(f"{self.path}: {error}") from error
        check_work(objects)
        return dict(cache.own)

    # ---- running -----------------------------------------------------------------------------------------------------

    def build(self) -> tuple[Coordinator, Population]:
        """A coordinator and its population."""
        objects, values = self._objects(), self.values
        coordinator = Coordinator(
            objects.task,
            objects.algorithm,
            seeds=self.seeds,
            initial=values.initial,
            executor=values.executor,
            compile=values.compile,
            max_lanes=values.max_lanes,
            wireless=objects.get("wireless"),
            regret=objects.get("regret"),
            privacy=objects.get("privacy"),
            schedule=objects.get("schedule"),
            controllers=() if objects.get("controller") is None else (objects.controller,),
        )
        return coordinator, objects.population

    def trainer(
        self, callbacks: Sequence[L.Callback] = (), *, progress: bool = False, checkpoints: bool = False
    ) -> L.Trainer:
        """An ordinary Lightning Trainer for this config's rounds."""
        return L.Trainer(
            max_epochs=self.rounds,
            accelerator=self.values.accelerator,
            devices=1,
            precision=self.values.precision,
            callbacks=list(callbacks),
            check_val_every_n_epoch=self.values.evaluate_every,
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
        torch.set_float32_matmul_precision(self.values.matmul)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its banners are not about this run
        for noise in (".*LeafSpec.*", ".*exists and is not empty.*", ".*does not have many workers.*"):
            warnings.filterwarnings("ignore", noise)
        coordinator, population = self.build()
        checkpoints = any(isinstance(callback, L.pytorch.callbacks.Checkpoint) for callback in callbacks)
        trainer = self.trainer([OnRound(on_round), *callbacks], progress=progress, checkpoints=checkpoints)
        trainer.fit(coordinator, datamodule=population, ckpt_path=resume, weights_only=True if resume else None)
        return coordinator


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
    """Parse and check a config.

    Args:
        path: YAML file.
        overrides: config keys with values that replace the file's.
        options: command-line options that do the same.
        command: whose help and messages to use, ``run`` or ``tune``.

    Raises:
        ConfigError: one sentence naming key, value, domain and next step.
    """
    if not Path(path).is_file():
        raise ConfigError(f"there is no config file {str(path)!r}: see flstudy list configs")
    precheck(path, [*options, *arguments(overrides or {})])
    return Config(str(path), Path(path).read_text(), options, overrides or {}, command)


def preset(content: str, asked: Sequence[str]) -> list[str]:
    """Options that give the algorithm that a file and these options choose its values of ``study.presets``."""
    written = yaml.safe_load(content)
    presets = (written.get("study") or {}).get("presets") or {}
    if not presets:
        return []
    given = written.get("algorithm")
    path = given.get("class_path") if isinstance(given, Mapping) else given
    chosen = next((value for key, value in reversed(list(pairs(asked))) if key == "algorithm"), path)
    said = dict(_flatten(written)) if short(chosen) == short(path) else {}  # of the file's own algorithm it knows best
    every = {key if "." in key else f"algorithm.{key}": v for key, v in presets.get(short(chosen), {}).items()}
    values = {key: value for key, value in every.items() if key not in said}
    return arguments({"algorithm": chosen, **values}) if values else []


def _flatten(values: Any, prefix: str = "") -> Any:
    """Dotted keys; class_path/init_args become the class's short name and its parameters."""
    if isinstance(values, dict) and "class_path" in values:
        yield prefix, values["class_path"].rpartition(".")[2]
        values = values.get("init_args") or {}
    if isinstance(values, dict) and (values or not prefix):
        for key, value in values.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else key)
    elif not (isinstance(values, dict) and prefix):
        yield prefix, values
