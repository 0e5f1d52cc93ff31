"""Shortages of the machine, whatever a study's trials do: a full disk, a disk that cannot be written to, no memory.

A trial that ends so is interrupted, not failed: a resumed study runs it again, from its last snapshot. Without its disk
a study stops; without memory for one trial it goes on with the others, since a trial's need may depend on its values.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flstudy.config import ConfigError
from flstudy.study.working_copy import home_of

if TYPE_CHECKING:
    from flstudy.config import Config


class DeniedError(Exception):
    """Raised for a resource that the machine denied the study's writer; the text is the sentence of `shortage`."""


MEMORY = "out of memory"
"""The sentence about a trial for which memory did not suffice."""
_DISK = {
    errno.ENOSPC: ("the disk of {} is full", "free space"),
    errno.EDQUOT: ("the quota on the disk of {} is used up", "free space"),
    errno.EROFS: ("{} is read-only", "make it writable"),
    errno.EACCES: ("{} must not be written", "make it writable"),
    errno.EIO: ("the disk of {} has errors", "mend or replace it"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE), ("{} is gone", "bring it back")),
}
_ITS_OWN = (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
"""Errors that a user's own code may also meet with its files: they count where they are about the study's folder."""
_ALLOCATORS = ("DefaultCPUAllocator: can't allocate memory", "CUDA out of memory", "not enough memory")
_TEXTS = 1 << 20  # bytes that the list of trials, the search's history and Ray's state of a small study may take
_RAY = 16 << 20  # bytes of Ray's logs and sockets


def shortage(error: BaseException, folder: Path | None = None) -> str | None:
    """Return the sentence on the resource that the machine denied, where that is the reason of an error; else None.

    Args:
        error: the exception; its causes count as well.
        folder: the study's.
    """
    for cause in _causes(error):
        if isinstance(cause, DeniedError):
            return str(cause)
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":  # torch's and Ray's
            return MEMORY
        if isinstance(cause, RuntimeError) and any(text in str(cause) for text in _ALLOCATORS):
            return MEMORY
        if isinstance(cause, OSError) and cause.errno in _DISK:
            if cause.errno in _ITS_OWN and not _is_about(cause, folder):
                continue
            return _DISK[cause.errno][0].format(_place(cause, folder))
    return None


def remedy(sentence: str) -> str:
    """Return the remedy for a shortage, by its sentence."""
    if sentence == MEMORY:
        return "run fewer trials at once (--study.concurrent)"
    return next(remedy for form, remedy in _DISK.values() if sentence.endswith(form.rpartition("{}")[2]))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_about(error: OSError, folder: Path | None) -> bool:
    if folder is None:
        return False
    inside = [path for path in _named(error) if folder in path.parents]
    if error.errno == errno.EACCES:
        return bool(inside)
    return not all(os.path.isdir(place) for place in (folder, *(path.parent for path in inside)))


def _named(error: OSError) -> list[Path]:
    """Return the files that an error names, the target of a copy first."""
    return [Path(name) for name in (error.filename2, error.filename) if isinstance(name, str)]


def _place(error: OSError, folder: Path | None) -> Path:
    """Return the folder that an error is about; the error of a write names no file, and then it is the one with the
    least room."""
    if folder is not None and error.errno in _ITS_OWN:
        return folder
    for path in _named(error):
        return folder if folder is not None and folder in path.parents else path.parent
    places = (folder, Path(tempfile.gettempdir()))
    return min((place for place in places if place is not None and place.is_dir()), key=_free)


@contextlib.contextmanager
def refuse_shortage() -> Iterator[None]:
    """Raise ConfigError with the sentence for a shortage while no trial can be lost."""
    try:
        yield
    except OSError as error:
        sentence = shortage(error)
        if sentence is None:
            raise
        raise ConfigError(f"{sentence}: {remedy(sentence)}") from error


# ---- before a study starts -------------------------------------------------------------------------------------------


def check_disks(config: "Config", folder: Path | None, store: Path | None) -> None:
    """Raise ConfigError, before Ray starts, for a disk without the room that a study needs at the very least.

    Args:
        config: the study's.
        folder: that of a resumed study; None: one will be made below ``study.folder``.
        store: MLflow's SQLite file; None where the store is somewhere else.
    """
    home = home_of(config.study.folder).absolute()
    needs = {f"study.folder {str(folder or home)!r}": (folder or home, _least(config))}
    if store is not None:
        values = config.rounds * (config.study.trials or 1) * len(config.seeds)  # of one metric
        needs[f"the store's folder {str(store.parent)!r}"] = store.parent, _TEXTS + 64 * values
    if not os.environ.get("RAY_ADDRESS"):
        temporary = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
        needs[f"Ray's temporary folder {str(temporary)!r} (RAY_TMPDIR)"] = temporary, _RAY
    disks = dict[int, int]()
    for name, (place, least) in needs.items():
        while not os.path.lexists(place):
            place = place.parent
        try:
            with tempfile.TemporaryFile(dir=place) as file:  # to the superuser alone, permissions say nothing
                file.write(bytes(4096))
                file.flush()
            disk = place.stat().st_dev
            free = _free(place)
        except OSError as error:
            raise ConfigError(f"{name} must be writable ({error.strerror}): mend it or give another one") from error
        disks[disk] = disks.get(disk, 0) + least
        if free < disks[disk]:
            raise ConfigError(
                f"{name} must have {disks[disk] / 1e6:.1f} MB free at least, got {free / 1e6:.1f} MB: free space "
                "or give another one"
            )


def _least(config: "Config") -> int:
    """Return the bytes that a study needs: snapshots of trials that run at once, kept models, a value per round and
    seed."""
    study, model = config.study, 4 * config.parameter_count
    trials = study.trials or 1
    at_once, models = min(trials, study.concurrent or 1), study.confirm.top if study.confirm.seeds else 1
    snapshots = 2 * at_once * len(config.seeds) * model  # the old one stays until the new one is there
    return _TEXTS + snapshots + models * model + 8 * trials * config.rounds * len(config.seeds)


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free
