"""Running of a paper's studies, each once or from where it stopped, and writing of their pages."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.config import Config, ConfigError, nearest
from flstudy.config.shipped import config_folder, is_installed
from flstudy.reporting.report import terminal
from flstudy.reproduction.claims import read_claims, refuted, remarks_page
from flstudy.reproduction.counterparts import in_short, read_all, write_overview
from flstudy.reproduction.pages import write_digests, write_pages, write_readme
from flstudy.reproduction.plan import REMARKS, RESULTS, STAGES, Paper, PaperStage, read_paper, stage_config, stages_of
from flstudy.study import StudyFolder, load_study
from flstudy.study.resuming import load_study_config
from flstudy.study.working_copy import home_of
from flstudy.tuning.driver import run_study
from flstudy.whole_file import write_whole

if TYPE_CHECKING:
    from flstudy.reproduction.options import ReproductionOptions


def reproduce(chosen: "ReproductionOptions") -> int:
    """Check all configs, run the studies that are missing or unfinished, and write the pages.

    Raises:
        ConfigError: for an unknown paper, world or stage, a wrong config, or a study without a finished trial.
    """
    console, options = terminal(), shlex.split(chosen.options)
    if chosen.counterparts:
        console.print(in_short(read_all(chosen.configs)))
        console.print(f"Counterparts: {write_overview(chosen.configs)}", highlight=False)
        return 0
    paper = read_paper(chosen.paper or "", chosen.configs)
    for names, choices, what in (
        (chosen.worlds, [world.name for world in paper.worlds], "world"),
        (chosen.stages, list(STAGES), "stage"),
    ):
        for name in names:
            if name not in choices:
                raise ConfigError(f"unknown {what} {name!r}{nearest(name, choices)}")
    asked = stages_of(paper, chosen.worlds, chosen.stages or STAGES)
    configs = {stage: stage_config(paper, stage, options) for stage in asked}  # all checked before the first one runs
    if not chosen.write:
        for checked in configs.values():
            checked.rehearse()  # a world that cannot be dealt out fails now, not after hours of others
        for stage in asked:
            run_stage(paper, stage, console, options)
    folders = {}
    for stage in dict.fromkeys([*stages_of(paper), *asked]):
        config = configs.get(stage) or stage_config(paper, stage, options)
        folder = StudyFolder(home_of(config.study.folder) / stage.study(paper))
        if folder.trials.is_file():
            folders[stage.world.name, stage.name] = folder
    results = chosen.out or results_folder(paper)
    if folders:
        write_pages(paper, folders, results, _options_of_all_worlds(chosen))
    elif not (results / "README.md").is_file():  # nor are the pages of studies on another machine
        raise ConfigError(f"no study of {paper.name} is there yet: leave out --write")
    if results == paper.folder / RESULTS:  # the claims are about these pages
        write_remarks(paper, console)
    console.print(f"Results: {write_readme(paper, results)}", highlight=False)
    write_digests(results)
    return 0


def _options_of_all_worlds(chosen: "ReproductionOptions") -> list[str]:
    """Return the options that the command of every page needs."""
    configs = [] if chosen.configs == config_folder() else ["--configs", str(chosen.configs)]
    return [*configs, *(["--options", chosen.options] if chosen.options else [])]


def write_remarks(paper: Paper, console: Console) -> None:
    """Write the remarks of a paper with claims, and name the claims that its data do not carry any more."""
    if parts := read_claims(paper.folder):
        write_whole(paper.folder / REMARKS, remarks_page(parts))
        for sentence in refuted(parts):
            console.print(sentence, highlight=False, markup=False)


def results_folder(paper: Paper) -> Path:
    """Return the folder of a paper's pages: beside its configs, or below the working directory if these are
    installed."""
    return (Path("reproduction") / paper.name if is_installed(paper.folder) else paper.folder) / RESULTS


def run_stage(paper: Paper, stage: PaperStage, console: Console, options: Sequence[str] = ()) -> Path:
    """Run a stage's study and return its folder. A finished study is left as it is, one that stopped is resumed, and a
    search with fewer trials than are now asked for gets the rest. A search imports the trials of the preset stage, if
    that is finished, instead of training them again.

    Raises:
        ConfigError: if the study stopped without a single finished trial, or is running elsewhere.
    """
    config = stage_config(paper, stage, options)
    folder = StudyFolder(home_of(config.study.folder) / stage.study(paper))
    state = folder.state().get("state")
    if state == "running":
        raise ConfigError(folder.busy_message() or f"study {folder.name} has just ended: do this again")
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
        code = run_study(load_study_config(folder, options=more), console, folder.path)
    if code:
        raise ConfigError(f"study {folder.name} has no trial to show: see flstudy report {folder.name}")
    if folder.state().get("state") != "finished":
        raise KeyboardInterrupt
    return folder.path


def _more_trials(folder: StudyFolder, config: Config) -> list[str]:
    """Return the option that extends the study in this folder to as many trials as are asked for: never to fewer, and
    not where it searched another space."""
    theirs, ours, asked = load_study(folder).section, config.whole_study()["study"], config.study.trials
    searched = all(theirs.get(name) == ours[name] for name in ("search", "arms"))
    if theirs["trials"] is None or asked is None or asked <= theirs["trials"] or not searched:
        return []
    return [f"--study.trials={asked}"]
