"""Threads that torch's own operations take on a CPU: one while a small model trains, unless the user has set a number.

An operation on a small tensor is done before a second thread has begun, and threads that wait for work spin on the
cores that others need. Parts of a round that run side by side keep all cores: each of them is one thread.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final

import torch

from flstudy.process_state import usable_cores

SMALL: Final = 2**14
"""Most parameters of a model that trains on one thread (measured: docs/speed.md)."""
SET_BY: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number; one of them set, it holds."""
ONE_THREAD: Final = "The model is small: it trains on one of {threads} threads; OMP_NUM_THREADS={threads} gives it all"
"""Line for the user of a run that takes one thread."""


class Outside(threading.local):
    """Number of torch's threads outside of `one_thread`, by thread: torch keeps it by thread, too."""

    threads: int | None = None


_outside = Outside()


def threads_for_parts() -> int:
    """Return the number of threads on which parts of a round may run side by side."""
    return _outside.threads or torch.get_num_threads()


def is_users_own() -> bool:
    """Return whether torch's number of threads is another than the one that it takes by itself."""
    usual = {
        number // share for number in (os.cpu_count() or 1, usable_cores()) for share in (1, 2)
    }  # by cores, or by pairs of them
    return any(name in os.environ for name in SET_BY) or torch.get_num_threads() not in usual


def takes_one_thread(parameters: int) -> bool:
    """Return whether a model of so many parameters trains on one thread of several."""
    return parameters <= SMALL and torch.get_num_threads() > 1 and not is_users_own()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch's own operations take one thread, and remember how many there were."""
    before, outer = torch.get_num_threads(), _outside.threads
    _outside.threads = outer or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _outside.threads = outer
