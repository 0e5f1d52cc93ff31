"""Checks whether a machine, or a cluster, is ready for a study: every line is good, or says what to do.

Nothing is trained or written but a file for a moment, and Ray is started or joined as a study would.
"""

import argparse
import json
import os
import platform
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from flstudy.config import ConfigError, Resources

WIDTH = 80  # columns
_NAME = 14  # columns of a check's name
_PACKAGES = ("lightning", "ray", "optuna", "mlflow", "pyarrow")
_LEAST_FREE = 2**30  # bytes that a study may need of a disk, at the very least
_APART_S = 5.0  # difference of clocks that is allowed: times of MLflow and of the trials' list are compared


class Finding(NamedTuple):
    """Finding of a check: its name, whether all is good, and a sentence on what is there or what to do."""

    check: str
    good: bool
    text: str

    def lines(self) -> list[str]:
        """Return the finding in a page's columns."""
        head = f"{'good' if self.good else 'BAD':<5} {self.check:<{_NAME}}"
        if len(self.check) >= _NAME:
            head = f"{head} "
        return textwrap.wrap(f"{head}{self.text}", WIDTH, subsequent_indent=" " * (6 + _NAME), break_long_words=True)


def main(arguments: Sequence[str]) -> int:
    """Run ``flstudy doctor``; the exit status is 1 where something is bad."""
    parser = argparse.ArgumentParser(
        prog="flstudy doctor", description="Whether this machine, or a cluster, is ready for a study, and what to do."
    )
    parser.add_argument("--address", help="auto, HOST:PORT or ray://HOST:PORT of a Ray cluster; default: RAY_ADDRESS")
    parser.add_argument("--store", help="MLflow tracking URI; default: mlflow_tracking/")
    parser.add_argument("--folder", default="studies", help="where studies go, a path or s3://BUCKET/...")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    args = parser.parse_args(list(arguments))
    if args.address is not None:
        from flstudy.tuning.address import VARIABLE, check_address

        check_address(args.address)
        os.environ[VARIABLE] = args.address
    findings = []
    for finding in examine(args.store, args.folder):
        findings.append(finding)
        if not args.json:
            print(*finding.lines(), sep="\n", flush=True)
    if args.json:
        print(json.dumps([{"check": name, "good": good, "said": text} for name, good, text in findings], indent=2))
    return 0 if all(finding.good for finding in findings) else 1


def examine(store: str | None, folder: str) -> Iterator[Finding]:
    """Yield all findings, one by one as checks end.

    Args:
        store: MLflow's URI; None is the default one.
        folder: where studies go, by path or URI.
    """
    yield from (_python(), _packages(), *_attempt("torch", _torch), _compiler())
    yield from _attempt("folder", lambda: _folder(folder))
    yield from _attempt("store", lambda: _store(store))
    try:
        yield from _cluster()
    except ConfigError as error:
        yield Finding("Ray", False, str(error))


def _attempt(check: str, look: Callable[[], Finding]) -> Iterator[Finding]:
    """Yield the finding of a check, or the error that the check raised."""
    try:
        yield look()
    except (ValueError, OSError, ImportError) as error:
        yield Finding(check, False, str(error))


def _python() -> Finding:
    return Finding("Python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _packages() -> Finding:
    from flstudy.tuning.nodes import versions_here

    there, missing = [f"flstudy {versions_here()['flstudy']}"], []
    for name in _PACKAGES:
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("packages", False, f"{', '.join(missing)} missing: pip install 'flstudy[study]'")
    return Finding("packages", True, ", ".join(there))


def _torch() -> Finding:
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Finding("torch", True, f"{torch.__version__}, GPUs: {', '.join(gpus) or 'none'}")


def _compiler() -> Finding:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")  # as `has_compiler` looks
    if compiler is None:
        return Finding("compiler", False, "no g++ and no clang++, without which steps run eagerly: install g++")
    return Finding("compiler", True, compiler)


def _folder(folder: str) -> Finding:
    if "://" in folder:
        return _bucket(folder)
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Finding("folder", False, f"{place} cannot be written: mend it, or give another --folder")
    enough = free > _LEAST_FREE
    return Finding("folder", enough, f"{_gib(free)} free for {folder}{_unless(enough, 'free more')}")


def _bucket(uri: str) -> Finding:
    from flstudy.remote import RemoteFolder, shown_uri

    RemoteFolder.open(uri).check_writable()
    return Finding("bucket", True, f"{shown_uri(uri)} can be written")


def _store(store: str | None) -> Finding:
    from flstudy.tracking.store import check_store, for_people

    uri, _ = check_store(store)
    return Finding("store", True, for_people(uri))


def _cluster() -> Iterator[Finding]:
    """Yield the findings on Ray and its nodes."""
    from flstudy.tuning.address import cluster_address
    from flstudy.tuning.cluster import cluster
    from flstudy.tuning.nodes import ask_nodes

    address = cluster_address()
    with cluster(Resources(cpu=0.0)):
        door = "a Ray of this machine, which nobody else reaches" if address is None else f"the cluster at {address}"
        yield Finding("Ray", True, f"{door}, asks for a token" if os.environ.get("RAY_AUTH_MODE") else door)
        for node in sorted(ask_nodes(), key=lambda node: node.address):
            has = node.resources
            summary = f"{has.get('CPU', 0):g} cores, {has.get('GPU', 0):g} GPUs, {_gib(has.get('memory', 0))}"
            if node.wrong is not None:
                yield Finding(node.address, False, f"{node.wrong}: mend it, or take the node out of the cluster")
                continue
            free, apart = node.facts["free"], node.facts["apart"]
            bad = [
                *(["it has no C++ compiler: install g++"] if node.facts["compiler"] is None else []),
                *([f"{_gib(free)} of disk are free: free more"] if free < _LEAST_FREE else []),
                *([f"its clock differs by {apart:.0f} s: run a time service"] if apart > _APART_S else []),
            ]
            same = "same versions, clock within 5 s"
            yield Finding(node.address, not bad, "; ".join([summary, *(bad or [f"{_gib(free)} of disk, {same}"])]))


def _gib(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB"


def _unless(good: bool, remedy: str) -> str:
    return "" if good else f": {remedy}"
