"""Calls of MLflow's client that are made of several, or that several make."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.tracking.store import Store

FILES = "flstudy.files"  # tag of a study's run: digests of the files that it has
METRICS_PER_CALL = 1000  # the most that log_batch takes
_PARAMS_PER_CALL = 100


def log_params(store: Store, run_id: str, params: Mapping[str, Any]) -> None:
    """Any number of parameters."""
    from mlflow.entities import Param

    for batch in batches([Param(name, str(value)) for name, value in params.items()], _PARAMS_PER_CALL):
        store.client.log_batch(run_id, params=batch)


def log_tags(store: Store, run_id: str, tags: Mapping[str, str]) -> None:
    """At most 100 tags in one call."""
    from mlflow.entities import RunTag

    if tags:
        store.client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def log_files(store: Store, run_id: str, folder: Path) -> int:
    """The list of trials and the report of a study's folder as artifacts; returns how many were new or changed."""
    known = json.loads(store.client.get_run(run_id).data.tags.get(FILES, "{}"))
    found = {path: "report" for path in sorted((folder / "report").glob("*")) if path.is_file()}
    found |= {path: "" for path in [folder / "trials.jsonl"] if path.is_file()}
    digests = {
        f"{place}/{path.name}".lstrip("/"): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path, place in found.items()
    }
    changed = 0
    for (path, place), (name, digest) in zip(found.items(), digests.items(), strict=True):
        if known.get(name) != digest:
            store.client.log_artifact(run_id, str(path), place or None)
            changed += 1
    if changed:
        store.client.set_tag(run_id, FILES, json.dumps(digests))
    return changed


def batches(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """The items in order, at most ``size`` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def refused(error: Exception) -> bool:
    """Whether MLflow answered, and will answer the same again."""
    return getattr(error, "error_code", "") in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def line(error: Exception) -> str:
    """An error in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
