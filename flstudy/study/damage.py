"""Damaged files, by a disk, a copy or an edit: detected when they are read, and reported in a sentence."""

from collections.abc import Mapping
from pathlib import Path

from flstudy.config import ConfigError

_OF_LIGHTNING = ("epoch", "loops", "state_dict")


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
