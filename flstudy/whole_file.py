"""Files that a reader sees as a whole, the old one or the new one, whenever the writer ends."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path, *, shared: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of ``path`` at the end. Where the writing fails, nothing is left
    behind: half of a file would take room on a full disk.

    Args:
        path: of the file.
        shared: whether several may write it at once.
        durable: whether it is on the disk before it has its name, so that also a machine that stops leaves all of it.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp" if shared else f".{path.name}.tmp")
    try:
        yield hidden
        if durable:
            with hidden.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise
