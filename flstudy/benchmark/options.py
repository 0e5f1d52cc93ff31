"""Options of ``flstudy bench``, checked before anything heavy is imported."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from flstudy.config.errors import nearest
from flstudy.process_state import usable_cores
from flstudy.user_error import UserError

WORKLOADS = ("mlp", "mlp10", "synthetic", "synthetic3", "cnn", "lstm")
EXECUTORS = ("plain", "trainer", "sequential", "threads", "vectorized", "compiled")
ACCELERATORS = ("auto", "cpu", "cuda")
PRECISIONS = ("32-true", "64-true", "bf16-mixed")


class BenchOptions(argparse.Namespace):
    """Options of ``flstudy bench``: what to measure, and how long."""

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
    """Parse and check a command line.

    Raises:
        UserError: for an unknown name or a value outside its domain.
    """
    parser = argparse.ArgumentParser(
        prog="flstudy bench", description="Time every executor beside a plain PyTorch loop, on standard workloads."
    )
    add, some = parser.add_argument, "any of {}; default: those that make sense for the workload"
    add("--workloads", nargs="+", default=WORKLOADS, metavar="NAME", help=f"any of {', '.join(WORKLOADS)}")
    add("--executors", nargs="+", metavar="NAME", help=some.format(", ".join(EXECUTORS)))
    add("--threads", type=int, default=usable_cores(), help="torch threads of every process; default: all cores")
    add("--repeats", type=int, default=5, help="passes over all executors; figures are medians over them")
    add("--seconds", type=float, default=0.4, help="length of one executor's turn in a pass, at least one round")
    add("--seeds", type=int, help="seeds at once, instead of the workload's number")
    add("--accelerator", default="auto", metavar="NAME", help=f"one of {', '.join(ACCELERATORS)}")
    add("--precision", default="32-true", metavar="NAME", help=f"one of {', '.join(PRECISIONS)} (Lightning's names)")
    add("--busy", action="store_true", help="measure though others use the machine, and mark the rows; else it refuses")
    add("--json", type=Path, metavar="FILE", help="write everything measured; '-' prints it instead of the tables")
    options = parser.parse_args(arguments, BenchOptions())
    for kind, named, choices in (
        ("workload", options.workloads, WORKLOADS),
        ("executor", options.executors or (), EXECUTORS),
        ("accelerator", [options.accelerator], ACCELERATORS),
        ("precision", [options.precision], PRECISIONS),
    ):
        for name in named:
            if name not in choices:
                raise UserError(f"unknown {kind} {name!r}{nearest(name, choices)}")
    for kind in ("threads", "repeats", "seeds"):
        value = getattr(options, kind)
        if value is not None and value < 1:
            raise UserError(f"--{kind} must be ≥ 1, got {value}")
    if not options.seconds > 0:
        raise UserError(f"--seconds must be > 0, got {options.seconds}")
    if options.json is not None and str(options.json) != "-" and not options.json.absolute().parent.is_dir():
        raise UserError(f"--json: there is no folder {options.json.parent}; make it first")
    options.workloads = tuple(dict.fromkeys(options.workloads))  # each once
    options.executors = options.executors and tuple(name for name in EXECUTORS if name in options.executors)
    return options
