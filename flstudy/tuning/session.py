"""The folder in which a Ray keeps its logs and sockets: it goes when the Ray that was started for a study ends.

The driver holds a lock on a file of its own there, which the kernel releases however the driver ends. What a driver
that was killed has left behind goes with the next study: a folder with such a file and no lock. Folders without one,
those of other users and those of clusters stay.
"""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_NAME = "flstudy.lock"


@contextlib.contextmanager
def owned_session(folder: Path) -> Iterator[None]:
    """Hold the folder of a Ray that was started here, and remove it in the end, when Ray is down."""
    hidden = folder / f"{_NAME}.tmp"
    with hidden.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hidden.rename(folder / _NAME)  # locked before anybody finds it
        try:
            yield
        finally:
            _remove(folder)


def sweep_sessions(home: Path) -> None:
    """Remove the folders of Rays whose drivers are dead."""
    for folder in home.glob("session_*"):
        with contextlib.suppress(OSError):  # another one sweeps, or holds it
            if _is_mine(folder, stat.S_ISDIR) and _is_mine(folder / _NAME, stat.S_ISREG):
                with (folder / _NAME).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)


def _is_mine(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether a path is of a kind, no link, and this user's."""
    found = path.lstat()
    return kind(found.st_mode) and found.st_uid == os.getuid()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.parent / "session_latest"
    with contextlib.suppress(OSError):
        if os.readlink(latest) == str(folder):
            latest.unlink()
