"""``flstudy reproduce``."""

import shlex
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from flstudy.config import ConfigError, nearest
from flstudy.reporting.report import terminal
from flstudy.reproduction.plan import read_plan
from flstudy.reproduction.stages import STAGES, configure, run_stage, stages
from flstudy.reproduction.writing import write


def main(arguments: Sequence[str]) -> int:
    """Parse, check everything, run what is not there yet, write the page."""
    parser = ArgumentParser(
        prog="flstudy reproduce",
        description="Run the studies that reproduce a paper, each once and on where it stopped, and write their "
        "results beside the published ones.",
    )
    parser.add_argument("paper", help="A folder of tune_configs with a reproduction.yaml, such as flash.")
    parser.add_argument("--worlds", nargs="+", default=[], help="Only these worlds of it; default: all.")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), help="preset, tuned; default: both.")
    parser.add_argument("--configs", type=Path, default=Path("tune_configs"), help="Where the papers' folders are.")
    parser.add_argument("--out", type=Path, default=None, help="Where the page goes; default: PAPER/results.")
    parser.add_argument("--write", action="store_true", help="Run nothing, only write the page anew.")
    parser.add_argument(
        "--options", type=str, default="", help="Options for every study, such as '--study.folder big --rounds 10'."
    )
    given = parser.parse_args(list(arguments))
    plan = read_plan(given.paper, given.configs)
    for said, known, what in (
        (given.worlds, [world.name for world in plan.worlds], "world"),
        (given.stages, list(STAGES), "stage"),
    ):
        for name in said:
            if name not in known:
                raise ConfigError(f"unknown {what} {name!r}{nearest(name, known)}")
    console, options = terminal(), shlex.split(given.options)
    asked = stages(plan, given.worlds, given.stages)
    configs = {stage: configure(plan, stage, options) for stage in asked}  # all of them, before the first one runs
    if not given.write:
        for checked in configs.values():
            checked.rehearse()  # a world that cannot be dealt out fails now, not after hours of others
        for stage in asked:
            run_stage(plan, stage, console, options)
    every = {**dict.fromkeys(stages(plan)), **configs}
    folders = {}
    for stage, config in every.items():
        folder = Path((config or configure(plan, stage, options)).study.folder) / stage.study(plan)
        if (folder / "trials.jsonl").is_file():
            folders[stage.world.name, stage.name] = folder
    if not folders:
        raise ConfigError(f"no study of {plan.name} is there yet: leave out --write")
    command = f"flstudy reproduce {shlex.join(argument for argument in arguments if argument != '--write')}"
    page = write(plan, folders, given.out or plan.folder / "results", command)
    console.print(f"Results: {page}", highlight=False)
    return 0
