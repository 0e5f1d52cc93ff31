"""Storage of the states that schedulers pass from trial to trial, for nodes that share no folder.

Ray takes any file system of pyarrow's; this one sends each call to the study's writer.
"""

import time
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

_AGAIN_S = 30.0  # time for a killed writer to be started again


class WriterStorage(AbstractFileSystem):
    """File system of files that the study's writer keeps; every call may be made twice.

    Args:
        writer: Ray's handle of it.
    """

    protocol = "flstudy"
    cachable = False

    def __init__(self, writer: Any, **options: Any) -> None:
        super().__init__(**options)
        self.writer = writer

    def ask(self, what: str, path: str, *arguments: Any) -> Any:
        """Ask the writer about a path.

        Raises:
            OSError: as for a folder of this machine.
        """
        import ray

        until = time.monotonic() + _AGAIN_S
        while True:
            try:
                return ray.get(self.writer.storage.remote(what, path, *arguments))
            except ray.exceptions.RayActorError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def info(self, path: str, **named: Any) -> Any:
        return self.ask("info", path)

    def ls(self, path: str, detail: bool = True, **named: Any) -> Any:
        entries = self.ask("list", path)
        return entries if detail else [entry["name"] for entry in entries]

    def mkdir(self, path: str, create_parents: bool = True, **named: Any) -> None:
        self.ask("make", path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        self.ask("remove", path)

    def _open(self, path: str, mode: str = "rb", **named: Any) -> "WriterFile":
        return WriterFile(self, path, mode, cache_type="readahead")


class WriterFile(AbstractBufferedFile):
    """A file that is read and written in parts."""

    def _fetch_range(self, start: int, end: int) -> Any:
        return self.fs.ask("read", self.path, start, end)

    def _initiate_upload(self) -> None:
        """Do nothing before the first part."""

    def _upload_chunk(self, final: bool = False) -> bool:
        self.fs.ask("write", self.path, self.offset, self.buffer.getvalue())
        return True
