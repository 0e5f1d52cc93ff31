"""The user's own Python files, as they travel to the nodes of a cluster: in Ray's runtime environment.

Only files that end with .py travel. Files in hidden folders, virtual environments, installed packages and study folders
stay where they are, and so do data, results and credentials.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config import ConfigError
from flstudy.config.registry import named_modules

FOLDER = "flstudy_own_files"  # the one name that a node's other programs see of them
_MOST_BYTES = 20 * 2**20
_MOST_ENTRIES = 100_000  # of folders that are looked through


def named_user_modules(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules beside flstudy's of classes that a config's complete values name; they have been imported
    here."""
    return tuple(dict.fromkeys(name for name in named_modules(values) if name.partition(".")[0] != "flstudy"))


def any_imported_from(folder: Path, modules: tuple[str, ...]) -> bool:
    """Return whether one of these modules was imported from a folder."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return any(file is not None and Path(file).resolve().is_relative_to(folder.resolve()) for file in files)


def collect_files(folder: Path, into: Path) -> Path:
    """Copy a folder's Python files, with the folders between, below another one, and return the copy.

    Raises:
        ConfigError: where they are too many to travel.
    """
    place, size = into / FOLDER, 0
    place.mkdir(parents=True)
    for file in _python_files(folder):
        target = place / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        size += target.stat().st_size
        if size > _MOST_BYTES:
            raise _too_large_error(folder, f"{_MOST_BYTES >> 20} MiB of Python files")
    return place


def _python_files(folder: Path) -> Iterator[Path]:
    entries = 0
    for place, folders, files in os.walk(folder):
        entries += len(folders) + len(files)
        if entries > _MOST_ENTRIES:
            raise _too_large_error(folder, f"{_MOST_ENTRIES:,} files")
        here = Path(place)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in ("__pycache__", "node_modules", "site-packages")
            and not any((here / name / mark).exists() for mark in ("pyvenv.cfg", "state.json"))
        ]
        yield from (here / name for name in files if name.endswith(".py") and not name.startswith("."))


def _too_large_error(folder: Path, what: str) -> ConfigError:
    return ConfigError(
        f"modules must name a folder that can travel to the cluster's nodes, got {folder} with more than {what}: "
        "put your own modules into a folder of their own and name it there"
    )


def make_importable(folders: Sequence[str] = ()) -> None:
    """Make the user's modules importable in a worker; a file of the user's hides no package.

    Args:
        folders: of these modules, on nodes that see the folders; modules that have travelled come after them.
    """
    travelled = (os.path.join(place, FOLDER) for place in [*sys.path] if place)
    for place in [*folders, *filter(os.path.isdir, travelled)]:
        if place not in sys.path:
            sys.path.append(place)
