"""Consent to the code of a study: its folder may be somebody else's, and so may be the classes that its config names.

To train a study, or to build its task, is to import the modules of its classes, which runs them. Studies that this user
began need no consent. Of any other one that names classes beside flstudy's, the user agrees to the code once with
``--trust``. That holds for the classes and the Python files as they are: a change of either has to be agreed to anew.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path
from typing import Any

from flstudy.config import ConfigError
from flstudy.config.composition import modules_of
from flstudy.config.reading import content_of, study_of_config, text_of
from flstudy.config.registry import by_module, may_name_class, texts_in
from flstudy.remote import cache_home
from flstudy.study.folder import StudyFolder
from flstudy.user_choices import read_choices, remember_choice

_BEGUN, _AGREED = "studies", "code"  # lists of this user's: studies with their modules' folders, and digests
_MOST_FILES, _MOST_BYTES = 1_000, 20 * 2**20


def remember_begun(folder: StudyFolder) -> None:
    """List a study as one that this user has begun, with the folder of its modules."""
    remember_choice(_BEGUN, _begun_line(folder, Path(folder.state()["modules"])))


def require_consent(folder: StudyFolder, modules: str | None, *, trust: bool = False) -> None:
    """Refuse a study whose config names code that this user neither began with nor agreed to.

    Args:
        folder: the study's.
        modules: the folder from which its classes would be imported; None: the current one.
        trust: whether the user agrees now.

    Raises:
        ConfigError: in one sentence, before anything is imported.
    """
    values = [content_of(folder.config, folder.read_config()), *(trial.overrides for trial in folder.read_trials())]
    _require(folder, values, Path(modules or "."), trust)


def require_consent_to_config(path: str | Path, *, trust: bool = False) -> None:
    """Refuse a config file of a study's folder as `require_consent` does; any other file is the user's own."""
    place = study_of_config(path)
    if place is not None:
        content = content_of(path, text_of(path))
        _require(StudyFolder(place), [content], Path(modules_of(path, (), content)), trust)


def _require(folder: StudyFolder, values: Iterable[Any], modules: Path, trust: bool) -> None:
    classes = named_classes(values, modules)
    if not classes or _begun_line(folder, modules) in read_choices(_BEGUN):
        return
    agreed = read_choices(_AGREED)
    if trust:
        remember_choice(_AGREED, code_digest(classes, modules))
    elif not agreed or code_digest(classes, modules) not in agreed:
        raise ConfigError(
            f"study {folder.name} would run code that you have not agreed to, {', '.join(classes[:3])}"
            f"{' and more' * (len(classes) > 3)} from {modules.resolve()}: read it, then give --trust"
        )
    # A compiled file of theirs may be of other code than the file beside it, which the user has read.
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(_bytecode())


def named_classes(values: Iterable[Any], modules: Path) -> list[str]:
    """Return the dotted paths among some values that may name classes beside flstudy's; nothing is imported.

    Args:
        values: of configs.
        modules: folder from which classes can be imported, too.
    """
    places, classes = [*sys.path, str(modules)], []
    for text in dict.fromkeys(text for part in values for text in texts_in(by_module(part))):
        if may_name_class(text):
            first = text.partition(".")[0]
            if first in sys.builtin_module_names or PathFinder.find_spec(first, places) is not None:
                classes.append(text)
    return classes


def code_digest(classes: Iterable[str], modules: Path) -> str:
    """Return a digest of names of classes and of all files in a folder, and below it, that can be imported.

    Raises:
        ConfigError: where these are too many to be read by anybody.
    """
    modules = modules.resolve()
    digest, size = hashlib.sha256("\n".join(sorted(classes)).encode()), 0
    for count, path in enumerate(_importable_files(modules), 1):
        content = path.read_bytes()
        size += len(content)
        if count > _MOST_FILES or size > _MOST_BYTES:
            raise ConfigError(
                f"modules must name a folder of at most {_MOST_FILES:,} Python files to be agreed to, got {modules}: "
                "put them into a folder of their own"
            )
        digest.update(f"\n{path.relative_to(modules)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _importable_files(modules: Path) -> Iterator[Path]:
    """Yield the files of a folder from which Python can import, but for those that it has compiled itself."""
    compiled = _bytecode()
    for place, folders, files in os.walk(modules):
        names = sorted(name for name in folders if name.isidentifier() and name != "__pycache__")
        folders[:] = [name for name in names if Path(place, name) != compiled]
        for path in (Path(place, name) for name in folders):
            if path.is_symlink():
                raise ConfigError(f"{path} must be no link, so that its code is what you have read: put a folder there")
        yield from (Path(place, name) for name in sorted(files) if name.endswith(tuple(all_suffixes())))


def _bytecode() -> Path:
    """Return the folder in which Python keeps what it compiles of agreed code, which may lie below that of the code."""
    return cache_home().resolve() / "bytecode"


def _begun_line(folder: StudyFolder, modules: Path) -> str:
    """Return the line of a study and of the folder from which its classes would be imported: a copy that somebody has
    changed may name another folder."""
    return f"{folder.state().get('study_id')} {modules.resolve()}"
