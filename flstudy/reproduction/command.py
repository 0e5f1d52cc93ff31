"""``flstudy reproduce``: its options; what they ask for is imported afterwards."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from flstudy.config.shipped import config_folder


class ReproductionOptions(Namespace):
    """The parsed options."""

    paper: str | None
    worlds: list[str]
    stages: list[str]
    configs: Path
    out: Path | None
    write: bool
    options: str
    counterparts: bool


def main(arguments: Sequence[str]) -> int:
    """Parse, then reproduce."""
    parser = ArgumentParser(
        prog="flstudy reproduce",
        description="Run the studies that reproduce a paper, each once and on where it stopped, and write their "
        "results beside the published ones.",
    )
    parser.add_argument("paper", nargs="?", help="A folder of tune_configs with a reproduction.yaml, such as flash.")
    parser.add_argument("--worlds", nargs="+", default=[], help="Only these of it; default: all that need no files.")
    parser.add_argument("--stages", nargs="+", default=[], help="preset, tuned; default: both.")
    parser.add_argument("--configs", type=Path, default=config_folder(), help="Where the papers' folders are.")
    parser.add_argument("--out", type=Path, default=None, help="Where the page goes; default: PAPER/results.")
    parser.add_argument("--write", action="store_true", help="Run nothing, only write the page anew.")
    parser.add_argument(
        "--options", type=str, default="", help="Options for every study, such as '--study.folder big --rounds 10'."
    )
    parser.add_argument(
        "--counterparts",
        action="store_true",
        help="Run nothing, only write the page of all papers' tables and figures and what stands for them here.",
    )
    given = parser.parse_args(list(arguments), ReproductionOptions())
    from flstudy.reproduction.stages import reproduce  # seconds of imports

    return reproduce(given, arguments)
