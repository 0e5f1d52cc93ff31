"""The list of a study's trials on disk: trials.jsonl, an object per line, of which the last one of a trial counts."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The trials of a trials.jsonl by number, each by its last line; none where there is no such file (yet).

    A last line without an end was cut off by a kill and counts for nothing.

    Raises:
        ValueError: for any other line that is no JSON object with a trial's number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            entry = json.loads(line)
            entry |= {"trial": entry["number"], "of": entry["confirms"], "ended_at": entry["ended"]}
            found[int(entry["trial"])] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}, must be a trial, got {line.strip()[:60]!r}: {error}") from error
    return [found[number] for number in sorted(found)]


def write_entries(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """All trials, a line each; a reader sees the old list or the new one."""
    hidden = path.with_suffix(".tmp")
    names = ("trial", "of", "ended_at")
    plain = ({name: value for name, value in entry.items() if name not in names} for entry in entries)
    hidden.write_text("".join(json.dumps(entry) + "\n" for entry in plain), encoding="utf-8")
    os.replace(hidden, path)
