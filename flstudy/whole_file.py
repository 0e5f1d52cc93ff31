"""Files that a reader sees as a whole, the old one or the new one, whenever the writer ends."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path, *, shared: bool = False, durable: bool = False) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of ``path`` at the end: a link is replaced, not followed.

    Where the writing fails, nothing is left behind: half of a file would take room on a full disk.

    Args:
        path: of the file.
        shared: whether several may write it at once.
        durable: whether it is on the disk before it has its name, so that also a machine that stops leaves all of it.
    """
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp" if shared else f".{path.name}.tmp")
    try:
        hidden.unlink(missing_ok=True)  # of a writer that was killed; or a link, which would be followed
        yield hidden
        if durable:
            with hidden.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file as `whole_file` does."""
    with whole_file(path) as hidden:
        hidden.write_text(text, encoding="utf-8")
