"""Plan, the first stage of a study: everything is checked before the study's own files are made."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flstudy.config import ConfigError
from flstudy.population.dataset_cache import CachedDataset
from flstudy.remote import RemoteError, RemoteFolder, is_uri
from flstudy.reporting.ranking import TUNING_SPENDS
from flstudy.reporting.sections.held import held_table
from flstudy.study import Space, StudyFolder, Trial
from flstudy.study.folder import wanted_name
from flstudy.study.held import held_fixed
from flstudy.study.objectives import check_objectives
from flstudy.study.repair import repair
from flstudy.study.resuming import modules_folder
from flstudy.tracking.store import check_store, sqlite_file
from flstudy.tracking.trust import agreed_store
from flstudy.tuning.cluster import check_resources
from flstudy.tuning.samplers import ArmPlan, optuna_sampler, sampler_of, search_size
from flstudy.tuning.shortage import check_disks
from flstudy.tuning.writer import wait_for_writer

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass(frozen=True)
class Plan:
    """Plan of a study that can begin.

    Attributes:
        config: the study's.
        console: where its progress is shown.
        quiet: whether nothing is shown.
        say: shows a line, unless the study is quiet.
        space: the search space.
        trials: largest number of trials of the search; None where its budget ends it.
        store: the URI of MLflow's store.
        modules: the folder of the user's own modules.
        examples: the data, in memory, for all trials, until the study's opening hands them to Ray.
        folder: of a study that goes on, which is locked and repaired; None where one is to be made.
        past: trials that this folder has.
    """

    config: "Config"
    console: Console
    quiet: bool
    say: Callable[[str], None]
    space: Space
    trials: int | None
    store: str
    modules: str
    examples: dict[str, CachedDataset]
    folder: StudyFolder | None
    past: list[Trial]


def plan_study(
    config: "Config", console: Console, resume: Path | None, claims: contextlib.ExitStack, *, quiet: bool
) -> Plan:
    """Check a study, within seconds and before Ray starts, and show its user the remarks on it.

    Args:
        config: the study's.
        console: where it is shown.
        resume: the folder of a study to go on with.
        claims: hold that folder.
        quiet: show nothing.

    Raises:
        ConfigError: for a search space, store, folder or resources that cannot work.
    """

    def say(line: str) -> None:
        if not quiet:
            console.print(line, highlight=False, markup=False)

    space = check_study(config)
    for line in drift_warnings(config):
        say(line)
    folder = StudyFolder.resume(resume, claims) if resume is not None else None
    past, damage = list[Trial](), list[str]()
    if folder is not None:
        wait_for_writer(folder)  # before anything is read
        past = folder.read_trials(damage)
        for line in [*damage, *repair(folder, past)]:
            say(line)
        _check_trials_left(config, past, folder)
    check_resources(config.study.resources)
    store, modules = config.store, config.modules
    if folder is not None:
        store = agreed_store(folder.name, folder.state().get("store") or store, dict(config.edits).get("store"))
        modules = modules_folder(folder) or modules
    store, _ = check_store(store)
    if folder is None and is_uri(config.study.folder):
        check_bucket(config.study.folder)
    examples = config.rehearse()
    check_disks(config, None if folder is None else folder.path, sqlite_file(store))
    left_out = config.left_out() if folder is None else []  # a resumed study's config has all defaults written down
    steps, size = sampler_of(config).plan(space, config), search_size(space, config)
    for line in [*left_out, *start_remarks(config, steps), *space.outside_remarks(config)]:
        say(line)
    if len(config.study.arms) > 1 and not quiet:
        console.print(held_table(held_fixed(config.whole_study()), brief=True))
    trials = config.study.trials if size is None else size.trials
    return Plan(config, console, quiet, say, space, trials, store, modules, examples, folder, past)


def check_study(config: "Config") -> Space:
    """Return the search space of a study, after checking it with the objectives, sampler, scheduler and name.

    Raises:
        ConfigError: for a space, objectives, a sampler, a scheduler or a name that cannot work.
    """
    space, sampler = Space.of_study(config.study), sampler_of(config)
    space.validate(config)
    check_objectives(config)
    sampler.check(space, config)
    optuna_sampler(sampler)
    if config.study.scheduler is not None:
        config.study.scheduler.check(config)
        check_rungs(config)
    wanted_name(config)
    return space


def first_judged_round(config: "Config") -> int:
    """Return the round in which the study's scheduler first judges trials: the first evaluated one from its first rung
    on."""
    assert config.study.scheduler is not None
    every, rounds = config.settings.evaluate_every, config.rounds
    first = int(min(config.study.scheduler.rungs(rounds), default=rounds))
    return min(-(-first // every) * every, rounds)


def check_rungs(config: "Config") -> None:
    """Raise ConfigError for a scheduler that judges trials in no round before their last."""
    rounds, name = config.rounds, type(config.study.scheduler).__name__
    if first_judged_round(config) >= rounds:
        raise ConfigError(
            f"study.scheduler must judge trials before round {rounds}, their last, but {name} meets no evaluation "
            f"there, got evaluate_every {config.settings.evaluate_every}: lower that or the scheduler's first round, "
            "or leave study.scheduler out"
        )


def check_bucket(uri: str) -> None:
    """Raise ConfigError for a place of studies by URI that cannot be used or written."""
    try:
        RemoteFolder.open(uri).check_writable()
    except RemoteError as error:
        raise ConfigError(f"study.folder: {error}") from error


def drift_warnings(config: "Config") -> list[str]:
    """Return a warning where the scheduler first judges trials before the last planned drift; else [].

    Such a decision rests on rounds before the drift alone.
    """
    scheduler, last = config.study.scheduler, max(config.drift_rounds(), default=0)
    if scheduler is None or not last:
        return []
    if (first := first_judged_round(config)) >= last:
        return []
    later = (
        "raise study.scheduler.grace_rounds beyond it" if hasattr(scheduler, "grace_rounds") else "let it begin later"
    )
    return [
        f"warning: {type(scheduler).__name__} judges trials in round {first}, before the drift in round {last}, which "
        f"those that it stops never meet: {later}, or leave study.scheduler out"
    ]


def start_remarks(config: "Config", plan: Sequence[ArmPlan]) -> list[str]:
    """Return the lines for the user before any trial: the plan of a sweep in two steps, and the effect of tuning on
    privacy."""
    flat, lines = config.flat(), []
    if plan:
        first, second = sum(arm.first for arm in plan), sum(arm.second for arm in plan)
        arms = ", ".join(f"{arm.algorithm} {arm.first} + {arm.second}" for arm in plan if arm.algorithm is not None)
        lines.append(f"step 1: {first} trials, step 2: up to {second}" + (f" ({arms})" if arms else ""))
    if flat.get("privacy.clip") is not None and (flat.get("privacy.noise") or flat.get("privacy.solve")):
        lines.append(TUNING_SPENDS)
    return lines


def _check_trials_left(config: "Config", past: Sequence[Trial], folder: StudyFolder) -> None:
    """Raise ConfigError for a study that has come to its end with all its trials.

    One that was stopped behind its last trial lacks its end alone: winners to be confirmed, or the report.
    """
    study = config.study
    search = [trial for trial in past if not trial.is_confirmation]
    if not past or study.trials is None or sum(t.times_proposed for t in search if t.is_over) < study.trials:
        return
    if folder.state().get("state") in ("finished", "failed") and all(trial.is_over for trial in past):
        raise ConfigError(
            f"study.trials must be > {sum(trial.times_proposed for trial in search)}, the trials that the study has, "
            f"got {study.trials}: raise it to extend the study"
        )
