"""Progress of a single run on the terminal, and a table at its end."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from flstudy.metrics.registry import METRICS, deviation_over_replicas, mean_over_replicas, of_server

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Record

SHOWN = (
    "train/loss", "valid/accuracy", "test/accuracy", "test/accuracy_spread", "test/personal_accuracy", "fit/epochs",
    "server/update_norm", "server/effective_lr", "privacy/epsilon", "traffic/up_bytes", "time/round_s",
)  # fmt: skip

FIRST_LINE_S, LINE_EVERY_S = 2.0, 20.0  # until the first plain line of a run, and between later ones


@contextlib.contextmanager
def progress_of(console: Console, config: "Config") -> Iterator[Callable[["Record"], None]]:
    """Show a bar with the time that is left, or a line now and then where the output is no terminal.

    Yields the function that takes each round.
    """
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


def summary_table(config: "Config", metrics: Mapping[str, Sequence[float]], rounds: int) -> Table:
    """Return a table of the last metrics of a run of some rounds: means over seeds, and their deviations."""
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
