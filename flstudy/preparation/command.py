"""The command ``flstudy data``: copy data sets into Federated Parquet, list the copies, and look at a population."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config import ConfigError
from flstudy.config.errors import nearest

PREPARED = Path("data/prepared")
HELP = """usage: flstudy data prepare NAME --source PATH [--to FOLDER|URI] [--download] [--attributes FILE] [--K V]
       flstudy data describe CONFIG|FOLDER|URI [--to FILE.png] [--verify] [--json] [--KEY VALUE ...]
       flstudy data list [FOLDER] [--json]

prepare   copies a data set (flstudy list datasets) into a folder of Federated Parquet, from which runs map it;
          --K V, key and value, are its arguments (flstudy list datasets NAME); given again, it goes on where it was
          cut off; a URI, such as s3://bucket/data/NAME, is a place that every node of a cluster reads
describe  draws the population of a config before anything trains, or tells what a prepared folder holds
list      the folders below data/prepared

A config names a prepared folder as
  dataset: {class_path: FederatedParquet, init_args: {path: data/prepared/NAME}}"""


def main(arguments: Sequence[str]) -> int:
    """Run ``flstudy data``."""
    verbs = {"prepare": _prepare, "describe": _describe, "list": _list}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0 if arguments else 2
    verb, *rest = arguments
    if verb not in verbs:
        raise ConfigError(f"flstudy data knows no {verb!r}{nearest(verb, list(verbs))}")
    if any(flag in rest for flag in ("-h", "--help")):
        print(HELP)
        return 0
    return verbs[verb](list(rest))


class _Arguments(argparse.ArgumentParser):
    """Parser of a verb's arguments: a mistake is one sentence, unknown arguments are left to others."""

    def __init__(self, verb: str) -> None:
        super().__init__(prog=f"flstudy data {verb}", allow_abbrev=False, add_help=False)

    def error(self, message: str) -> Any:
        """Refuse the arguments."""
        raise ConfigError(f"{self.prog}: {message}: see flstudy data --help")


# ---- prepare -----------------------------------------------------------------------------------------------------


def _prepare(arguments: list[str]) -> int:
    parser = _Arguments("prepare")
    parser.add_argument("name")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--to")
    parser.add_argument("--attributes", type=Path)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--json", action="store_true")
    args, options = parser.parse_known_args(arguments)
    dataset = named_dataset(args.name, args.source, options, download=args.download)
    target = args.to or str(PREPARED / args.name)
    from flstudy.preparation.prepare import check_target, deliver, prepare
    from flstudy.remote import cached_folder, is_uri

    folder = cached_folder("prepared", target) if is_uri(target) else Path(target)
    if is_uri(target):
        check_target(target)
    started = time.monotonic()
    with _progress(args.name, quiet=args.json) as report:
        metadata, written = prepare(dataset, folder, attributes=args.attributes, on_progress=report)
        if is_uri(target):
            written = deliver(folder, metadata, target, report)
    if args.json:
        print(json.dumps({**folder_summary(folder), "path": target, "made": written}, indent=2))
        return 0
    what = f"{metadata.examples:,} examples" + ("" if metadata.pooled else f" of {metadata.clients:,} clients")
    how = f"{size_text(sum(entry['bytes'] for entry in metadata.files.values()))} in {time.monotonic() - started:.0f} s"
    print(f"{target}: {what}, {how}" if written else f"{target}: {what}, prepared before from the same files")
    print(f"dataset: {{class_path: FederatedParquet, init_args: {{path: {target}}}}}")
    return 0


def named_dataset(name: str, source: Path | None, options: Sequence[str], *, download: bool = False) -> Any:
    """Return the data set of a name on files in a folder.

    Raises:
        ConfigError: for an unknown name, a folder that is missing, or arguments that the data set does not take.
    """
    from flstudy.config.objects import build_object
    from flstudy.config.reading import parse_options
    from flstudy.config.schema import class_names, config_schema
    from flstudy.config.values import check_value

    names = [kind for kind in class_names("population.dataset") if kind != "FederatedParquet"]
    if name not in names:
        raise ConfigError(f"flstudy data prepare knows no data set {name!r}{nearest(name, names)}")
    fields = config_schema()["$defs"][name]["properties"]
    init_args: dict[str, Any] = dict(parse_options(options))
    if source is not None:
        if not source.exists() and not download:
            raise ConfigError(f"--source: there is no {str(source)!r}: {fetching(name)}")
        if "file" in fields and source.is_file():
            init_args |= {"root": str(source.parent), "file": source.name}
        else:
            init_args["root"] = str(source)
    if "root" not in fields:
        raise ConfigError(
            f"{name} is not read from files, so there is nothing to prepare: name it in a config as it is"
        )
    if download:
        if "download" not in fields:
            raise ConfigError(f"--download: no library fetches {name}: {fetching(name)}")
        init_args["download"] = True
    node = config_schema()["$defs"]["Population"]["properties"]["dataset"]
    value = check_value("dataset", {"class_path": name, "init_args": init_args}, node)
    return build_object("dataset", value)


def fetching(name: str) -> str:
    """Return the advice for a data set: which files to fetch, and where to put them."""
    from flstudy.population import Dataset
    from flstudy.population.datasets.base import FileDataset
    from flstudy.registry import named

    kind = named(Dataset)[name]
    with contextlib.suppress(TypeError, ValueError, ImportError):
        dataset = kind()
        if isinstance(dataset, FileDataset):
            return dataset.remedy.replace("root", "--source")
    return "give the file or folder that holds it"


@contextlib.contextmanager
def _progress(name: str, *, quiet: bool = False) -> Iterator[Any]:
    """Progress bar with the time that is left, or a line now and then where the output is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stages: dict[str, Any] = {}
    last_line_s = time.monotonic()
    begun: dict[str, tuple[float, int]] = {}
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:

        def told(stage: str, done: int, all_: int) -> None:
            nonlocal last_line_s
            if stage not in stages:
                stages[stage] = bar.add_task(f"{name}: {stage}", total=all_)
                begun[stage] = time.monotonic(), done
            bar.update(stages[stage], completed=done, total=all_)
            now, (first, before) = time.monotonic(), begun[stage]
            if not quiet and not console.is_terminal and now - last_line_s > 20 and done > before:
                last_line_s = now
                left = (now - first) / (done - before) * (all_ - done)
                print(f"{name}: {stage} {done:,}/{all_:,}  {left:.0f} s left", file=sys.stderr)

        yield told


# ---- list and describe -------------------------------------------------------------------------------------------


def folder_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of a prepared folder, for scripts; of a damaged one the reason why it cannot be opened."""
    from flstudy.population.datasets.federated_format import read_metadata

    try:
        metadata = read_metadata(folder)
    except ValueError as error:
        return {"path": str(folder), "damage": str(error)}
    return {
        "path": str(folder),
        "name": metadata.name,
        "task": metadata.task,
        "licence": metadata.licence,
        "examples": metadata.examples,
        "clients": metadata.clients,
        "classes": metadata.classes,
        "shape": list(metadata.shape),
        "bytes": sum(entry["bytes"] for entry in metadata.files.values()),
    }


def size_text(count: float) -> str:
    """Return the bytes in a unit that people read, such as 1.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:,.1f} GB"


def _list(arguments: list[str]) -> int:
    parser = _Arguments("list")
    parser.add_argument("folder", nargs="?", type=Path, default=PREPARED)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    from flstudy.population.datasets.federated_format import METADATA
    from flstudy.reporting.report import terminal
    from flstudy.reporting.tables import Cells

    folders = sorted(path.parent for path in args.folder.glob(f"*/{METADATA}") if not path.parent.name.startswith("."))
    entries = [folder_summary(folder) for folder in folders]
    waiting = [path.name[1:].removesuffix(".preparing") for path in sorted(args.folder.glob(".*.preparing"))]
    if args.json:
        print(json.dumps({"prepared": entries, "cut off": waiting}, indent=2))
        return 0
    whole = [entry for entry in entries if "damage" not in entry]
    if whole:
        columns = {
            "folder": [Path(entry["path"]).name for entry in whole],
            "data set": [entry["name"] for entry in whole],
            "examples": [f"{entry['examples']:,}" for entry in whole],
            "clients": [f"{entry['clients']:,}" if entry["clients"] else "pooled" for entry in whole],
            "disk": [size_text(entry["bytes"]) for entry in whole],
            "licence": [entry["licence"] for entry in whole],
        }
        terminal().print(Cells.from_columns(f"Prepared in {args.folder}", columns, words=(0, 1, 5)))
    for entry in entries:
        if "damage" in entry:
            print(entry["damage"], file=sys.stderr)
    for name in waiting:
        print(f"{name}: its preparation was cut off, or is under way; the same command goes on")
    if not entries and not waiting:
        print(f"{args.folder} holds no prepared data set yet: see flstudy data --help, flstudy list datasets")
    return 0


def _describe(arguments: list[str]) -> int:
    parser = _Arguments("describe")
    parser.add_argument("what")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trust", action="store_true")
    args, options = parser.parse_known_args(arguments)
    from flstudy.population.datasets.on_node import copied_to_node
    from flstudy.remote import is_uri

    if is_uri(args.what) or Path(args.what).is_dir():
        if options:
            raise ConfigError(f"flstudy data describe: {options[0]} is for a config, not for a folder: leave it out")
        if is_uri(args.what) and args.verify:
            raise ConfigError("flstudy data describe: --verify is for a folder; of a URI all is verified when copied")
        folder = copied_to_node(args.what) if is_uri(args.what) else Path(args.what)
        return _describe_folder(folder, verify=args.verify, as_json=args.json)
    if args.to is not None and (args.to.suffix != ".png" or not args.to.absolute().parent.is_dir()):
        raise ConfigError(f"--to must be a .png file in a folder that exists, got {str(args.to)!r}")
    from flstudy.config.composition import quick_check

    quick_check(args.what, options)
    from flstudy.config.config import load
    from flstudy.preparation.picture import portrait, portrait_cells, portrait_figure
    from flstudy.reporting.report import terminal
    from flstudy.reporting.style import to_png
    from flstudy.study.consent import require_consent_to_config

    require_consent_to_config(args.what, trust=args.trust)
    drawn = portrait(load(args.what, options=options))
    path = to_png(portrait_figure(drawn), args.to or Path(f"{Path(args.what).stem}-population.png"))
    if args.json:
        print(json.dumps({**drawn.to_json(), "figure": str(path)}, indent=2))
        return 0
    for cells in portrait_cells(drawn):
        terminal().print(cells)
    print(path)
    return 0


def _describe_folder(folder: Path, *, verify: bool, as_json: bool) -> int:
    import numpy as np

    from flstudy.population.datasets import federated_format
    from flstudy.reporting.report import terminal
    from flstudy.reporting.tables import Cells

    metadata = federated_format.read_metadata(folder)
    table = federated_format.read_clients(folder, metadata)
    if verify:
        whole = sum(file["bytes"] for file in metadata.files.values())
        with _progress(metadata.name, quiet=as_json) as report:
            federated_format.verify(folder, metadata, lambda done: report("bytes", done, whole))
    sizes = table.ranges.counts.sum(1)
    spread = np.percentile(sizes, [0, 50, 100]).tolist() if len(sizes) else []
    if as_json:
        more: Mapping[str, Any] = {"examples_per_client": spread, "attributes": list(table.attributes)}
        print(json.dumps({**folder_summary(folder), **more, "verified": verify}, indent=2))
        return 0
    entry = folder_summary(folder)
    rows = {
        "data set": f"{metadata.name}, {metadata.task}",
        "examples": f"{metadata.examples:,} of {list(metadata.shape)}, kept as {metadata.x}",
        "classes": f"{metadata.classes}" if metadata.classes else "none",
        "clients": f"{metadata.clients:,}" if not metadata.pooled else "none: a partition divides them",
        "examples of a client": " / ".join(f"{quantile:,.0f}" for quantile in spread) + " (least, median, most)"
        if spread
        else "–",
        "attributes of clients": ", ".join(table.attributes) or "–",
        "splits": "its own" if metadata.splits else "by the population's shares",
        "disk": size_text(entry["bytes"]),
        "licence": metadata.licence,
        "checksums": "all bytes read and right" if verify else "of the table of clients right; --verify reads all",
    }
    cells = Cells.from_columns(str(folder), {"": list(rows), " ": list(rows.values())}, words=(0, 1))
    terminal().print(cells)
    return 0
