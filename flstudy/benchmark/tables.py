"""Tables of at most 100 columns: with rich where it is installed, as plain text elsewhere."""

import io
from typing import Any

WIDTH = 100
HEAD = (
    "executor",
    "rounds/s",
    "fits/s",
    "× plain",
    "useful",
    "MiB",
    "compile s",
    "fit",
    "data",
    "serv",
    "eval",
    "rest",
)
PARTS = ("fit", "data", "server", "evaluation", "rest")
NOTES = (
    "rounds/s      rounds × seeds per second, without evaluation; median of {repeats} interleaved blocks",
    "× plain        the best row of the plain loop is 1",
    "useful         share of the executed local steps that trained; the rest is padding",
    "MiB            peak memory beyond the imports ({memory})",
    "compile s      time of the first rounds beyond the usual, torch's compiler cache empty at the start",
    "fit ... rest   per cent of the time, with an evaluation every {every} rounds; rest: Lightning, logging",
)


def number(value: float | None) -> str:
    """Three digits where they mean something."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(row: dict[str, Any]) -> list[str]:
    """One row's texts; an executor that failed has its reason in the second."""
    name = f"{row['executor']}, {row['threads']} thr"
    if "error" in row:
        return [name, row["error"]]
    memory = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
    compiling = f"{row['compile_s']:.1f}" if row["executor"] == "compiled" else ""
    shares = [f"{100 * row['shares'][part]:.0f}" for part in PARTS]
    if row["executor"] == "plain":
        shares[3] = ""  # it does not evaluate
    rates = [number(row[key]) for key in ("seed_rounds_per_s", "fits_per_s", "x_plain")]
    return [name, *rates, f"{100 * row['lane_utilization']:.0f} %", memory, compiling, *shares]


def plain_text(title: str, rows: list[list[str]]) -> str:
    """A table with a title, columns aligned by spaces."""
    full = [row for row in rows if len(row) == len(HEAD)]
    widths = [max(len(row[place]) for row in [list(HEAD), *full]) for place in range(len(HEAD))]
    widths[0] = max(len(row[0]) for row in [list(HEAD), *rows])

    def line(row: list[str]) -> str:
        first, *others = row
        if len(row) != len(HEAD):
            return f"{first:<{widths[0]}}  {others[0]}"[:WIDTH]
        return "  ".join(
            [f"{first:<{widths[0]}}", *(f"{text:>{w}}" for text, w in zip(others, widths[1:], strict=True))]
        )

    return "\n".join([title, line(list(HEAD)), "-" * len(line(list(HEAD))), *map(line, rows)]) + "\n"


def rich_text(title: str, rows: list[list[str]], color: bool) -> str:
    """The same with rich.

    Raises:
        ImportError: where it is not installed.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(HEAD):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        if len(row) == len(HEAD):
            table.add_row(*map(Text, row))
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, force_terminal=color, no_color=not color)
    console.print(table)
    for row in rows:
        if len(row) != len(HEAD):
            console.print(Text(f"{row[0]}: {row[1]}"), style="red")
    return out.getvalue()


def workload_table(workload: dict[str, Any], color: bool = False, rich: bool = True) -> str:
    """One workload's rows under its sentence."""
    title = f"{workload['name']}: {workload['sentence']}"
    errors = {row.get("error") for row in workload["rows"]}
    if len(errors) == 1 and None not in errors:  # the same for all: a row for each would say nothing more
        return f"{title}\nnot measured: {errors.pop()}\n"
    rows = [cells(row) for row in workload["rows"]]
    if rich:
        try:
            return rich_text(title, rows, color)
        except ImportError:
            pass
    return plain_text(title, rows)


def heading(report: dict[str, Any]) -> str:
    """Hardware, versions and settings in two lines."""
    hardware, versions, settings = report["hardware"], report["versions"], report["settings"]
    where = hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores, {settings['threads']} threads"
    packages = ", ".join(f"{name} {versions[name]}" for name in ("flstudy", "torch", "lightning", "python"))
    return f"{where}\n{packages}; {settings['precision']}\n"


def notes(report: dict[str, Any]) -> str:
    """What the columns mean."""
    memory = "of the GPU's tensors" if report["hardware"]["gpu"] else "compiler's processes do not count"
    every = report["workloads"][0]["evaluate_every"] if report["workloads"] else 10
    return "\n".join(NOTES).format(repeats=report["settings"]["repeats"], memory=memory, every=every) + "\n"
