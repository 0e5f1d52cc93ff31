"""Running the studies of a reproduction: each once, and on where it stopped."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from flstudy.config import ConfigError
from flstudy.config.config import Config, load
from flstudy.reporting.listing import standing
from flstudy.reproduction.plan import Plan, World
from flstudy.tuning.study import run_study

STAGES = ("preset", "tuned")


class Stage(NamedTuple):
    """A study of a world."""

    world: World
    name: str  # preset: each algorithm once, with its published values; tuned: the whole search; or a variant

    def study(self, plan: Plan) -> str:
        """The name of its study."""
        return f"{plan.name}-{self.world.name}" + ("" if self.world.kind == "ablation" else f"-{self.name.lower()}")


def stages(plan: Plan, worlds: Sequence[str] = (), names: Sequence[str] = STAGES) -> list[Stage]:
    """The stages of these worlds (of all, if none is named), tuned ones last. An ablation has one, sessions and
    variants have one for each variant, whatever the names."""
    chosen = [world for world in plan.worlds if not worlds or world.name in worlds]
    first = [world for world in chosen if "preset" in names or world.kind != "comparison"]
    found = [Stage(world, name) for world in first for name in world.variants or ["preset"]]
    return found + [Stage(world, "tuned") for world in chosen if "tuned" in names and world.kind == "comparison"]


def configure(plan: Plan, stage: Stage, options: Sequence[str] = ()) -> Config:
    """The checked config of a stage."""
    path = stage.world.config
    own = [*stage.world.options, *stage.world.variants.get(stage.name, ()), *options]
    base = load(path, options=own, command="tune")
    if stage.name == "preset" and stage.world.kind == "comparison":
        algorithms = (base.study.search.get("algorithm") or {}).get("choice") or []
        if not algorithms:
            raise ConfigError(f"{path}: study.search.algorithm must be a choice of algorithms to compare")
        # The first trial of each algorithm has its own values; nobody stops it early.
        own += [f"--study.trials={len(algorithms)}", "--study.scheduler=null"]
    return load(path, options=[*own, f"--study.name={stage.study(plan)}"], command="tune")


def run_stage(plan: Plan, stage: Stage, console: Console, options: Sequence[str] = ()) -> Path:
    """The folder of a stage's study, which is run unless it is there already; one that stopped goes on, and a search
    that has fewer trials than are asked for now gets the others. A search begins with the preset stage's trials, if
    that is finished, instead of training them once more.

    Raises:
        ConfigError: if the study stopped without a single finished trial, or is running elsewhere.
    """
    config = configure(plan, stage, options)
    name = stage.study(plan)
    folder = Path(config.study.folder) / name
    state = standing(folder).get("state")
    if state == "running":
        raise ConfigError(f"study {name} is running in process {standing(folder)['pid']}: wait for its end")
    more = _more_trials(folder, config) if state is not None and stage.name == "tuned" else []
    if state == "finished" and not more:
        console.print(f"{name}: done", highlight=False)
        return folder
    console.rule(name)
    if state is None:
        presets = folder.with_name(stage._replace(name="preset").study(plan))
        tried = stage.name == "tuned" and standing(presets).get("state") == "finished"
        code = run_study(config, console, known=presets if tried else None)
    else:
        code = run_study(load(folder / "study.yaml", options=more, command="tune"), console, folder)
    if code:
        raise ConfigError(f"study {name} has no trial to show: see flstudy report {name}")
    if standing(folder).get("state") != "finished":
        raise KeyboardInterrupt
    return folder


def _more_trials(folder: Path, config: Config) -> list[str]:
    """The option that extends the study in this folder to as many trials as are asked for: never to fewer, and not
    where something else was searched."""
    theirs, asked = load(folder / "study.yaml", command="tune").study, config.study.trials
    if theirs.trials is None or asked is None or asked <= theirs.trials or theirs.search != config.study.search:
        return []
    return [f"--study.trials={asked}"]
