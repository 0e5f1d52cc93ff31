"""``flstudy run``: one run of a config with records, checkpoints and a run in MLflow, as a study's trials have them."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import yaml
from rich.console import Console

from flstudy.config import ConfigError, StopRun
from flstudy.config.values import anchored
from flstudy.execution.torch_threads import ONE_THREAD, takes_one_thread
from flstudy.preparation.picture import PICTURE, keep_picture
from flstudy.recording import Checkpoints, Recording, StopOnSigterm
from flstudy.reporting.run_progress import progress_of, summary_table
from flstudy.study.damage import checkpoint_damage
from flstudy.study.device_results import write_device_results
from flstudy.study.folder import free_path
from flstudy.study.records import RecordWriter
from flstudy.study.trial import traceback_of
from flstudy.tracking.content import environment
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import open_store
from flstudy.whole_file import whole_file

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Record


class DivergedError(RuntimeError):
    """Failure of a run that has diverged."""


def run_once(config: "Config", console: Console | None = None) -> Path:
    """Train ``config`` and return the run's folder.

    The folder holds ``config.yaml``, ``records.parquet`` and ``checkpoints/``; with ``run.resume`` the run goes on from
    its last checkpoint, bit for bit.

    Raises:
        ConfigError: before any work, for a folder or a store that cannot be written, or nothing to resume.
        DivergedError: a loss or a parameter is not finite.
        KeyboardInterrupt: after SIGTERM, when the round is over and its checkpoint written.
    """
    console = console or Console()
    section = config.run_section
    for line in config.left_out():
        console.print(line, highlight=False, markup=False)
    if config.settings.accelerator == "cpu" and takes_one_thread(config.parameter_count):
        console.print(ONE_THREAD.format(threads=torch.get_num_threads()), highlight=False)
    folder, checkpoint = _folder(config, console)
    store = open_store(config.store) if section.track else None
    run = None
    if store is not None:
        run = TrialRun(
            store, name=folder.name, key={"flstudy.run": str(folder.resolve())}, tags={"flstudy.kind": "run"}
        )
        run.start(
            params=config.hyper_parameters(),
            tags={**config.tags(), **environment()},
            seeds=config.seeds,
            config=config.plain(),
        )
    buffer = RecordWriter(folder / "records.parquet", config.seeds)
    recording, ending = Recording(buffer, run), StopOnSigterm()
    checkpoints = Checkpoints(buffer, folder / "checkpoints", every_n_epochs=section.checkpoint_every)
    status, error = "FAILED", None
    try:
        with buffer, progress_of(console, config) as advance:
            on_round = partial(_record, config=config, recording=recording, ending=ending, advance=advance)
            resume = str(checkpoint) if checkpoint else None
            trained = config.run(on_round, callbacks=[ending, checkpoints], resume=resume).run
            if trained.has_measured_devices:
                with whole_file(folder / "devices.parquet") as hidden:
                    write_device_results(trained.by_device(), hidden)
        if recording.divergence is not None and section.check_finite:
            raise DivergedError(f"{recording.divergence}: lower algorithm.lr; records and checkpoints are in {folder}")
        if ending.asked and recording.rounds < config.rounds:
            console.print(f"stopped after round {recording.rounds}: go on with --run.resume true", highlight=False)
            raise KeyboardInterrupt
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except Exception as raised:
        error = traceback_of(raised)
        raise
    finally:
        if run is not None:
            run.finish(status, error=error)
    if run is not None and keep_picture(config, folder / PICTURE):
        with contextlib.suppress(Exception):  # a store that went away: the file is in the folder
            run.store.client.log_artifact(run.run_id, str(folder / PICTURE))
    rounds = recording.rounds or config.rounds  # a run that is resumed at its end has none
    console.print(summary_table(config, recording.metrics, rounds))
    if recording.divergence is not None:
        console.print(f"It went on, though it {recording.divergence}.", highlight=False, markup=False)
    if rounds < config.rounds:
        console.print(f"Round {rounds + 1} of {config.rounds} would exceed privacy.target_epsilon.", highlight=False)
    console.print(f"Records, config and checkpoints: {folder}", highlight=False)
    if run is not None:
        console.print("Browse it: [bold]flstudy ui[/bold]", highlight=False)
    return folder


def _record(
    record: "Record",
    *,
    config: "Config",
    recording: Recording,
    ending: StopOnSigterm,
    advance: Callable[["Record"], None],
) -> None:
    """Record a round that is over; raises StopRun where no round is to follow."""
    recording.add(record)
    advance(record)
    divergence = recording.note_divergence(record)
    if divergence is not None and config.run_section.check_finite:
        raise StopRun(divergence)
    if ending.asked and record.round < config.rounds:
        raise StopRun("SIGTERM")


def _folder(config: "Config", console: Console) -> tuple[Path, Path | None]:
    """Return the run's folder and, if it is resumed, its last checkpoint, or the one before where that is damaged."""
    section = config.run_section
    wanted = Path(section.folder) / (section.name or Path(config.path).stem)
    if section.resume:
        checkpoint = wanted / "checkpoints" / "last.ckpt"
        if not checkpoint.is_file():
            raise ConfigError(
                f"run.resume: there is no checkpoint {str(checkpoint)!r}; leave run.resume out to start anew"
            )
        damage = checkpoint_damage(checkpoint)
        if damage is None:
            return wanted, checkpoint
        for earlier in sorted(checkpoint.parent.glob("round-*.ckpt"), key=lambda path: path.stat().st_mtime)[::-1]:
            if checkpoint_damage(earlier) is None:
                console.print(f"{damage}: going on from {earlier.name}", highlight=False, markup=False, soft_wrap=True)
                return wanted, earlier
        raise ConfigError(f"run.resume: {damage}, and no other is whole: leave run.resume out to start anew")
    folder = free_path(wanted)
    try:
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(anchored(config.plain(), Path.cwd()), sort_keys=False))
    except OSError as error:
        raise ConfigError(
            f"run.folder must be a folder that you may write, got {section.folder!r} ({error.strerror}): "
            "give another one with --run.folder"
        ) from error
    return folder, None
