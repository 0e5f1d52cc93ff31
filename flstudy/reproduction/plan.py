"""Plan of a reproduction, read from a folder of configs, and the configs of its studies.

tune_configs/PAPER/reproduction.yaml   the worlds, in the order in which they are run
                   published.csv       the paper's values: world, algorithm, measure, value, over_devices, over_seeds,
                                       table; a measure is a name of MEASURES, a start and session ("Previous 5"), or
                                       the key of a hyper-parameter, whose value the world's preset has
                   counterparts.csv    the counterpart of each of its tables and figures (``counterparts``)
                   differences.md      remarks of the authors of the reproduction, optional
                   claims.yaml         where it is there, what differences.md is made of (``claims``)
                   *.yaml              the studies
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config import Config, ConfigError, load, nearest
from flstudy.config.composition import with_edits
from flstudy.config.reading import arguments, content_of, parse_options

MEASURES = {  # name in published.csv -> metric
    "accuracy": "test/accuracy",
    "personal": "test/personal_accuracy",
    "dip": "test/dip",
    "dip_window": "test/dip_window",
    "recovery": "test/recovery",
    **{f"global_{name}": f"test/global_{name}" for name in ("accuracy", "dip", "dip_window", "recovery")},
    "initial": "test/initial_accuracy",
    "mean": "test/mean_accuracy",
    "regret": "regret/dynamic",
    "drift": "world/drift",
    "epochs": "fit/drift_epochs",
    "loss": "test/loss",
    "bits": "traffic/bits",
    "joules": "energy/joules",
    "epsilon": "privacy/epsilon",
    **{name: f"detector/{name}" for name in ("detections", "false_alarms", "delay")},
    **{name: f"detector/{name}" for name in ("restarts_block", "restarts_detection")},
}
OF_SESSIONS = re.compile(r"(first_\d+|last)_of_\d+")
"""Measures of sessions: accuracy in the ``first_10_of_5``, the first ten rounds of session 5, or ``last_of_5``."""
EFFORTS = ("rounds", "latency_s", "energy_j", "gain")
"""Costs of a session until its start is as good as another one, as in the measure ``Previous 7 rounds``."""
SPENT = ("cpu_s", "memory_gb")
"""CPU time and memory of an algorithm's runs, as published."""
KINDS = ("comparison", "ablation", "sessions", "sweep", "variants", "crossed")
VARIED = ("sessions", "variants", "crossed")  # kinds with a study for each variant
STAGES = ("preset", "tuned")
RESULTS = "results"
"""Folder of a paper's pages, beside its configs."""
REMARKS = "differences.md"
"""Name of a paper's remarks, beside its configs."""


def metric_of(measure: str) -> str:
    """Return the metric of a measure.

    Raises:
        ConfigError: for an unknown one.
    """
    if OF_SESSIONS.fullmatch(measure):
        return "test/initial_accuracy"
    if measure not in MEASURES:
        raise ConfigError(f"unknown measure {measure!r}{nearest(measure, list(MEASURES))}")
    return MEASURES[measure]


class PublishedValue(NamedTuple):
    """Published number of a paper; shares are fractions, not percent."""

    value: float
    over_devices: float | None  # standard deviations
    over_seeds: float | None


@dataclass(frozen=True, kw_only=True)
class World:
    """World of a reproduction: one setting of a paper, with one study or several.

    A comparison of algorithms has a study with the paper's values and a tuned one. An ablation has one study, whose
    every trial is a row. A sweep has one tuned study, whose arms get the same draws or the same grid and are compared
    over them. Sessions have a study for each variant, a way in which a session may start. Variants have a study for
    each row of their table: an algorithm, a controller over one, or any options. A crossed world compares several
    algorithms under each of its variants, of which the first adds nothing.
    """

    name: str
    title: str
    config: Path
    options: tuple[str, ...] = ()  # command-line options on top of the config
    kind: str = "comparison"
    preset: str = "the paper's hyper-parameters"  # of the first trial of each algorithm of a comparison
    measures: tuple[str, ...] = ("accuracy",)
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # name -> options on top of these
    tuned: tuple[str, ...] = ()  # options of a comparison's tuned study on top of these, such as fewer seeds
    compared: str = ""  # the variant that the others are compared with
    sessions: tuple[int, ...] = ()  # numbers, from 1, of the sessions that the tables show
    target: float = 0.95  # ρ of eq. (31): the share of the best accuracy that counts as recovered
    bandwidths: tuple[float, ...] = ()  # MHz, of the figure of the cost of sessions' first rounds
    shown: tuple[str, ...] = ()  # rows of a crossed world that its figure always shows in colour
    arms: tuple[str, ...] = ()  # keys whose values together define an arm of a sweep
    on_request: bool = False  # run only where --worlds names it: it needs files that are not shipped, or days

    def __post_init__(self) -> None:
        where = f"worlds.{self.name}"
        if not self.config.is_file():
            raise ConfigError(f"{where}.config must be a file beside it, got {self.config.name!r}")
        if self.kind not in KINDS:
            raise ConfigError(f"{where}.kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        for measure in self.measures:
            if measure not in MEASURES:
                raise ConfigError(f"{where}.measures: unknown {measure!r}{nearest(measure, list(MEASURES))}")
        if (self.kind == "sweep") != bool(self.arms):
            raise ConfigError(f"{where}.arms must be given where kind is sweep, and only there")
        if self.tuned and self.kind != "comparison":
            raise ConfigError(f"{where}.tuned is of a comparison only: put it into {where}.options")
        if (self.kind in VARIED) != bool(self.variants):
            raise ConfigError(f"{where}.variants must be given where kind is {' or '.join(VARIED)}, and only there")
        if self.variants and self.compared not in self.variants:
            raise ConfigError(f"{where}.compared must be a variant{nearest(self.compared, list(self.variants))}")


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Plan of a paper's reproduction: its worlds and published values."""

    name: str
    folder: Path
    title: str
    worlds: tuple[World, ...]
    note: str = ""  # remark on every page
    published: Mapping[tuple[str, str, str], PublishedValue]  # (world, algorithm, measure) -> figure

    @property
    def differences(self) -> str:
        """Remarks written by hand in differences.md; '' without the file."""
        path = self.folder / REMARKS
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


class PaperStage(NamedTuple):
    """Stage of a world: one of its studies."""

    world: World
    name: str  # preset: each algorithm once, with its published values; tuned: the whole search; or a variant

    def study(self, paper: Paper) -> str:
        """Return the name of the stage's study."""
        return f"{paper.name}-{self.world.name}" + ("" if self.world.kind == "ablation" else f"-{self.name.lower()}")


def read_paper(name: str, configs: Path) -> Paper:
    """Read the plan of the paper ``name`` below the folder ``configs``.

    Raises:
        ConfigError: for an unknown paper, or an invalid plan.
    """
    papers = sorted(path.parent.name for path in configs.glob("*/reproduction.yaml"))
    if name not in papers:
        where = "" if papers else f"; {configs}/ holds none: run this where tune_configs is"
        raise ConfigError(f"unknown paper {name!r}{nearest(name, papers) if papers else where}")
    path = configs / name / "reproduction.yaml"
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        worlds = tuple(_world(path.parent, key, value) for key, value in written["worlds"].items())
        title, note = str(written["paper"]), str(written.get("note", ""))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} must hold paper and worlds: {' '.join(str(error).split())}") from error
    published = _published_values(path.with_name("published.csv"))
    return Paper(name=name, folder=path.parent, title=title, worlds=worlds, note=note, published=published)


def _world(folder: Path, name: str, written: Mapping[str, Any]) -> World:
    fields: dict[str, Any] = {key: str(written[key]) for key in ("kind", "preset", "compared") if key in written}
    fields |= {
        key: tuple(written[key]) for key in ("measures", "sessions", "bandwidths", "arms", "shown") if key in written
    }
    fields["on_request"] = written.get("on_request", False) is True
    if "target" in written:
        fields["target"] = float(written["target"])
    variants = {str(key): tuple(arguments(value or {})) for key, value in (written.get("variants") or {}).items()}
    fields |= {key: tuple(arguments(written.get(key) or {})) for key in ("options", "tuned")}
    fields = {"compared": next(iter(variants), ""), **fields}
    config = folder / str(written["config"])
    return World(name=name, title=str(written["title"]), config=config, variants=variants, **fields)


def _published_values(path: Path) -> dict[tuple[str, str, str], PublishedValue]:
    if not path.is_file():
        return {}
    values = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                numbers = [float(row[key]) if row[key] else None for key in ("value", "over_devices", "over_seeds")]
                key = row["world"], row["algorithm"], row["measure"]
                values[key] = PublishedValue(*numbers)  # type: ignore[arg-type]
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(f"{path}, line {line}: {error}; columns are those of its first line") from error
    return values


def unknown_rows(paper: Paper) -> list[str]:
    """Return the sentences on published values of an unknown world, row or measure, which no page could show."""
    shown, sentences = {world.name: (_rows_of(world), _measures_of(world)) for world in paper.worlds}, []
    for name, row, measure in paper.published:
        if name not in shown:
            sentences.append(f"unknown world {name!r}{nearest(name, list(shown))}")
            continue
        rows, measures = shown[name]
        if row not in rows:
            sentences.append(f"{name}: unknown row {row!r}{nearest(row, rows)}")
        if measure not in measures and "." not in measure:  # with a dot it is the key of a hyper-parameter
            sentences.append(f"{name}, {row}: unknown measure {measure!r}{nearest(measure, measures)}")
    return sentences


def _rows_of(world: World) -> list[str]:
    """Return the names of the rows of a world that may have published values: its variants, or the algorithms that its
    study compares."""
    if world.kind == "variants":
        return list(world.variants)
    written = with_edits(content_of(world.config), parse_options(world.options))
    algorithm = written.get("algorithm")
    choice = ((written.get("study") or {}).get("search") or {}).get("algorithm") or {}
    algorithm = str(algorithm["class_path"] if isinstance(algorithm, Mapping) else algorithm)
    return [*(choice.get("choice") or []), algorithm]


def _measures_of(world: World) -> list[str]:
    """Return the measures that a page of the world can show; for sessions a start and a session's number, and its
    efforts."""
    starts = [f"{variant} {number}" for variant in world.variants for number in world.sessions]
    return [*MEASURES, *SPENT, *starts, *(f"{start} {effort}" for start in starts for effort in EFFORTS)]


def stages_of(paper: Paper, worlds: Sequence[str] = (), names: Sequence[str] = STAGES) -> list[PaperStage]:
    """Return the stages of these worlds (by default of all but those on request), tuned ones last. An ablation has one
    stage, sessions and variants have one for each variant, whatever ``names``; a sweep has one, tuned."""
    chosen = [world for world in paper.worlds if (world.name in worlds if worlds else not world.on_request)]
    first = [world for world in chosen if ("preset" in names or world.kind != "comparison") and world.kind != "sweep"]
    stages = [PaperStage(world, name) for world in first for name in world.variants or ["preset"]]
    searched = [world for world in chosen if ("tuned" in names and world.kind == "comparison") or world.kind == "sweep"]
    return stages + [PaperStage(world, "tuned") for world in searched]


def stage_config(paper: Paper, stage: PaperStage, options: Sequence[str] = ()) -> Config:
    """Return checked config of a stage's study."""
    path = stage.world.config
    of_stage = stage.world.tuned if stage.name == "tuned" else stage.world.variants.get(stage.name, ())
    overrides = [*stage.world.options, *of_stage, *options]
    if stage.name == "preset" and stage.world.kind == "comparison":
        search = load(path, options=overrides, command="tune").study.search
        algorithms = (search.get("algorithm") or {}).get("choice") or []
        if not algorithms:
            raise ConfigError(f"{path}: study.search.algorithm must be a choice of algorithms to compare")
        # The first trial of each algorithm has its own values; nobody stops it early, and there is nothing to confirm.
        overrides += [f"--study.trials={len(algorithms)}", "--study.scheduler=null", "--study.confirm.seeds=0"]
    return load(path, options=[*overrides, f"--study.name={stage.study(paper)}"], command="tune")
