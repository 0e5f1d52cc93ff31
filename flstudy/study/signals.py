"""Signals by which a terminal or a scheduler such as Slurm asks a process to stop, or to save what it has."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

SAVE = getattr(signal, "SIGUSR1", None)
"""Signal that `sbatch --signal=USR1@60` sends before the end; None on Windows."""


@contextlib.contextmanager
def handle_signals(handlers: Mapping[int | None, Callable[[], None]]) -> Iterator[None]:
    """Handle signals for a while; outside the main thread, where no signals arrive, nothing is changed."""
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


def raise_keyboard_interrupt() -> None:
    """Handle a signal as Ctrl-C."""
    raise KeyboardInterrupt
