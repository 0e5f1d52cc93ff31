"""A paper's studies, each run once or on where it stopped, and their pages written."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.config import Config, ConfigError, load, nearest
from flstudy.config.shipped import is_installed
from flstudy.reporting.report import terminal
from flstudy.reproduction.counterparts import write_overview
from flstudy.reproduction.pages import write_pages, write_readme
from flstudy.reproduction.plan import RESULTS, STAGES, Paper, PaperStage, read_paper, stage_config, stages_of
from flstudy.study import StudyFolder
from flstudy.tuning.driver import run_study

if TYPE_CHECKING:
    from flstudy.reproduction.command import ReproductionOptions


def reproduce(given: "ReproductionOptions", arguments: Sequence[str]) -> int:
    """Check everything, run what is not there yet, write the page.

    Args:
        given: the parsed options.
        arguments: as they were typed, for the page.

    Raises:
        ConfigError: no such paper, world or stage; a config is wrong; a study stopped without a finished trial.
    """
    console, options = terminal(), shlex.split(given.options)
    if given.counterparts:
        console.print(f"Counterparts: {write_overview(given.configs)}", highlight=False)
        return 0
    paper = read_paper(given.paper or "", given.configs)
    for names, known, what in (
        (given.worlds, [world.name for world in paper.worlds], "world"),
        (given.stages, list(STAGES), "stage"),
    ):
        for name in names:
            if name not in known:
                raise ConfigError(f"unknown {what} {name!r}{nearest(name, known)}")
    asked = stages_of(paper, given.worlds, given.stages or STAGES)
    configs = {stage: stage_config(paper, stage, options) for stage in asked}  # all of them, before the first one runs
    if not given.write:
        for checked in configs.values():
            checked.rehearse()  # a world that cannot be dealt out fails now, not after hours of others
        for stage in asked:
            run_stage(paper, stage, console, options)
    folders = {}
    for stage in dict.fromkeys([*stages_of(paper), *asked]):
        config = configs.get(stage) or stage_config(paper, stage, options)
        folder = StudyFolder(Path(config.study.folder) / stage.study(paper))
        if folder.trials.is_file():
            folders[stage.world.name, stage.name] = folder
    results = given.out or results_folder(paper)
    if not folders and (results / "README.md").is_file():  # of studies that are elsewhere
        console.print(f"Results: {write_readme(paper, results)}", highlight=False)
        return 0
    if not folders:
        raise ConfigError(f"no study of {paper.name} is there yet: leave out --write")
    command = f"flstudy reproduce {shlex.join(argument for argument in arguments if argument != '--write')}"
    page = write_pages(paper, folders, results, command)
    console.print(f"Results: {page}", highlight=False)
    return 0


def results_folder(paper: Paper) -> Path:
    """Where a paper's pages go: beside its configs, or here if those are an installed package's."""
    return (Path("reproduction") / paper.name if is_installed(paper.folder) else paper.folder) / RESULTS


def run_stage(paper: Paper, stage: PaperStage, console: Console, options: Sequence[str] = ()) -> Path:
    """The folder of a stage's study, which is run unless it is there already; one that stopped goes on, and a search
    that has fewer trials than are asked for now gets the others. A search begins with the preset stage's trials, if
    that is finished, instead of training them once more.

    Raises:
        ConfigError: if the study stopped without a single finished trial, or is running elsewhere.
    """
    config = stage_config(paper, stage, options)
    folder = StudyFolder(Path(config.study.folder) / stage.study(paper))
    state = folder.state().get("state")
    if state == "running":
        raise ConfigError(folder.busy() or f"study {folder.name} has just ended: do this again")
    more = _more_trials(folder, config) if state is not None and stage.name == "tuned" else []
    if state == "finished" and not more:
        console.print(f"{folder.name}: done", highlight=False)
        return folder.path
    console.rule(folder.name)
    if state is None:
        presets = StudyFolder(folder.path.with_name(stage._replace(name="preset").study(paper)))
        tried = stage.name == "tuned" and presets.state().get("state") == "finished"
        code = run_study(config, console, import_from=presets.path if tried else None)
    else:
        code = run_study(load(folder.config, options=more, command="tune"), console, folder.path)
    if code:
        raise ConfigError(f"study {folder.name} has no trial to show: see flstudy report {folder.name}")
    if folder.state().get("state") != "finished":
        raise KeyboardInterrupt
    return folder.path


def _more_trials(folder: StudyFolder, config: Config) -> list[str]:
    """The option that extends the study in this folder to as many trials as are asked for: never to fewer, and not
    where something else was searched."""
    theirs, asked = load(folder.config, command="tune").study, config.study.trials
    if theirs.trials is None or asked is None or asked <= theirs.trials or theirs.search != config.study.search:
        return []
    return [f"--study.trials={asked}"]
