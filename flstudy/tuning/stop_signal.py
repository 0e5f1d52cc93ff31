"""Stop signal of a study, by which its driver also asks running trials for snapshots: a file on the disk they share.

The file is there as long as the study goes on; its time of change asks for snapshots. Both take no room, so they work
on a disk that is full.
"""

import contextlib
import math
import os
import time
from enum import StrEnum
from pathlib import Path

LOOK_S = 0.25  # between two looks: rounds may take a millisecond, and the disk may be a network's


class Directive(StrEnum):
    """Answer to a running trial's look at its study: go on, save, stop or leave."""

    GO_ON = "go on"
    SAVE = "save"
    """Write a snapshot after this round."""
    STOP = "stop"
    """Write a snapshot after this round, which is the last one for now."""
    LEAVE = "leave"
    """Write a snapshot after this round, with which the trial goes on elsewhere: its worker or its node ends."""


class StopSignal:
    """Driver's side of the signal, to be made before the first trial starts.

    Clients of a network disk remember for a while that a file was missing.

    Raises:
        OSError: for a path that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._sent_at = path, math.nan
        path.touch()

    def ask_for_snapshots(self) -> None:
        """Ask for snapshots."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def send(self) -> None:
        """Stop the trials, each with a snapshot after its round."""
        if not self.is_sent:
            self._sent_at = time.monotonic()
            with contextlib.suppress(OSError):  # of a disk that is gone; Ray stops the trials then
                self.path.unlink(missing_ok=True)

    @property
    def is_sent(self) -> bool:
        return not math.isnan(self._sent_at)

    @property
    def sent_s(self) -> float:
        """Seconds since the signal was sent."""
        return time.monotonic() - self._sent_at


class Lookout:
    """Trial's side of the signal.

    Args:
        path: the signal's file; None: no signal ever comes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._looked = path, 0.0
        self._seen: int | None = 0
        self._seen = self._changed()

    def look(self, *, closely: bool = False) -> Directive:
        """Return the directive of the driver now; ``closely``: look even right after the last time."""
        if self._path is None or (not closely and time.monotonic() - self._looked < LOOK_S):
            return Directive.GO_ON
        self._looked, before = time.monotonic(), self._seen
        self._seen = self._changed()
        if self._seen is None:
            return Directive.STOP
        return Directive.GO_ON if self._seen == before else Directive.SAVE

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
