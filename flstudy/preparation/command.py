"""``flstudy data``: copy data sets into Federated Parquet, list the copies, and look at a population."""

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
HELP = """usage: flstudy data prepare NAME --source PATH [--to FOLDER] [--download] [--attributes FILE] [--KEY VALUE]
       flstudy data describe CONFIG|FOLDER [--to FILE.png] [--verify] [--json] [--KEY VALUE ...]
       flstudy data list [FOLDER] [--json]

prepare   copies a data set (flstudy list datasets) into a folder of Federated Parquet, from which runs map it;
          --KEY VALUE are its arguments (flstudy list datasets NAME); given again, it goes on where it was cut off
describe  draws the population of a config before anything trains, or tells what a prepared folder holds
list      the folders below data/prepared

A config names a prepared folder as
  dataset: {class_path: FederatedParquet, init_args: {path: data/prepared/NAME}}"""


def main(arguments: Sequence[str]) -> int:
    """``flstudy data``."""
    own = {"prepare": _prepare, "describe": _describe, "list": _list}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0 if arguments else 2
    verb, *rest = arguments
    if verb not in own:
        raise ConfigError(f"flstudy data knows no {verb!r}{nearest(verb, list(own))}")
    if any(flag in rest for flag in ("-h", "--help")):
        print(HELP)
        return 0
    return own[verb](list(rest))


class _Arguments(argparse.ArgumentParser):
    """Arguments of a verb; a mistake is one sentence, and what is unknown is left to others."""

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
    parser.add_argument("--to", type=Path)
    parser.add_argument("--attributes", type=Path)
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--json", action="store_true")
    given, options = parser.parse_known_args(arguments)
    dataset = named_dataset(given.name, given.source, options, download=given.download)
    target = given.to or PREPARED / given.name
    from flstudy.preparation.prepare import prepare

    started = time.monotonic()
    with _progress(given.name, quiet=given.json) as told:
        metadata, made = prepare(dataset, target, attributes=given.attributes, told=told)
    if given.json:
        print(json.dumps({**folder_summary(target), "made": made}, indent=2))
        return 0
    what = f"{metadata.examples:,} examples" + ("" if metadata.pooled else f" of {metadata.clients:,} clients")
    how = f"{size_text(sum(one['bytes'] for one in metadata.files.values()))} in {time.monotonic() - started:.0f} s"
    print(f"{target}: {what}, {how}" if made else f"{target}: {what}, prepared before from the same files")
    print(f"dataset: {{class_path: FederatedParquet, init_args: {{path: {target}}}}}")
    return 0


def named_dataset(name: str, source: Path | None, options: Sequence[str], *, download: bool = False) -> Any:
    """The data set of a name on files in a folder.

    Raises:
        ConfigError: for a name that there is not, a folder that is missing, or arguments that it does not take.
    """
    from flstudy.config.objects import chosen
    from flstudy.config.schema import class_names, config_schema
    from flstudy.config.values import check_value, pairs

    known = [one for one in class_names("population.dataset") if one != "FederatedParquet"]
    if name not in known:
        raise ConfigError(f"flstudy data prepare knows no data set {name!r}{nearest(name, known)}")
    fields = config_schema()["$defs"][name]["properties"]
    given: dict[str, Any] = dict(pairs(options))
    if source is not None:
        if not source.exists() and not download:
            raise ConfigError(f"--source: there is no {str(source)!r}: {fetching(name)}")
        if "file" in fields and source.is_file():
            given |= {"root": str(source.parent), "file": source.name}
        else:
            given["root"] = str(source)
    if "root" not in fields:
        raise ConfigError(
            f"{name} is not read from files, so there is nothing to prepare: name it in a config as it is"
        )
    if download:
        if "download" not in fields:
            raise ConfigError(f"--download: no library fetches {name}: {fetching(name)}")
        given["download"] = True
    node = config_schema()["$defs"]["Population"]["properties"]["dataset"]
    value = check_value("dataset", {"class_path": name, "init_args": given}, node)
    return chosen("dataset", value)


def fetching(name: str) -> str:
    """What to fetch for a data set, and where to put it."""
    from flstudy.population import Dataset
    from flstudy.population.datasets.base import FileDataset
    from flstudy.registry import named

    kind = named(Dataset)[name]
    with contextlib.suppress(TypeError, ValueError, ImportError):
        one = kind()
        if isinstance(one, FileDataset):
            return one.remedy.replace("root", "--source")
    return "give the file or folder that holds it"


@contextlib.contextmanager
def _progress(name: str, *, quiet: bool = False) -> Iterator[Any]:
    """A bar with the time that is left, or a line now and then where the output is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stages: dict[str, Any] = {}
    said = time.monotonic()
    begun: dict[str, tuple[float, int]] = {}
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:

        def told(stage: str, done: int, all_: int) -> None:
            nonlocal said
            if stage not in stages:
                stages[stage] = bar.add_task(f"{name}: {stage}", total=all_)
                begun[stage] = time.monotonic(), done
            bar.update(stages[stage], completed=done, total=all_)
            now, (first, before) = time.monotonic(), begun[stage]
            if not quiet and not console.is_terminal and now - said > 20 and done > before:
                said = now
                left = (now - first) / (done - before) * (all_ - done)
                print(f"{name}: {stage} {done:,}/{all_:,}  {left:.0f} s left", file=sys.stderr)

        yield told


# ---- list and describe -------------------------------------------------------------------------------------------


def folder_summary(folder: Path) -> dict[str, Any]:
    """What a prepared folder holds, for scripts; of a damaged one why it cannot be opened."""
    from flstudy.population.datasets.federated import read_metadata

    try:
        found = read_metadata(folder)
    except ValueError as error:
        return {"path": str(folder), "damage": str(error)}
    return {
        "path": str(folder),
        "name": found.name,
        "task": found.task,
        "licence": found.licence,
        "examples": found.examples,
        "clients": found.clients,
        "classes": found.classes,
        "shape": list(found.shape),
        "bytes": sum(one["bytes"] for one in found.files.values()),
    }


def size_text(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:,.1f} GB"


def _list(arguments: list[str]) -> int:
    parser = _Arguments("list")
    parser.add_argument("folder", nargs="?", type=Path, default=PREPARED)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    from flstudy.population.datasets.federated import METADATA
    from flstudy.reporting.report import terminal
    from flstudy.reporting.tables import Cells

    folders = sorted(path.parent for path in given.folder.glob(f"*/{METADATA}") if not path.parent.name.startswith("."))
    entries = [folder_summary(folder) for folder in folders]
    waiting = [path.name[1:].removesuffix(".preparing") for path in sorted(given.folder.glob(".*.preparing"))]
    if given.json:
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
        terminal().print(Cells.from_columns(f"Prepared in {given.folder}", columns, words=(0, 1, 5)).rich())
    for entry in entries:
        if "damage" in entry:
            print(entry["damage"], file=sys.stderr)
    for name in waiting:
        print(f"{name}: its preparation was cut off, or is under way; the same command goes on")
    if not entries and not waiting:
        print(f"{given.folder} holds no prepared data set yet: see flstudy data --help, flstudy list datasets")
    return 0


def _describe(arguments: list[str]) -> int:
    parser = _Arguments("describe")
    parser.add_argument("what")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--json", action="store_true")
    given, options = parser.parse_known_args(arguments)
    if Path(given.what).is_dir():
        if options:
            raise ConfigError(f"flstudy data describe: {options[0]} is for a config, not for a folder: leave it out")
        return _describe_folder(Path(given.what), verify=given.verify, as_json=given.json)
    if given.to is not None and (given.to.suffix != ".png" or not given.to.absolute().parent.is_dir()):
        raise ConfigError(f"--to must be a .png file in a folder that exists, got {str(given.to)!r}")
    from flstudy.config.values import quick_check

    quick_check(given.what, options)
    from flstudy.config.config import load
    from flstudy.preparation.picture import portrait, portrait_cells, portrait_figure
    from flstudy.reporting.report import terminal
    from flstudy.reporting.style import to_png

    found = portrait(load(given.what, options=options))
    path = to_png(portrait_figure(found), given.to or Path(f"{Path(given.what).stem}-population.png"))
    if given.json:
        print(json.dumps({**found.to_json(), "figure": str(path)}, indent=2))
        return 0
    for cells in portrait_cells(found):
        terminal().print(cells.rich())
    print(path)
    return 0


def _describe_folder(folder: Path, *, verify: bool, as_json: bool) -> int:
    import numpy as np

    from flstudy.population.datasets import federated
    from flstudy.reporting.report import terminal
    from flstudy.reporting.tables import Cells

    metadata = federated.read_metadata(folder)
    table = federated.read_clients(folder, metadata)
    if verify:
        whole = sum(one["bytes"] for one in metadata.files.values())
        with _progress(metadata.name, quiet=as_json) as told:
            federated.verify(folder, metadata, lambda done: told("bytes", done, whole))
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
        "examples of a client": " / ".join(f"{one:,.0f}" for one in spread) + " (least, median, most)"
        if spread
        else "–",
        "attributes of clients": ", ".join(table.attributes) or "–",
        "splits": "its own" if metadata.splits else "by the population's shares",
        "disk": size_text(entry["bytes"]),
        "licence": metadata.licence,
        "checksums": "all bytes read and right" if verify else "of the table of clients right; --verify reads all",
    }
    cells = Cells.from_columns(str(folder), {"": list(rows), " ": list(rows.values())}, words=(0, 1))
    terminal().print(cells.rich())
    return 0
