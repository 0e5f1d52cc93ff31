"""What a reproduction consists of, read from a folder of configs.

tune_configs/PAPER/reproduction.yaml   the worlds, in the order in which they are run
                   published.csv       what the paper says: world, algorithm, measure, value, over_devices, over_seeds
                   differences.md      what the authors of the reproduction have to say, if anything
                   *.yaml              the studies
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config import ConfigError, nearest
from flstudy.config.values import arguments

MEASURES = {  # name in published.csv -> metric of a round, heading, whether it is a share
    "accuracy": ("test/accuracy", "Generalised accuracy %", True),
    "personal": ("test/personal_accuracy", "Personalised accuracy %", True),
    "dip": ("test/dip", "Lowest accuracy after the drift %", True),
    "recovery": ("test/recovery", "Rounds to recovery", False),
    "initial": ("test/initial_accuracy", "Sessions' first ten rounds %", True),
    "mean": ("test/mean_accuracy", "Mean accuracy over all rounds %", True),
    "regret": ("regret/dynamic", "Dynamic regret", False),
    "detections": ("detector/detections", "Detections", False),
    "false_alarms": ("detector/false_alarms", "False alarms", False),
    "delay": ("detector/delay", "Rounds to detection", False),
    "restarts_block": ("detector/restarts_block", "Restarts after whole blocks", False),
    "restarts_detection": ("detector/restarts_detection", "Restarts after detections", False),
}
KINDS = ("comparison", "ablation", "sessions", "variants")
VARIED = ("sessions", "variants")  # kinds with a study for each variant


class Published(NamedTuple):
    """A figure of the paper; a share as a fraction."""

    value: float
    over_devices: float | None  # standard deviations
    over_seeds: float | None


@dataclass(frozen=True, kw_only=True)
class World:
    """A study of a reproduction, or several.

    A comparison of algorithms has one with the values that the paper gives, and one tuned; an ablation has one, whose
    every trial is a row; sessions have one for each of the ways in which a session may start, their variants; and
    variants have one for each row of their table, be it an algorithm, a controller over one, or whatever options say.
    """

    name: str
    title: str
    config: Path
    options: tuple[str, ...] = ()  # command-line options on top of the config
    kind: str = "comparison"
    preset: str = "the paper's hyper-parameters"  # what the first trial of each algorithm of a comparison has
    measures: tuple[str, ...] = ("accuracy",)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # name -> options on top of these
    compared: str = ""  # the variant that the others are compared with
    sessions: tuple[int, ...] = ()  # that the tables show, from 1
    bandwidths: tuple[float, ...] = ()  # MHz, of a figure of what sessions' first rounds cost


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A paper's reproduction."""

    name: str
    folder: Path
    title: str
    worlds: tuple[World, ...]
    published: Mapping[tuple[str, str, str], Published]  # (world, algorithm, measure) -> figure

    @property
    def differences(self) -> str:
        """What was written about it by hand; '' where nothing was."""
        path = self.folder / "differences.md"
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def read_plan(name: str, configs: Path) -> Plan:
    """The plan of the paper ``name`` below the folder ``configs``.

    Raises:
        ConfigError: for an unknown paper, or a plan that says something wrong.
    """
    known = sorted(path.parent.name for path in configs.glob("*/reproduction.yaml"))
    if name not in known:
        where = "" if known else f"; {configs}/ holds none: run this where tune_configs is"
        raise ConfigError(f"unknown paper {name!r}{nearest(name, known) if known else where}")
    folder = configs / name
    path = folder / "reproduction.yaml"
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
        worlds = tuple(_world(folder, path, key, value) for key, value in said["worlds"].items())
        title = str(said["paper"])
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} must hold paper and worlds: {' '.join(str(error).split())}") from error
    return Plan(name=name, folder=folder, title=title, worlds=worlds, published=_published(folder / "published.csv"))


def _world(folder: Path, path: Path, name: str, said: Mapping[str, Any]) -> World:
    config = folder / str(said["config"])
    if not config.is_file():
        raise ConfigError(f"{path}: worlds.{name}.config must be a file beside it, got {said['config']!r}")
    kind = str(said.get("kind", "comparison"))
    if kind not in KINDS:
        raise ConfigError(f"{path}: worlds.{name}.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    measures = tuple(str(measure) for measure in said.get("measures", ["accuracy"]))
    for measure in measures:
        if measure not in MEASURES:
            raise ConfigError(f"{path}: worlds.{name}.measures: unknown {measure!r}{nearest(measure, list(MEASURES))}")
    variants = {str(key): as_options(value) for key, value in (said.get("variants") or {}).items()}
    if (kind in VARIED) != bool(variants):
        kinds = " or ".join(VARIED)
        raise ConfigError(f"{path}: worlds.{name}.variants must be given where kind is {kinds}, and only there")
    compared = str(said.get("compared", next(iter(variants), "")))
    if variants and compared not in variants:
        raise ConfigError(f"{path}: worlds.{name}.compared must be a variant{nearest(compared, list(variants))}")
    return World(
        name=name,
        title=str(said["title"]),
        config=config,
        options=as_options(said.get("options")),
        kind=kind,
        preset=str(said.get("preset", World.preset)),
        measures=measures,
        variants=variants,
        compared=compared,
        sessions=tuple(int(session) for session in said.get("sessions", ())),
        bandwidths=tuple(float(bandwidth) for bandwidth in said.get("bandwidths", ())),
    )


def as_options(said: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Config keys and values as options of a command line."""
    return tuple(arguments(said or {}))


def _published(path: Path) -> dict[tuple[str, str, str], Published]:
    if not path.is_file():
        return {}
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                numbers = [float(row[key]) if row[key] else None for key in ("value", "over_devices", "over_seeds")]
                found[row["world"], row["algorithm"], row["measure"]] = Published(*numbers)  # type: ignore[arg-type]
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(f"{path}, line {line}: {error}; columns are those of its first line") from error
    return found
