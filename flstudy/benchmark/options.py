"""The command's options, checked before anything heavy is imported."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flstudy.benchmark.workloads import EXECUTORS, WORKLOADS
from flstudy.config import nearest

ACCELERATORS = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


@dataclass(frozen=True)
class Options:
    """What to measure, and how long."""

    workloads: tuple[str, ...]
    executors: tuple[str, ...] | None  # None: those that make sense for each workload
    threads: int
    repeats: int
    seconds: float
    seeds: int | None  # None: the workload's
    accelerator: str
    precision: str
    json: Path | None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse(arguments: Sequence[str] | None = None, prog: str = "flstudy bench") -> Options:
    """The options of a command line.

    Raises:
        ValueError: for an unknown name or a value outside its domain.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description="Time every executor beside a plain PyTorch loop, on standard workloads."
    )
    add = parser.add_argument
    add("--workloads", nargs="+", default=list(WORKLOADS), metavar="NAME", help=f"some of {', '.join(WORKLOADS)}")
    add(
        "--executors",
        nargs="+",
        metavar="NAME",
        help=f"some of {', '.join(EXECUTORS)}; default: those that make sense for the workload",
    )
    add("--threads", type=int, default=cores(), help="torch threads of every process; default: all cores")
    add("--repeats", type=int, default=5, help="passes over all executors; figures are medians over them")
    add("--seconds", type=float, default=0.4, help="length of one executor's turn in a pass, at least one round")
    add("--seeds", type=int, help="seeds at once, instead of the workload's number")
    add("--accelerator", default="auto", metavar="NAME", help=f"one of {', '.join(ACCELERATORS)}")
    add("--precision", default="32-true", metavar="NAME", help=f"one of {', '.join(PRECISIONS)} (Lightning's names)")
    add("--json", type=Path, metavar="FILE", help="write everything measured; '-' prints it instead of the tables")
    found = parser.parse_args(arguments)
    names = {
        "workload": (found.workloads, tuple(WORKLOADS)),
        "executor": (found.executors or (), EXECUTORS),
        "accelerator": ([found.accelerator], ACCELERATORS),
        "precision": ([found.precision], PRECISIONS),
    }
    for kind, (given, known) in names.items():
        for name in given:
            if name not in known:
                raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
    for kind, value in {"threads": found.threads, "repeats": found.repeats, "seeds": found.seeds}.items():
        if value is not None and value < 1:
            raise ValueError(f"--{kind} must be ≥ 1, got {value}")
    if not found.seconds > 0:
        raise ValueError(f"--seconds must be > 0, got {found.seconds}")
    if found.json is not None and str(found.json) != "-" and not found.json.absolute().parent.is_dir():
        raise ValueError(f"--json: there is no folder {found.json.parent}; make it first")
    executors = None if found.executors is None else tuple(name for name in EXECUTORS if name in found.executors)
    return Options(
        **{
            **vars(found),
            "workloads": tuple(dict.fromkeys(found.workloads)),  # each once
            "executors": executors,
        }
    )
