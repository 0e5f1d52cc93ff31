"""Tables of at most 100 columns, as plain text: the command also runs where only the engine is installed."""

import textwrap
from typing import Any

from flstudy.benchmark.gauge import account_lines

WIDTH = 100
SETTINGS = ("threads", "repeats", "seconds", "seeds", "precision")  # options that change what a figure means
COUNTS = {"calls": "program calls", "validations": "validations", "sequential_steps": "sequential steps"}
RATES = ["rounds/s", "× plain", "ms", "limit"]
HEAD = ["executor, thr", *RATES, "useful", "MiB", "comp s", "fit", "data", "serv", "eval", "rest"]
PARTS = ("fit", "data", "server", "evaluation", "rest")
NOTES = """\
rounds/s      rounds × seeds per second, without evaluation; median of {repeats} interleaved blocks
× plain        the best row of the plain loop is 1
ms, limit      a round of all seeds, and the matrix products of its steps alone on one core
useful         share of the executed local steps that trained; the rest is padding
MiB            peak memory beyond the imports ({memory})
comp s         time of the first rounds beyond the usual, torch's compiler cache empty at the start
fit ... rest   per cent of the time, with an evaluation every {every} rounds; rest: Lightning, logging
"""


def three_digits(value: float | None) -> str:
    """Format a number with three significant digits, a larger one without decimals."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def texts(row: dict[str, Any]) -> list[str]:
    """Return the cells of one row; for an executor that failed its name and the reason."""
    name = f"{row['executor']}, {row['threads']}{marks(row)}"
    if "error" in row:
        return [name, row["error"]]
    memory = "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
    compiling = f"{row['compile_s']:.1f}" if row["executor"] == "compiled" else ""
    shares = [f"{100 * row['shares'][part]:.0f}" for part in PARTS]
    if row["executor"] == "plain":
        shares[3] = ""  # it does not evaluate
    rates = [three_digits(row[key]) for key in ("seed_rounds_per_s", "x_plain", "round_ms", "limit_ms")]
    return [name, *rates, f"{100 * row['lane_utilization']:.0f} %", memory, compiling, *shares]


def marks(row: dict[str, Any]) -> str:
    """Return the marks of a row whose figures need care: ``!`` for a busy machine, ``*`` for warnings."""
    return "!" * bool(row.get("busy")) + "*" * bool(row.get("warned"))


def remarks(workload: dict[str, Any]) -> list[str]:
    """Return the lines under a workload's table: counters per round, and what the marks mean."""
    lines = []
    for row in workload["rows"]:
        name = f"{row['executor']}, {row['threads']}"
        if row.get("counts"):
            per_round = ", ".join(f"{three_digits(count)} {COUNTS[kind]}" for kind, count in row["counts"].items())
            lines.append(f"{name}, per round: {per_round}")
        lines += [line for sentence in row.get("warned", ()) for line in textwrap.wrap(f"* {name}: {sentence}", WIDTH)]
    if any(row.get("busy") for row in workload["rows"]):
        lines.append("! others used the machine meanwhile: no word about speed")
    return lines


def workload_table(workload: dict[str, Any]) -> str:
    """Return the table of one workload under its sentence, with columns aligned by spaces."""
    title = f"{workload['name']}: {workload['sentence']}"
    errors = {row.get("error") for row in workload["rows"]}
    if len(errors) == 1 and None not in errors:  # one reason for all: no row adds to it
        return f"{title}\nnot measured: {errors.pop()}\n"
    rows = [texts(row) for row in workload["rows"]]
    whole = [HEAD, *(row for row in rows if len(row) == len(HEAD))]
    first = max(len(row[0]) for row in [HEAD, *rows])
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)][1:]

    def line(row: list[str]) -> str:
        if len(row) != len(HEAD):
            return f"{row[0]:<{first}}  {row[1]}"[:WIDTH]
        return "  ".join([f"{row[0]:<{first}}", *(f"{text:>{w}}" for text, w in zip(row[1:], widths, strict=True))])

    return "\n".join([title, line(HEAD), "-" * len(line(HEAD)), *map(line, rows), *remarks(workload)]) + "\n"


def head_lines(report: dict[str, Any]) -> str:
    """Return hardware, versions and settings in two lines."""
    hardware, versions, settings = report["hardware"], report["versions"], report["settings"]
    where = hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores, {settings['threads']} threads"
    packages = ", ".join(f"{name} {versions[name]}" for name in ("flstudy", "torch", "lightning", "python"))
    return f"{where}\n{packages}; {settings['precision']}\n"


def foot_lines(report: dict[str, Any]) -> str:
    """Return the explanation of the columns, and the account of the gauge."""
    memory = "of the GPU's tensors" if report["hardware"]["gpu"] else "compiler's processes do not count"
    every = report["workloads"][0]["evaluate_every"] if report["workloads"] else 10
    notes = NOTES.format(repeats=report["settings"]["repeats"], memory=memory, every=every)
    return notes + account_lines(report["quiet"])
