"""``flstudy bench``: description of the machine, and the run over all workloads, with its tables and JSON."""

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
from flstudy.benchmark.options import BenchOptions, bench_options
from flstudy.process_state import usable_cores
from flstudy.user_error import UserError


def device(accelerator: str) -> str:
    """Resolve an accelerator to ``cpu`` or ``cuda``.

    Raises:
        UserError: if there is no GPU where one is asked for.
    """
    if accelerator == "cpu":
        return "cpu"
    import torch

    has_gpu = torch.cuda.is_available()
    if accelerator == "cuda" and not has_gpu:
        raise UserError("--accelerator cuda: torch sees no GPU here; use --accelerator cpu")
    return "cuda" if has_gpu else "cpu"


def cpu() -> str:
    """Return the name of the processor."""
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter for speed."""
    packages = {name: version(name) for name in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "flstudy": __version__, **packages}


def busy() -> float | None:
    """Load average over the last minute; None where the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the entry point; returns 0, 1 if an executor failed or a row is marked as disturbed, or 2 if the machine
    is busy.

    Raises:
        UserError: for an option that cannot be used.
    """
    typed_arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = bench_options(typed_arguments)
    here = device(options.accelerator)
    gauge = Gauge(strict=not options.busy)
    try:
        gauge.check()  # before any work is done
        return run_workloads(typed_arguments, options, here, gauge)
    except BusyMachine as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        gauge.end()


def run_workloads(names: Sequence[str], options: BenchOptions, here: str, gauge: Gauge) -> int:
    """Measure all workloads and write tables and JSON; results from before the machine became busy are kept."""
    import torch

    from flstudy.benchmark.measure import measure  # torch and lightning: after the options are known to be right

    start, only_json, tty = time.perf_counter(), str(options.json) == "-", sys.stderr.isatty()
    gpu = torch.cuda.get_device_name() if here == "cuda" else None
    report: dict[str, Any] = {
        "schema": 1,
        "command": shlex.join(["flstudy", "bench", *names]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"cpu": cpu(), "cores": usable_cores(), "gpu": gpu},
        "versions": versions(),
        "settings": {"device": here, **{name: getattr(options, name) for name in tables.SETTINGS}},
        "load": [busy()],
        "workloads": [],
    }

    def progress(what: str, left: float | None) -> None:
        """Print one line on stderr: what is being measured, the time so far, and the time left for the workload."""
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
