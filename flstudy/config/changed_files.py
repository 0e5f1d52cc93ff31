"""Modules in files beside a config, as they were imported: they are imported anew once a file has changed."""

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from flstudy.config.registry import by_module, texts_in

_imported: dict[str, tuple[str, str]] = {}
"""File and digest of users' own modules by name, as they were imported."""


def imported_files(value: Any, folder: str) -> dict[str, str]:
    """Return the modules that were imported from a config's folder, each with the digest of its file at that time.

    The result is empty where the config's values name no class in these modules.
    """
    modules = sys.modules.copy()  # at once: other threads import while this one looks
    named = {path.rpartition(".")[0] for path in texts_in(by_module(value))} & modules.keys()
    if all(name.partition(".")[0] == "flstudy" for name in named):
        return {}
    for name, module in modules.items():
        file, place = getattr(module, "__file__", None), os.path.join(folder, *name.split("."))
        if file not in (f"{place}.py", os.path.join(place, "__init__.py")) or name.partition(".")[0] == "flstudy":
            continue
        if name not in _imported or _imported[name][0] != file:
            _imported[name] = str(file), _digest(str(file))
    in_folder = {name: digest for name, (file, digest) in _imported.items() if Path(folder) in Path(file).parents}
    return in_folder if named & in_folder.keys() else {}


def forget_changed(modules: Mapping[str, str], digests: Mapping[str, str] | None = None) -> None:
    """Remove all these modules from ``sys.modules`` if the file of any has changed, so that they are imported anew.

    Args:
        modules: the result of `imported_files` in this process.
        digests: the result in the process that loaded the config; None: the digests of the files as they are now.
    """
    now = {name: _digest(_imported[name][0]) for name in modules} if digests is None else digests
    if all(now.get(name, digest) == digest for name, digest in modules.items()):
        return
    for name in modules:
        file, _ = _imported.pop(name)
        sys.modules.pop(name, None)
        # Python takes a compiled file for current whose source has the same size and second.
        Path(cache_from_source(file)).unlink(missing_ok=True)


def _digest(file: str) -> str:
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
