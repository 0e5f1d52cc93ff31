"""Nodes of a cluster: their versions and modules, checked before the first trial, and the nodes about to leave."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from flstudy.config import ConfigError
from flstudy.config.errors import on_a_line

_SOON_S = 20.0  # an idle node answers within three seconds
_ANSWER_S = 240.0  # a busy node answers late, and must not take trials unjudged; Ray itself tells of one that died
_LOOK_S = 5.0  # between two looks at a node
_PLACE_S = 1.0  # within which a node that takes trials takes a placement group
COMPARED = ("flstudy", "torch", "python")


class Node(NamedTuple):
    """Node of a cluster, with the facts that it tells of itself.

    Attributes:
        id: Ray's.
        address: of the machine.
        resources: that trials can have there, by Ray's names.
        facts: as `facts_here` makes them; empty where it did not answer.
        wrong: reason why it cannot take a trial, if it cannot.
    """

    id: str
    address: str
    resources: dict[str, float]
    facts: dict[str, Any]
    wrong: str | None


@functools.cache
def versions_here() -> dict[str, str]:
    """Return the versions that all nodes must share: flstudy's with a digest of its code, torch's, Python's."""
    return dict(facts_function()((), ())["versions"])


def facts_function() -> Callable[[Sequence[str], Sequence[str]], dict[str, Any]]:
    """Return a function that returns facts of the machine on which it runs.

    Its arguments are modules to import, and folders in which they lie. Ray sends a local function by value, so that it
    also runs on a node with another flstudy, or none.
    """

    def facts_here(modules: Sequence[str], folders: Sequence[str]) -> dict[str, Any]:
        import hashlib
        import importlib.metadata
        import importlib.util
        import os
        import platform
        import shutil
        import tempfile
        import time
        from pathlib import Path

        began = time.time()
        torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "none"
        package, version = importlib.util.find_spec("flstudy"), "none"
        if package is not None and package.origin is not None:
            root, digest = Path(package.origin).parent, hashlib.sha256()
            for file in sorted(root.rglob("*.py")):
                digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
            text = Path(package.origin).read_text()
            number = text.partition('__version__ = "')[2].partition('"')[0]
            version = f"{number} ({digest.hexdigest()[:8]})"
        failed = []
        for name in modules:
            try:
                importlib.import_module("flstudy.tuning.own_files").make_importable(folders)
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                failed.append(f"{name}: {type(error).__name__}: {error}")
        return {
            "versions": {"flstudy": version, "torch": torch.partition("+")[0], "python": platform.python_version()},
            "failed": failed,
            "compiler": shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"),
            "free": shutil.disk_usage(tempfile.gettempdir()).free,
            "clock": began,
        }

    return facts_here


def alive_nodes() -> list[Node]:
    """Return the cluster's nodes; those that have left are not among them."""
    import ray

    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"], {}, None)
        for node in ray.nodes()
        if node["Alive"]
    ]


def ask_nodes(
    modules: Sequence[str] = (), folders: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> Iterator[Node]:
    """Yield the nodes with their facts, one by one as they answer.

    Args:
        modules: that every node must be able to import.
        folders: of these modules, on nodes that see the folders.
        say: takes the line that names the nodes which do not answer soon.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    tell: Any = ray.remote(num_cpus=0, max_retries=0)(facts_function())
    answers, sent = [], time.time()
    for node in alive_nodes():
        affinity = NodeAffinitySchedulingStrategy(node.id, soft=False)
        answers.append((node, tell.options(scheduling_strategy=affinity).remote(modules, folders)))
    began, waiting = time.monotonic(), {answer: node for node, answer in answers}
    for limit in (_SOON_S, _ANSWER_S):
        while waiting:
            ready, _ = ray.wait([*waiting], timeout=max(0.0, began + limit - time.monotonic()))
            if not ready:
                break
            node, received = _take_answer(waiting.pop(ready[0]), ready[0]), time.time()
            if node.facts:  # the least by which the clocks differ
                clock = node.facts["clock"]
                node.facts["apart"] = max(0.0, sent - clock, clock - received)
            yield node
        if waiting and limit == _SOON_S:
            late = ", ".join(sorted(node.address for node in waiting.values()))
            say(f"waiting up to {_ANSWER_S:g} s for the answer of {late}")
    for node in waiting.values():
        yield node._replace(wrong=f"it did not answer within {_ANSWER_S:g} s")


def _take_answer(node: Node, answer: Any) -> Node:
    import ray

    try:
        facts = ray.get(answer)
    except ray.exceptions.RayError as error:
        return node._replace(wrong=on_a_line(str(error).strip().splitlines()[-1], 120))
    return node._replace(facts=facts, wrong=_wrong(facts))


def _wrong(facts: dict[str, Any]) -> str | None:
    here = versions_here()
    for name in COMPARED:
        if facts["versions"][name] != here[name]:
            return f"it has {name} {facts['versions'][name]}, and this machine {here[name]}"
    return f"it cannot import {on_a_line(facts['failed'][0], 160)}" if facts["failed"] else None


def check_nodes(modules: Sequence[str], folders: Sequence[str], say: Callable[[str], None]) -> None:
    """Compare the nodes of a cluster with this machine; say which of them do not answer.

    Raises:
        ConfigError: names the first node that has other versions or cannot import the user's modules.
    """
    for node in ask_nodes(modules, folders, say):
        if node.wrong is not None and node.facts:
            raise ConfigError(
                f"node {node.address} of the cluster cannot take trials: {node.wrong}: install the same there, or "
                "take it out of the cluster"
            )
        if node.wrong is not None:
            say(f"node {node.address}: {node.wrong}; its trials check it themselves")


# ---- nodes that are about to leave -----------------------------------------------------------------------------------


def takes_trials(address: str) -> bool:
    """Return whether Ray still places work on a machine's node, which it does not on a node that drains.

    The check starts no process. It takes milliseconds, or a second where the node drains.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{f"node:{address}": 0.001}])
    try:
        return bool(group.wait(_PLACE_S))
    finally:
        remove_placement_group(group)


@contextlib.contextmanager
def watch_nodes(hear: Callable[[list[str]], None]) -> Iterator[None]:
    """Tell, every few seconds, which nodes drain, as long as the block lasts.

    Args:
        hear: called with their ids, in another thread, whenever these have changed.
    """
    done = threading.Event()

    def look() -> None:
        import ray

        previous: list[str] = []
        while not done.wait(_LOOK_S):
            with contextlib.suppress(ray.exceptions.RayError):
                leaving = [node.id for node in alive_nodes() if not takes_trials(node.address)]
                if leaving != previous and not done.is_set():
                    previous = leaving
                    hear(leaving)

    thread = threading.Thread(target=look, name="ray_nodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_PLACE_S + _LOOK_S)
