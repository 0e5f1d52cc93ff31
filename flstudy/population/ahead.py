"""The next round's cohort, which a thread makes while a compiled program trains: it leaves Python's lock to others."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from typing import Generic, TypeVar

from flstudy.process_state import usable_cores

Made = TypeVar("Made")

_wanted: list[Callable[[], None]] = []  # calls that wait for a program that leaves Python


class Ahead(Generic[Made]):
    """Look-ahead for a pure function of the round: calls it for one round ahead where there is a core for it.

    The world is asked by one thread at a time: nobody else may ask it ``while_training``.
    """

    def __init__(self) -> None:
        self._next: tuple[int, Future[Made]] | None = None

    def __reduce__(self) -> tuple[type["Ahead[Made]"], tuple[()]]:
        """Return the recipe of a copy, which starts without a cohort that is made ahead."""
        return Ahead, ()

    def made(self, make: Callable[[int], Made], round: int) -> Made:
        """Return the result of ``make(round)``, with a round from 1, which may have been called meanwhile; an error of
        that call is raised here."""
        ready, self._next = self._next, None
        return ready[1].result() if ready is not None and ready[0] == round else make(round)

    @contextmanager
    def while_training(self, make: Callable[[int], Made], round: int | None) -> Iterator[None]:
        """Call ``make(round)`` as soon as a program leaves Python, unless there is no such round or it was made; wait
        for it at the end. Where all stays in Python, the two would only wait for each other."""
        if round is None or not has_second_core() or (self._next is not None and self._next[0] == round):
            yield
            return
        started = list[Future[Made]]()

        def start() -> None:
            started.append(planner(os.getpid()).submit(make, round))

        _wanted.append(start)
        try:
            yield
        finally:
            with suppress(ValueError):  # it was started
                _wanted.remove(start)
            wait(started)
        if started:
            self._next = round, started[0]


def leaves_python() -> None:
    """Start what waits for Python's lock; called by a thread that will not need the lock for a while."""
    with suppress(IndexError):  # another thread was faster
        while _wanted:
            _wanted.pop()()


@cache
def planner(process: int) -> ThreadPoolExecutor:
    """Return the planning thread of a process; a forked child has none of its parent's."""
    return ThreadPoolExecutor(1, "planner")


@cache
def has_second_core() -> bool:
    """Return whether this process may use more than one core."""
    return usable_cores() > 1
