"""Options of ``flstudy reproduce``, parsed before anything heavy is imported."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from flstudy.config.shipped import config_folder


class ReproductionOptions(Namespace):
    """Parsed options of ``flstudy reproduce``."""

    paper: str | None
    worlds: list[str]
    stages: list[str]
    configs: Path
    out: Path | None
    write: bool
    options: str
    counterparts: bool


def reproduction_options(arguments: Sequence[str]) -> ReproductionOptions:
    """Parse a command line."""
    parser = ArgumentParser(
        prog="flstudy reproduce",
        description="Run the studies that reproduce a paper, resume those that stopped, and write their results beside "
        "the published ones.",
    )
    parser.add_argument("paper", nargs="?", help="Folder of tune_configs with a reproduction.yaml, such as flash.")
    parser.add_argument("--worlds", nargs="+", default=[], help="Worlds to run; default: all but those on request.")
    parser.add_argument("--stages", nargs="+", default=[], help="Stages to run: preset, tuned; default: both.")
    parser.add_argument("--configs", type=Path, default=config_folder(), help="Folder with the papers' folders.")
    parser.add_argument("--out", type=Path, default=None, help="Folder of the pages; default: PAPER/results.")
    parser.add_argument("--write", action="store_true", help="Run nothing, only write the pages again.")
    parser.add_argument(
        "--options", type=str, default="", help="Options for every study, such as '--study.folder big --rounds 10'."
    )
    parser.add_argument(
        "--counterparts",
        action="store_true",
        help="Run nothing, only write the page with the counterparts of all papers' tables and figures.",
    )
    return parser.parse_args(list(arguments), ReproductionOptions())
