"""The command: measure all workloads, print tables, write JSON."""

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flstudy.benchmark import hardware, tables
from flstudy.benchmark.options import Options, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns 0, or 1 if some executor failed.

    Raises:
        ValueError: for what the user can mend.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    device = hardware.device(options.accelerator)
    from flstudy.benchmark.measure import measure  # torch and lightning: after the options are known to be right

    start, only_json = time.perf_counter(), str(options.json) == "-"
    report: dict[str, Any] = {
        "schema": 1,
        "command": shlex.join(["flstudy", "bench", *given]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware.describe(device),
        "versions": hardware.versions(),
        "settings": settings(options, device),
        "load": [hardware.load()],
        "workloads": [],
    }
    color = sys.stdout.isatty()
    if not only_json:
        print(tables.heading(report), flush=True)
    with tempfile.TemporaryDirectory(prefix="flstudy-bench-", ignore_cleanup_errors=True) as cache:
        for place, name in enumerate(options.workloads):
            progress = Progress(start, place, len(options.workloads))
            report["workloads"].append(measure(name, options, device, cache, progress))
            progress.done()
            if not only_json:
                print(tables.workload_table(report["workloads"][-1], color), flush=True)
    report["load"].append(hardware.load())
    report["seconds"] = time.perf_counter() - start
    if only_json:
        print(json.dumps(report))
    else:
        print(f"{tables.notes(report)}\n{report['seconds']:.0f} s; {report['command']}")
        if options.json is not None:
            Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return int(any("error" in row for workload in report["workloads"] for row in workload["rows"]))


def settings(options: Options, device: str) -> dict[str, Any]:
    """How was measured."""
    names = ("threads", "repeats", "seconds", "seeds", "precision")
    return {"device": device, **{name: getattr(options, name) for name in names}}


class Progress:
    """One line on stderr: what is being measured, the time so far, and what is left of the workload."""

    def __init__(self, start: float, place: int, count: int) -> None:
        self.start, self.place, self.count = start, place, count

    def __call__(self, what: str, left: float | None) -> None:
        elapsed = int(time.perf_counter() - self.start)
        ahead = "" if left is None else f", about {left:.0f} s to go"
        text = f"[{elapsed // 60}:{elapsed % 60:02d}] workload {self.place + 1} of {self.count}, {what}{ahead}"
        tty = sys.stderr.isatty()
        print(f"\r\x1b[K{text}" if tty else text, end="" if tty else "\n", file=sys.stderr, flush=True)

    def done(self) -> None:
        """End the line."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
