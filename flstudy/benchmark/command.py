"""The command: its options, checked before anything heavy is imported; the machine; all workloads measured; tables and
JSON."""

import argparse
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flstudy import __version__
from flstudy.benchmark import tables
from flstudy.benchmark.gauge import BusyMachine, Gauge
from flstudy.config.errors import nearest

WORKLOADS = ("mlp", "mlp10", "synthetic", "synthetic3", "cnn", "lstm")
EXECUTORS = ("plain", "trainer", "sequential", "threads", "vectorized", "compiled")
ACCELERATORS = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


class BenchOptions(argparse.Namespace):
    """What to measure, and how long."""

    workloads: tuple[str, ...]
    executors: tuple[str, ...] | None  # None: those that make sense for each workload
    threads: int
    repeats: int
    seconds: float
    seeds: int | None  # None: the workload's
    accelerator: str
    precision: str
    busy: bool
    json: Path | None


def bench_options(arguments: Sequence[str] | None = None) -> BenchOptions:
    """The options of a command line.

    Raises:
        ValueError: for an unknown name or a value outside its domain.
    """
    parser = argparse.ArgumentParser(
        prog="flstudy bench", description="Time every executor beside a plain PyTorch loop, on standard workloads."
    )
    add, some = parser.add_argument, "some of {}; default: those that make sense for the workload"
    add("--workloads", nargs="+", default=WORKLOADS, metavar="NAME", help=f"some of {', '.join(WORKLOADS)}")
    add("--executors", nargs="+", metavar="NAME", help=some.format(", ".join(EXECUTORS)))
    add("--threads", type=int, default=cores(), help="torch threads of every process; default: all cores")
    add("--repeats", type=int, default=5, help="passes over all executors; figures are medians over them")
    add("--seconds", type=float, default=0.4, help="length of one executor's turn in a pass, at least one round")
    add("--seeds", type=int, help="seeds at once, instead of the workload's number")
    add("--accelerator", default="auto", metavar="NAME", help=f"one of {', '.join(ACCELERATORS)}")
    add("--precision", default="32-true", metavar="NAME", help=f"one of {', '.join(PRECISIONS)} (Lightning's names)")
    add("--busy", action="store_true", help="measure though others use the machine, and mark the rows; else it refuses")
    add("--json", type=Path, metavar="FILE", help="write everything measured; '-' prints it instead of the tables")
    given = parser.parse_args(arguments, BenchOptions())
    for kind, named, known in (
        ("workload", given.workloads, WORKLOADS),
        ("executor", given.executors or (), EXECUTORS),
        ("accelerator", [given.accelerator], ACCELERATORS),
        ("precision", [given.precision], PRECISIONS),
    ):
        for name in named:
            if name not in known:
                raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
    for kind in ("threads", "repeats", "seeds"):
        value = getattr(given, kind)
        if value is not None and value < 1:
            raise ValueError(f"--{kind} must be ≥ 1, got {value}")
    if not given.seconds > 0:
        raise ValueError(f"--seconds must be > 0, got {given.seconds}")
    if given.json is not None and str(given.json) != "-" and not given.json.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no folder {given.json.parent}; make it first")
    given.workloads = tuple(dict.fromkeys(given.workloads))  # each once
    given.executors = given.executors and tuple(name for name in EXECUTORS if name in given.executors)
    return given


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device(accelerator: str) -> str:
    """cpu or cuda.

    Raises:
        ValueError: if there is no GPU where one is asked for.
    """
    if accelerator == "cpu":
        return "cpu"
    import torch

    found = torch.cuda.is_available()
    if accelerator == "cuda" and not found:
        raise ValueError("--accelerator cuda: torch sees no GPU here; use --accelerator cpu")
    return "cuda" if found else "cpu"


def cpu() -> str:
    """The processor's name."""
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of Python and the packages that matter for speed."""
    packages = {name: version(name) for name in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "flstudy": __version__, **packages}


def busy() -> float | None:
    """Average number of busy processes over the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, 1 if some executor failed or a row is marked as disturbed, or 2 if the machine is busy.

    Raises:
        ValueError: for an option that cannot be used.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = bench_options(given)
    here = device(options.accelerator)
    gauge = Gauge(strict=not options.busy)
    try:
        gauge.check()  # before any work is done
        return run_workloads(given, options, here, gauge)
    except BusyMachine as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        gauge.end()


def run_workloads(given: Sequence[str], options: BenchOptions, here: str, gauge: Gauge) -> int:
    """All workloads, their tables and the JSON; what was measured before the machine became busy is kept."""
    import torch

    from flstudy.benchmark.measure import measure  # torch and lightning: after the options are known to be right

    start, only_json, tty = time.perf_counter(), str(options.json) == "-", sys.stderr.isatty()
    gpu = torch.cuda.get_device_name() if here == "cuda" else None
    report: dict[str, Any] = {
        "schema": 1,
        "command": shlex.join(["flstudy", "bench", *given]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"cpu": cpu(), "cores": cores(), "gpu": gpu},
        "versions": versions(),
        "settings": {"device": here, **{name: getattr(options, name) for name in tables.SETTINGS}},
        "load": [busy()],
        "workloads": [],
    }

    def progress(what: str, left: float | None) -> None:
        """One line on stderr: what is being measured, the time so far, and what is left of the workload."""
        elapsed, place = int(time.perf_counter() - start), len(report["workloads"]) + 1
        ahead = "" if left is None else f", about {left:.0f} s to go"
        text = f"[{elapsed // 60}:{elapsed % 60:02d}] workload {place} of {len(options.workloads)}, {what}{ahead}"
        print(f"\r\x1b[K{text}" if tty else text, end="" if tty else "\n", file=sys.stderr, flush=True)

    disturbed: BusyMachine | None = None
    if not only_json:
        print(tables.head_lines(report), flush=True)
    with tempfile.TemporaryDirectory(prefix="flstudy-bench-", ignore_cleanup_errors=True) as cache:
        for name in options.workloads:
            try:
                report["workloads"].append(measure(name, options, here, cache, progress, gauge))
            except BusyMachine as error:
                disturbed = error
                break
            print("\r\x1b[K" if tty else "", end="", file=sys.stderr, flush=True)
            if not only_json:
                print(tables.workload_table(report["workloads"][-1]), flush=True)
    report["load"].append(busy())
    report["quiet"] = gauge.account()
    report["seconds"] = time.perf_counter() - start
    if only_json:
        print(json.dumps(report))
    else:
        print(f"{tables.foot_lines(report)}\n{report['seconds']:.0f} s; {report['command']}")
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    if disturbed is not None:
        raise disturbed
    bad = (
        ("error",) if options.busy else ("error", "busy")
    )  # the loop's best may come after a block that was good enough
    return int(any(row.get(what) for workload in report["workloads"] for row in workload["rows"] for what in bad))
