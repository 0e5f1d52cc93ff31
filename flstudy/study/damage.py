"""Damaged files, by a disk, a copy or an edit: detected when they are read, and reported in a sentence."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flstudy.config import ConfigError

_OF_LIGHTNING = ("epoch", "loops", "state_dict")
_MOST_BYTES = 2**28  # of a text file of a study: a list of 100,000 trials
_DEEPEST = 50  # of nested values


class DamageError(ConfigError):
    """Error of a file that was whole once; the message names it and its damage."""


def reason_of(error: BaseException, longest: int = 80) -> str:
    """Return an error's first words, as part of a sentence."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


def checkpoint_damage(path: Path) -> str | None:
    """Return the description of a checkpoint's damage, naming the file; None where there is none. Nothing in it is
    executed."""
    from flstudy.federation.checkpoint import read_file

    try:
        content = read_file(path, mapped=True)  # mapped: only the pickle is read
    except ValueError as error:
        return str(error)
    if not isinstance(content, Mapping) or any(name not in content for name in _OF_LIGHTNING):
        return f"{path} is damaged (no {', '.join(_OF_LIGHTNING)})"
    return None


def read_bounded(path: Path) -> bytes:
    """Return the content of a study's text file.

    Raises:
        DamageError: for a file that is no regular one, such as a pipe, or larger than any that flstudy writes.
        OSError: where it cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise DamageError(f"{path} must be a file of at most {_MOST_BYTES >> 20} MiB")
        return file.read(_MOST_BYTES)


def parse_json(content: bytes | str) -> Any:
    """Return the value of a JSON text of a study.

    Raises:
        ValueError: for a text that is no JSON, or that nests values deeper than any that flstudy writes.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise DamageError(f"it must nest values at most {_DEEPEST} deep") from None
    waiting = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        if depth > _DEEPEST:
            raise DamageError(f"it must nest values at most {_DEEPEST} deep")
        children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        waiting += [(child, depth + 1) for child in children if isinstance(child, dict | list)]
    return value
