"""A study from start to finish: many trials of one config under Ray Tune, proposed by Optuna and recorded in MLflow,
then its report, on the terminal, on disk and in MLflow."""

import contextlib
import json
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.config.values import pairs
from flstudy.preparation.picture import PICTURE, keep_picture
from flstudy.reporting import Report, write_report
from flstudy.reporting.ranking import TUNING_SPENDS
from flstudy.reporting.report import terminal
from flstudy.study import BestTrial, Space, Status, StudyFolder, Trial
from flstudy.study.folder import wanted_name
from flstudy.study.objectives import check_objectives, objective_values, violations
from flstudy.study.records import records_damage
from flstudy.study.repair import repair
from flstudy.study.signals import SAVE, as_ctrl_c, heeding
from flstudy.tracking.content import environment
from flstudy.tracking.runs import StudyRun
from flstudy.tracking.store import check_store, open_store, sqlite_file
from flstudy.tracking.trust import agreed_store, remember_store
from flstudy.tuning.beacon import Beacon
from flstudy.tuning.cluster import check_resources, cluster, room, starting, store_variables
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.samplers import ArmPlan, optuna_sampler, sampler_of
from flstudy.tuning.schedulers import ray_scheduler, read_history
from flstudy.tuning.sharing import share
from flstudy.tuning.shortage import MEMORY, check_disks, refusing, remedy, shortage
from flstudy.tuning.worker import Assignment, worker_class

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.tuning.trial_table import TrialTable


@dataclass
class StudyResult:
    """What a study left behind."""

    folder: StudyFolder
    trials: list[Trial]
    best: tuple[BestTrial, ...]
    """The best trial of each algorithm that has one, best first."""
    run: StudyRun
    """Its run in MLflow, for figures and tables made later."""
    interrupted: bool = False
    hopeless: str | None = None
    """Why it stopped by itself: too many trials failed, or its disk did."""
    delivered: bool = True
    """Whether MLflow has all of it; `flstudy sync` delivers the rest."""
    report: Report | None = None
    """Of `carry_out`; None where the disk did not take it."""
    kept: bool = False
    """Whether MLflow has the report."""

    @property
    def name(self) -> str:
        return self.folder.name

    def to_json(self) -> dict[str, Any]:
        """The study for scripts."""
        return {
            "study": self.name,
            "folder": str(self.folder.path),
            "run_id": self.run.run_id,
            "interrupted": self.interrupted,
            "stopped": self.hopeless,
            "delivered": self.delivered,
            "best": {
                one.trial.algorithm: {
                    **one.trial.to_json(),
                    "value": one.judged,
                    "confirmation": None if one.confirmation is None else one.confirmation.number,
                }
                for one in self.best
            },
            "trials": [trial.to_json() for trial in self.trials],
        }


def run_study(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    import_from: Path | None = None,
    as_json: bool = False,
) -> int:
    """Tune ``config`` as `tune` does, then show and keep the comparison.

    Args:
        config: the study's.
        console: where it is shown.
        resume: the folder of a study to go on with.
        import_from: the folder of another study, whose trials need not be trained again.
        as_json: print one JSON object at the end and nothing else.

    Returns:
        The exit status: 1 where no trial finished, so that there is nothing to compare, or where too many failed.
    """
    console = console or terminal()
    result = carry_out(config, console, resume, import_from=import_from, quiet=as_json)
    if as_json:
        print(json.dumps(result.to_json(), indent=2, default=str))
    elif result.report is not None:
        if result.delivered and not result.kept:
            console.print(
                f"MLflow has no report: deliver it with [bold]flstudy sync {result.name}[/bold]", highlight=False
            )
        result.report.print(console)
        if result.interrupted:
            going_on = f"Go on with it: [bold]flstudy tune --resume {result.folder.called}[/bold]"
            console.print(going_on, highlight=False, soft_wrap=True)  # to be copied in one piece
    return 0 if result.hopeless is None and any(t.status is Status.FINISHED for t in result.trials) else 1


@heeding({signal.SIGTERM: as_ctrl_c})
def carry_out(
    config: "Config",
    console: Console,
    resume: Path | None = None,
    *,
    import_from: Path | None = None,
    quiet: bool = False,
) -> StudyResult:
    """Tune ``config`` as `tune` does, then write the study's report, also into MLflow."""
    with contextlib.ExitStack() as claims:
        result = _tune(config, console, resume, import_from, quiet, claims)
        _conclude(result, config, console)
    return result


def _conclude(result: StudyResult, config: "Config", console: Console) -> None:
    try:
        result.folder.write_events(config.events())
        result.report = write_report(result.folder.path)
        if not (result.folder.report / PICTURE).exists():
            keep_picture(config, result.folder.report / PICTURE)
        result.kept = result.delivered and result.run.log_files(result.folder)
    except (OSError, ValueError) as error:
        denied = shortage(error, result.folder.path)
        if denied is None:
            raise
        if result.hopeless is None:
            result.hopeless = f"{denied}: {remedy(denied)}, then flstudy report {result.folder.called}"
            console.print(f"there is no report: {result.hopeless}", highlight=False, markup=False)


@heeding({signal.SIGTERM: as_ctrl_c})
def tune(
    config: "Config",
    console: Console | None = None,
    resume: Path | None = None,
    *,
    import_from: Path | None = None,
    quiet: bool = False,
) -> StudyResult:
    """Run the study of ``config`` in a new folder; Ctrl-C or SIGTERM ends it early with what it has.

    Args:
        config: the study's.
        console: where its progress is shown.
        resume: the folder of a study that stopped or was killed, and goes on: trials that are over are kept, the others
            are run again, from their snapshots and in their MLflow runs; sampler and scheduler know what they knew.
        import_from: the folder of another study: trials of it that this one would train alike are not trained again.
        quiet: print nothing.

    Raises:
        ConfigError: before any trial starts, for a search space, store, folder or resources that cannot work.
    """
    with contextlib.ExitStack() as claims:
        return _tune(config, console or Console(), resume, import_from, quiet, claims)


@refusing()
def _tune(
    config: "Config",
    console: Console,
    resume: Path | None,
    import_from: Path | None,
    quiet: bool,
    claims: contextlib.ExitStack,
) -> StudyResult:
    """`tune`; ``claims`` hold the study's folder."""

    def say(line: str) -> None:
        if not quiet:
            console.print(line, highlight=False, markup=False)

    space = check_study(config)
    folder = StudyFolder.resume(resume, claims) if resume is not None else None
    past, damage = [], list[str]()
    if folder is not None:
        past = folder.read_trials(damage)
        for line in [*damage, *repair(folder, past)]:
            say(line)
    _check_room_for_more(config, past, folder)
    check_resources(config.study.resources)
    uri = config.store
    if folder is not None:
        given = {**dict(pairs(config.options)), **config.overrides}.get("store")
        uri = agreed_store(folder.name, folder.state().get("store") or uri, given)
    uri, _ = check_store(uri)
    examples = config.rehearse()
    check_disks(config, None if folder is None else folder.path, sqlite_file(uri))
    aside = ThreadPoolExecutor(1)
    opening = aside.submit(open_store, uri)  # seconds of importing and SQL, while Ray starts its processes
    aside.shutdown(wait=False)
    plan = sampler_of(config).plan(space, config)
    for line in [*before_it_starts(config, plan), *space.outside(config)]:
        say(line)
    with cluster(config.study.resources):
        store, data = opening.result(), share(examples)
        del examples
        if folder is None:
            folder = StudyFolder.create(config)
            claims.enter_context(folder.claim())
            if folder.name != wanted_name(config):
                say(f"study {wanted_name(config)!r} exists already: this one is {folder.name!r}")
            if import_from is not None:
                past = import_trials(StudyFolder(import_from), folder, config)
                say(f"{folder.name}: {len(past)} trials imported from {import_from.name}")
        study_id = folder.state().get("study_id") or uuid.uuid4().hex
        modules = folder.state().get("modules") or str(Path(config.path).absolute().parent)  # users' own, beside it
        remember_store(store.uri)
        folder.write_config(config)
        folder.write_state("running", study_id=study_id, store=store.uri, environment=environment(), modules=modules)
        run = StudyRun(store, name=folder.name, study_id=study_id, config=config, resumed=resume is not None)
        assignment = Assignment(
            config=config,
            store=store,
            study=folder.name,
            study_id=study_id,
            parent=run.run_id,
            folder=folder,
            environment=environment(),
            data=data,
            access=store_variables(),
            path=(modules,),
        )
        progress = StudyProgress(
            console,
            name=folder.name,
            config=config,
            algorithms=len(space.domains["algorithm"].extremes()) if "algorithm" in space.domains else 1,
            trials=sum(arm.first + arm.second for arm in plan) or None,
            spent_s=folder.spent_s(),
            quiet=quiet,
        )
        from flstudy.tuning.trial_table import TrialTable  # needs Ray, which has been started by now

        table, beacon = TrialTable(config, folder, progress, past), Beacon(folder.going)
        try:
            with progress, _stopped_by_signals(beacon, progress) as listen:
                _fit(assignment, space, table, beacon, past, listen)
        except BaseException as error:
            denied = shortage(error, folder.path) if isinstance(error, Exception) else None
            if denied is None:
                stopped = isinstance(error, KeyboardInterrupt)
                run.finish("KILLED" if stopped else "FAILED")
                table.spare(lambda: folder.write_state("interrupted" if stopped else "failed"))
                raise
            beacon.put_out()
            table.halt(denied)
    table.close(complete=not beacon.is_out)  # when no worker can have the last word any more
    left = beacon.is_out or any(trial.status is Status.INTERRUPTED for trial in table.trials)
    beacon.put_out()  # its file goes with the study
    state: Literal["interrupted", "finished"] = "interrupted" if left else "finished"
    table.spare(lambda: folder.write_state(state))
    result = StudyResult(folder, table.trials, table.best, run, state == "interrupted", table.hopeless)
    if result.hopeless:
        progress.say(f"the study stopped: {result.hopeless}")
    elif table.starved:
        progress.say(f"trials {', '.join(str(trial.number) for trial in table.starved)} ran {MEMORY}: {remedy(MEMORY)}")
    result.delivered = table.deliver(store)
    if not result.delivered and not result.hopeless:
        console.print(f"MLflow is away: deliver later with [bold]flstudy sync {folder.name}[/bold]", highlight=False)
    return result


def check_study(config: "Config") -> Space:
    """The search space of a study that can be run.

    Raises:
        ConfigError: for a space, objectives, a sampler, a scheduler or a name that cannot work.
    """
    space, sampler = Space.parse(config.study.search), sampler_of(config)
    space.validate(config)
    check_objectives(config)
    sampler.check(space, config)
    optuna_sampler(sampler)
    if config.study.scheduler is not None:
        config.study.scheduler.check(config)
    wanted_name(config)
    return space


def before_it_starts(config: "Config", plan: Sequence[ArmPlan]) -> list[str]:
    """What a user is to know before any trial: the plan of a sweep in two steps, and what tuning does to privacy."""
    flat, lines = config.flat(), []
    if plan:
        first, second = sum(arm.first for arm in plan), sum(arm.second for arm in plan)
        each = ", ".join(f"{arm.algorithm} {arm.first} + {arm.second}" for arm in plan if arm.algorithm is not None)
        lines.append(f"step 1: {first} trials, step 2: up to {second}" + (f" ({each})" if each else ""))
    if flat.get("privacy.clip") is not None and (flat.get("privacy.noise") or flat.get("privacy.solve")):
        lines.append(TUNING_SPENDS)
    return lines


def import_trials(other: StudyFolder, folder: StudyFolder, config: "Config") -> list[Trial]:
    """Copies trials of another study into a new one's folder and returns them, numbered from 0.

    A trial is imported if it ended by itself, its values lie in this study's search space, and this study would train
    it with the same config to the last value. None are, if the studies have different objectives. Whether both ran the
    same version of flstudy is not asked.

    Raises:
        ConfigError: if ``other`` holds no study.
    """
    theirs = load(other.config, command="tune")
    if (theirs.study.objective, theirs.study.objectives) != (config.study.objective, config.study.objectives):
        return []
    domains, imported = Space.parse(config.study.search).domains, list[Trial]()
    for trial in other.read_trials():
        # One that a scheduler stopped was stopped by another study's rules.
        ended = not trial.is_confirmation and trial.status in (Status.FINISHED, Status.DIVERGED)
        if not ended or not set(trial.overrides) <= set(domains) or not other.records(trial.number).is_dir():
            continue
        if records_damage(other.records(trial.number)) is not None:
            continue
        if not all(domains[key].contains(value) for key, value in trial.overrides.items()):
            continue
        if config.with_overrides(trial.overrides).flat() != theirs.with_overrides(trial.overrides).flat():
            continue
        number = len(imported)
        shutil.copytree(other.records(trial.number), folder.records(number))
        if other.model(trial.number).is_file():
            folder.model(number).parent.mkdir(exist_ok=True)
            shutil.copy(other.model(trial.number), folder.model(number))
        imported.append(
            replace(
                trial,
                number=number,
                values=objective_values(config.study, trial.objective, trial.metrics, broken=trial.is_broken),
                feasible=trial.is_broken or max(violations(config.study, trial.metrics), default=0.0) <= 0.0,
                source=f"{other.name}/{trial.number}",
                synced=False,  # MLflow has it in the other study only
                run_id=None,
            )
        )
    folder.write_trials(imported)
    return imported


def _fit(
    assignment: Assignment,
    space: Space,
    table: "TrialTable",
    beacon: Beacon,
    past: Sequence[Trial],
    listen: Callable[[], object],
) -> None:
    """Run Ray Tune until all trials are done or the beacon is out.

    ``past``: trials that are known already; ``listen``: called when Ray has set its own handlers of signals.
    """
    from ray import tune as ray_tune

    from flstudy.tuning.search import Search
    from flstudy.tuning.trial_table import RayEvents, StopOnInterrupt

    study, folder = assignment.config.study, assignment.folder
    population = study.scheduler is not None and study.scheduler.exchanges  # all of its trials are there from the start

    def places() -> int:
        if beacon.is_out or table.hopeless is not None:
            return 0
        return sys.maxsize if population else min(room(study.resources), study.concurrent or sys.maxsize)

    search = Search(
        space,
        assignment.config,
        name=folder.name,
        room=places,
        past=past,
        spending=table,
        journal=folder.journal,
    )
    events = RayEvents(table, search, beacon, listen)
    shutil.rmtree(folder.ray, ignore_errors=True)  # of an earlier start that was killed
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(worker_class(assignment), {"cpu": study.resources.cpu, "gpu": study.resources.gpu}),
        tune_config=ray_tune.TuneConfig(
            search_alg=search,
            scheduler=ray_scheduler(assignment.config, read_history(folder, past, study.objective.metric)),
            num_samples=-1,  # the search says when it is over
            reuse_actors=True,  # importing torch anew for every trial took three times as long
        ),
        run_config=ray_tune.RunConfig(
            name=folder.ray.name,
            storage_path=str(folder.ray.parent),
            verbose=0,
            stop=StopOnInterrupt(table, beacon, events),
            callbacks=[events],
            failure_config=ray_tune.FailureConfig(max_failures=study.failures.retries, fail_fast=False),
            log_to_file=False,
        ),
    )
    try:
        with starting(min(places(), study.trials or sys.maxsize)):
            tuner.fit()
    finally:
        shutil.rmtree(folder.ray, ignore_errors=True)


def _check_room_for_more(config: "Config", past: Sequence[Trial], folder: StudyFolder | None) -> None:
    """Raise ConfigError for a study that has had all its trials, unless winners are still to be confirmed."""
    study = config.study
    search = [trial for trial in past if not trial.is_confirmation]
    if not past or study.trials is None or sum(trial.is_over for trial in search) < study.trials:
        return
    finished = folder is not None and folder.state().get("state") == "finished"
    if not study.confirm.seeds or (finished and all(trial.is_over for trial in past)):
        raise ConfigError(
            f"study.trials must be > {len(search)}, the trials that the study has, got {study.trials}: "
            "raise it to extend the study"
        )


@contextlib.contextmanager
def _stopped_by_signals(beacon: Beacon, progress: StudyProgress) -> Iterator[Callable[[], object]]:
    """The first Ctrl-C, and any SIGTERM, let trials end with a snapshot and keep the results; a second Ctrl-C insists.
    SIGUSR1 asks for snapshots. What is yielded is to be called when Ray Tune has set its handler, which would stop.
    """
    insist = signal.getsignal(signal.SIGINT)

    def stop() -> None:
        if signal.getsignal(signal.SIGINT) is not insist:
            signal.signal(signal.SIGINT, insist)
            progress.say("stopping: the results so far are kept (Ctrl-C again to insist)")
        beacon.put_out()

    def save() -> None:
        beacon.ask()
        progress.say("every running trial writes a snapshot after its round")

    with heeding({signal.SIGINT: stop, SAVE: save}), contextlib.ExitStack() as later:
        if threading.current_thread() is threading.main_thread():  # Ray's own handler, of now, ends the process
            signal.signal(signal.SIGTERM, lambda number, frame: stop())  # and ours stays: the end must not be cut short
        yield lambda: later.enter_context(heeding({SAVE: save}))
