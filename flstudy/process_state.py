"""State that all threads of a process share: random numbers of torch, numpy and Python, torch's default type and its
number of threads, the levels of its loggers, and the folders from which it imports."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator

PROCESS_STATE = threading.RLock()
"""Lock of this state. Who sets it, or computes by it, holds the lock: runs in several threads give the bits that they
give one after another. The threads of one run do not ask for it, since their run waits for them and holds it."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def quiet_logger(name: str, level: int) -> Iterator[None]:
    """Keep back what a logger of that name tells below a level."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def import_path() -> list[str]:
    """Return the folders from which this process imports, for its workers."""
    return [os.path.abspath(folder) for folder in sys.path]
