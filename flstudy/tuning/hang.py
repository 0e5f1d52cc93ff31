"""Ends a worker whose trial has stopped moving, and leaves behind where its threads stood."""

import faulthandler
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class HangWatch:
    """Ends this process if `beat` is not called in time.

    The clock is faulthandler's, a thread in C: it goes off even where Python's own threads stand still, as in a
    deadlock under the interpreter's lock. Ray then finds the worker dead, and the trial starts again or fails.

    Args:
        timeout_s: seconds between two beats; None watches nothing.
        path: where the traceback of every thread goes; the file is empty, or gone, where nothing hung.
    """

    def __init__(self, timeout_s: float | None, path: Path) -> None:
        self.timeout_s, self.path = timeout_s, path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        if self.timeout_s is not None:
            self._file = self.path.open("w")
            self.beat()
        return self

    def beat(self) -> None:
        """A sign of life."""
        if self._file is not None and self.timeout_s is not None:
            faulthandler.dump_traceback_later(self.timeout_s, exit=True, file=self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()
            self.path.unlink(missing_ok=True)
