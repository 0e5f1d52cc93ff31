"""Signals by which a terminal or a scheduler such as Slurm asks a process to stop, or to save what it has."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

SAVE = getattr(signal, "SIGUSR1", None)
"""What `sbatch --signal=USR1@60` sends before the end; None on Windows."""


@contextlib.contextmanager
def heeding(handlers: Mapping[int | None, Callable[[], None]]) -> Iterator[None]:
    """Handlers of signals for a while; in another thread than the main one, where no signals arrive, of none."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if number is not None:
                before[number] = signal.signal(number, partial(_call, handler))
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _call(handler: Callable[[], None], number: int, frame: FrameType | None) -> None:
    handler()


def as_ctrl_c() -> None:
    """A handler that does what Ctrl-C does."""
    raise KeyboardInterrupt
