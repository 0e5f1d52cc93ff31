"""``flstudy run``: one run of a config with records, checkpoints and a run in MLflow, as a study's trials have them."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flstudy.config import ConfigError, StopRun
from flstudy.config.values import anchored
from flstudy.execution.torch_threads import ONE_THREAD, takes_one_thread
from flstudy.metrics.registry import METRICS, deviation_over_replicas, mean_over_replicas, of_server
from flstudy.preparation.picture import PICTURE, keep_picture
from flstudy.study.damage import checkpoint_damage
from flstudy.study.folder import free_path
from flstudy.study.records import RecordWriter
from flstudy.study.trial import traceback_of
from flstudy.tracking.content import environment
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import open_store

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Record

SHOWN = (
    "train/loss", "valid/accuracy", "test/accuracy", "test/accuracy_spread", "test/personal_accuracy", "fit/epochs",
    "server/update_norm", "server/effective_lr", "privacy/epsilon", "traffic/up_bytes", "time/round_s",
)  # fmt: skip

FIRST_LINE_S, LINE_EVERY_S = 2.0, 20.0  # until the first plain line of a run, and between later ones


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
    writer = RecordWriter(folder / "records.parquet", config.seeds)
    checkpoints = Checkpoints(writer, folder / "checkpoints", every_n_epochs=section.checkpoint_every)
    ending = OnSigterm()
    last: dict[str, list[float]] = {}
    diverged = list[str]()
    rounds = config.rounds
    status, error = "FAILED", None
    try:
        with writer, _progress(console, config) as advance:

            def on_round(record: "Record") -> None:
                nonlocal rounds
                rounds = record.round
                writer.append(record)
                if run is not None:
                    run.log(record)
                last.update(record.metrics)
                advance(record)
                if record.divergence is not None:
                    diverged.append(record.divergence)
                    raise StopRun(record.divergence)
                if ending.asked and record.round < config.rounds:
                    raise StopRun("SIGTERM")

            config.run(on_round, callbacks=[ending, checkpoints], resume=str(checkpoint) if checkpoint else None)
        if diverged:
            raise DivergedError(f"{diverged[0]}: lower algorithm.lr; records and checkpoints are in {folder}")
        if ending.asked and rounds < config.rounds:
            console.print(f"stopped after round {rounds}: go on with --run.resume true", highlight=False)
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
    console.print(_summary(config, last, rounds))
    if rounds < config.rounds:
        console.print(f"Round {rounds + 1} of {config.rounds} would exceed privacy.target_epsilon.", highlight=False)
    console.print(f"Records, config and checkpoints: {folder}", highlight=False)
    if run is not None:
        console.print("Browse it: [bold]flstudy ui[/bold]", highlight=False)
    return folder


class Checkpoints(ModelCheckpoint):
    """Checkpoint callback that writes records first, so that a resumed run misses none."""

    def __init__(self, writer: RecordWriter, folder: Path, every_n_epochs: int) -> None:
        super().__init__(
            dirpath=folder, filename="round-{epoch}", every_n_epochs=every_n_epochs, save_top_k=1, save_last=True,
            save_on_train_epoch_end=True,
        )  # fmt: skip
        self.writer = writer

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the records before the checkpoint is written."""
        self.writer.flush()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save after a round as Lightning does, and after the one with which the run is stopped."""
        super().on_train_epoch_end(trainer, pl_module)
        if trainer.should_stop:
            trainer.save_checkpoint(Path(str(self.dirpath)) / "last.ckpt")


class OnSigterm(L.Callback):
    """Callback that ends a run after its round on SIGTERM, which Slurm sends; Lightning would leave at once."""

    def __init__(self) -> None:
        self.asked = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Set the handler; Lightning has set its own by now, and restores the earlier one when the fit is over."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _folder(config: "Config", console: Console) -> tuple[Path, Path | None]:
    """The run's folder and, if it is resumed, its last checkpoint, or the one before where that is damaged."""
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


@contextlib.contextmanager
def _progress(console: Console, config: "Config") -> Iterator[Any]:
    """Show a bar with the time that is left, or a line now and then where the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(config.tags()["algorithm"], total=config.rounds)
        printed_at, every_s, shown = time.monotonic(), FIRST_LINE_S, ""
        first: tuple[float, int] | None = (
            None  # when the first round was over, of which compiling is a part; its number
        )

        def advance(record: "Record") -> None:
            nonlocal printed_at, first, shown, every_s
            first = first or (time.monotonic(), record.round)
            if "valid/accuracy" in record.metrics:
                shown = f"  valid accuracy {mean_over_replicas(record.metrics['valid/accuracy']):.1%}"
            elif "valid/loss" in record.metrics:
                shown = f"  valid loss {mean_over_replicas(record.metrics['valid/loss']):.4g}"
            bar.update(task, completed=record.round, description=f"{config.tags()['algorithm']}{shown}")
            since, done = first
            if not console.is_terminal and record.round > done and time.monotonic() - printed_at > every_s:
                printed_at, every_s = time.monotonic(), LINE_EVERY_S
                round_s = (printed_at - since) / (record.round - done)
                left = f"{round_s:.2g} s a round, {round_s * (config.rounds - record.round):.0f} s left"
                console.print(f"round {record.round}/{config.rounds}{shown}  {left}", highlight=False)

        yield advance


def _summary(config: "Config", metrics: dict[str, list[float]], rounds: int) -> Table:
    table = Table(title=f"{config.tags()['algorithm']} after {rounds} rounds", title_justify="left", box=None)
    table.add_column("metric")
    table.add_column("mean", justify="right")
    table.add_column(f"± std of {len(config.seeds)} seeds" if len(config.seeds) > 1 else "", justify="right")
    twins = {of_server(name) for name in metrics}
    task_metrics = [name for name in metrics if name not in METRICS and name not in twins]  # of the task's own steps
    less = [] if "valid/accuracy" in metrics else ["valid/loss", "test/loss"]
    shown = [name for name in (*SHOWN, *less, *task_metrics) if name in metrics]
    apart = [of_server(name) for name in shown if metrics.get(of_server(name), metrics[name]) != metrics[name]]
    for name in (*shown, *apart):
        values = metrics[name]
        deviation = f"{deviation_over_replicas(values):.4g}" if len(values) > 1 else ""
        table.add_row(name, f"{mean_over_replicas(values):.4g}", deviation)
    return table
