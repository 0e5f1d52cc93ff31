"""How a driver asks its running trials for a snapshot, or to stop with one: a file on the disk that they share.

The file is there as long as the study goes on; its time of change asks for snapshots. Both take no room, so they work
on a disk that is full.
"""

import contextlib
import math
import os
import time
from enum import StrEnum
from pathlib import Path

_LOOK_S = 0.25  # between two looks: rounds may take a millisecond, and the disk may be a network's


class Wish(StrEnum):
    """What a driver wants of a running trial."""

    GO_ON = "go on"
    SAVE = "save"
    """A snapshot after this round."""
    STOP = "stop"
    """A snapshot after this round, which is the last one for now."""


class Beacon:
    """The driver's side, made before the first trial starts: a network's disk forgets late that no file was there.

    Raises:
        OSError: for a path that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._out_at = path, math.nan
        path.touch()

    def ask(self) -> None:
        """Ask for snapshots."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def put_out(self) -> None:
        """Stop the trials."""
        if not self.is_out:
            self._out_at = time.monotonic()
            with contextlib.suppress(OSError):  # of a disk that is gone; Ray stops the trials then
                self.path.unlink(missing_ok=True)

    @property
    def is_out(self) -> bool:
        return not math.isnan(self._out_at)

    @property
    def out_s(self) -> float:
        """Seconds since it was put out."""
        return time.monotonic() - self._out_at


class Lookout:
    """A trial's side.

    Args:
        path: the beacon's; None sees none, and goes on.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._looked = path, 0.0
        self._seen: int | None = 0
        self._seen = self._changed()

    def look(self, *, closely: bool = False) -> Wish:
        """What is wanted now; ``closely``: also right after the last look."""
        if self._path is None or (not closely and time.monotonic() - self._looked < _LOOK_S):
            return Wish.GO_ON
        self._looked, before = time.monotonic(), self._seen
        self._seen = self._changed()
        if self._seen is None:
            return Wish.STOP
        return Wish.GO_ON if self._seen == before else Wish.SAVE

    def _changed(self) -> int | None:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:  # opening asks a network's server; its clients remember times for long
                return os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError:
            return self._seen  # the trial's own writes will meet what the disk has
