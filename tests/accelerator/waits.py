"""Moments in which the host waits for an accelerator, each with the line that asked for it."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

REPOSITORY = Path(__file__).parents[2]
OWN = {__file__, str(Path(__file__).with_name("pretended.py"))}  # nobody is to blame here


class Wait(NamedTuple):
    """One of them."""

    op: str
    site: str  # file:line of this repository, else of whatever library asked
    phase: str  # of the round; empty outside all of them


_waits: list[Wait] | None = None  # None: nobody watches
_phases: Mapping[CodeType, str] = {}


def frames() -> Iterator[FrameType]:
    """The call stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename not in OWN:
            yield frame
        frame = frame.f_back


def call_site() -> str:
    """The innermost line of this repository that led here, as file:line."""
    for frame in frames():
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(REPOSITORY) and "site-packages" not in path.parts:
            return f"{path.relative_to(REPOSITORY)}:{frame.f_lineno}"
    outer = next((frame for frame in frames() if "/torch/" not in frame.f_code.co_filename), None)
    return "a thread of torch" if outer is None else f"{outer.f_code.co_filename}:{outer.f_lineno}"


def note(op: str) -> None:
    """Count a wait, if somebody watches."""
    if _waits is not None:
        phase = next((_phases[frame.f_code] for frame in frames() if frame.f_code in _phases), "")
        _waits.append(Wait(op, call_site(), phase))


@contextmanager
def watching(phases: Mapping[Callable[..., Any], str] | None = None) -> Iterator[list[Wait]]:
    """All waits, in order: for the pretended device, which notes them itself, and for CUDA, which warns of them.

    Args:
        phases: what the parts of a round are called, by the functions that do them; the innermost counts.
    """
    global _waits, _phases
    _waits = waits = []
    _phases = {function.__code__: name for function, name in (phases or {}).items()}

    def note_synchronization(message: Any, *where: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            note(str(message))

    with warnings.catch_warnings():
        if torch.cuda.is_available():
            warnings.filterwarnings("always", message=".*synchronizing CUDA operation")
            warnings.showwarning = note_synchronization
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            _waits, _phases = None, {}
            if torch.cuda.is_available():
                torch.cuda.set_sync_debug_mode("default")


def check_waits(waits: list[Wait], most: int) -> None:
    """Raise AssertionError, naming the lines, if there are more than so many."""
    sites = sorted({f"{wait.site} ({wait.op})" for wait in waits})
    assert len(waits) <= most, f"the host waited {len(waits)} times for the device, not {most}: {'; '.join(sites)}"
