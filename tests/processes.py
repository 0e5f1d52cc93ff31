"""Processes that tests start in numbers: forked from a server that has imported MLflow's store, which takes seconds,
once for all of them; and those that a process has."""

import multiprocessing
import os
from multiprocessing.context import ForkServerContext
from pathlib import Path


def store_writers() -> ForkServerContext:
    """A context whose processes find MLflow imported and share nothing else with their parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "flstudy.tracking.runs"])
    return context


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone
            continue
    members, before = {pid}, set()
    while members != before:
        before, members = members, members | {child for child, parent in parents.items() if parent in members}
    return members


def lane_actors() -> set[int]:
    """The actors of this process's Ray that train parts of rounds."""
    return {pid for pid in family(os.getpid()) if command(pid).startswith("ray::LaneActor")}


def command(pid: int) -> str:
    """What a process is; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
