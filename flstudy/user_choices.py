"""Choices of this user on this machine: lists of lines in $XDG_STATE_HOME/flstudy (~/.local/state/flstudy)."""

import contextlib
import os
from pathlib import Path


def read_choices(name: str) -> list[str]:
    """Return the lines of a list; none where it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _path(name).read_text(encoding="utf-8").splitlines()
    return []


def remember_choice(name: str, line: str) -> None:
    """Add a line to a list, unless it has it; where it cannot be written, the user has to choose again."""
    if line in read_choices(name) or "\n" in line:
        return
    path = _path(name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _path(name: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "flstudy" / name
