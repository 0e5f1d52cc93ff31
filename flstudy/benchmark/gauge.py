"""Gauge of how quiet the machine is while something is timed.

Two things are measured beside every block. The *foreign load* is the number of cores that other processes, and other
virtual machines on the same hardware, used meanwhile (Linux's ``/proc``; None elsewhere). The *loop* is a fixed amount
of Python in a process of its own, timed before and after the block; where it takes longer than at its best, so does the
block. A timing says something about speed only where both are small.

This file needs the standard library alone, since it is also the script of the loop's process.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

FOREIGN_CORES = 0.15  # a moment with a larger foreign load is busy
SLOWER = 1.25  # and so is one whose loop takes more than this multiple of its best
ATTEMPTS = 4  # at a quiet moment, for each block
CHECK_S = 1.0  # seconds without work in which the machine is checked before anything is timed
CHECKS = 5  # attempts at such a second
ROWS = 24  # rows of the loop's matrices: a product takes about a millisecond
PRODUCTS = 10  # matrix products of the loop
Result = TypeVar("Result")


class Quietness(NamedTuple):
    """Quietness of the machine while a block ran."""

    foreign: float | None  # cores used by other processes
    loop_s: float  # seconds of the slower of the loops before and after

    def busy(self, best_s: float) -> bool:
        """Return whether a timing of this moment says nothing about speed; ``best_s`` are the seconds of the loop's
        best."""
        return (self.foreign or 0.0) > FOREIGN_CORES or self.loop_s > SLOWER * best_s

    def told(self, best_s: float) -> str:
        """Return the description of the moment for messages."""
        taken = "" if self.foreign is None else f"others take {self.foreign:.2f} cores (at most {FOREIGN_CORES}), "
        return f"{taken}a fixed loop takes {self.loop_s / best_s:.2f} × its best (at most {SLOWER})"


class BusyMachine(RuntimeError):
    """Error of a machine that other processes use, so that no timing on it is valid."""

    def __init__(self, moment: Quietness, best_s: float) -> None:
        super().__init__(
            f"a machine must be quiet to be timed, but {moment.told(best_s)}: "
            "stop the others or wait, or mark all with --busy"
        )


class Watched(NamedTuple, Generic[Result]):
    """Result of a piece of work, and how quiet the machine was meanwhile."""

    result: Result
    moment: Quietness


class Gauge:
    """Measures how quiet the machine is beside pieces of work. Call `end` when done.

    Args:
        strict: whether a busy moment is refused; otherwise it is only noted.
        every_s: seconds between readings of the CPU time of this process's descendants while work is done, lost
            when one ends between two readings; None reads before and after only.
    """

    def __init__(self, *, strict: bool, every_s: float | None = None) -> None:
        self.strict, self.every_s, self.moments = strict, every_s, list[Quietness]()
        command = [sys.executable, "-I", "-S", str(Path(__file__).absolute())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.best_s = float("inf")
        self.best_s = min(self.loop() for _ in range(5))

    def loop(self) -> float:
        """Time the fixed loop now, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds = float(self.process.stdout.readline())
        self.best_s = min(self.best_s, seconds)
        return seconds

    def beside(self, work: Callable[[], Result]) -> Watched[Result]:
        """Do the work, and measure how quiet the machine was meanwhile."""
        before, account = self.loop(), Account(self.every_s)
        with account.open():
            result = work()
        moment = Quietness(account.foreign(), max(before, self.loop()))
        return Watched(result, moment)

    def check(self) -> Quietness:
        """Wait for a quiet second, at most ``CHECKS`` times.

        Raises:
            BusyMachine: if no second was quiet, and the gauge is strict.
        """
        return self.quietly(lambda: time.sleep(CHECK_S), attempts=CHECKS, pause_s=CHECK_S).moment

    def quietly(
        self,
        work: Callable[[], Result],
        *,
        attempts: int = ATTEMPTS,
        pause_s: float = 2.0,
        say: Callable[[str], None] = lambda line: None,
        refused: Callable[[Result], bool] = lambda result: False,
    ) -> Watched[Result]:
        """Do the work, and repeat it after a pause where other processes disturbed it; the last time counts.

        Args:
            work: what is timed.
            attempts: largest number of attempts; 1 where the gauge is not strict.
            pause_s: seconds before the second attempt, doubled before each further one.
            say: called with a description of each busy moment.
            refused: whether a result reports that it was disturbed.

        Raises:
            BusyMachine: if no moment was quiet, and the gauge is strict.
        """
        for attempt in range(attempts if self.strict else 1):
            if attempt:
                time.sleep(pause_s * 2 ** (attempt - 1))
            done = self.beside(work)
            if not done.moment.busy(self.best_s) and not refused(done.result):
                break
            if self.strict:
                say(f"busy: {done.moment.told(self.best_s)}")
        else:
            if self.strict:
                raise BusyMachine(done.moment, self.best_s)
        self.moments.append(done.moment)
        return done

    def account(self) -> dict[str, Any]:
        """Return the summary of all moments that count, as plain data."""
        foreign = [moment.foreign for moment in self.moments if moment.foreign is not None]
        slower = sorted(moment.loop_s / self.best_s for moment in self.moments)
        return {
            "loop_best_ms": 1e3 * self.best_s,
            "loop_median": slower[len(slower) // 2] if slower else None,
            "loop_worst": slower[-1] if slower else None,
            "foreign_cores": max(foreign, default=None),
            "blocks": len(self.moments),
            "busy_blocks": sum(moment.busy(self.best_s) for moment in self.moments),
            "bounds": {"foreign_cores": FOREIGN_CORES, "loop": SLOWER},
        }

    def end(self) -> None:
        """Stop the loop's process."""
        with contextlib.suppress(OSError):
            self.process.communicate("")


def account_lines(account: dict[str, Any]) -> str:
    """Format `Gauge.account` as the foot of a table."""
    if account["loop_worst"] is None:
        return "nothing was timed\n"
    foreign, bounds = account["foreign_cores"], account["bounds"]
    others = "not known here" if foreign is None else f"at most {foreign:.2f} cores (bound {bounds['foreign_cores']})"
    return (
        f"taken by others beside a block: {others}; a fixed loop of {account['loop_best_ms']:.0f} ms took\n"
        f"{account['loop_median']:.2f} × its best (median), {account['loop_worst']:.2f} × at worst (bound "
        f"{bounds['loop']}); {account['busy_blocks']} of {account['blocks']} blocks were disturbed\n"
    )


class Account:
    """Account of the cores that other processes use between `open` and its end."""

    def __init__(self, every_s: float | None) -> None:
        self.every_s, self.seen = every_s, dict[tuple[int, int], int]()
        self.seconds = self.others = 0.0
        self.known = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the work is done."""
        busy, start = busy_ticks(), time.perf_counter()
        before = own_ticks()
        self.seen = dict(before)
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(over,), daemon=True) if self.every_s else None
        if looking is not None:
            looking.start()
        try:
            yield
        finally:
            over.set()
            if looking is not None:
                looking.join()
            self.seen.update(own_ticks())
            after, self.seconds = busy_ticks(), time.perf_counter() - start
            if busy is not None and after is not None:
                ours = sum(ticks - before.get(process, 0) for process, ticks in self.seen.items())
                self.others, self.known = (after - busy - ours) / os.sysconf("SC_CLK_TCK"), True

    def _look(self, over: threading.Event) -> None:
        while not over.wait(self.every_s):
            self.seen.update(own_ticks())

    def foreign(self) -> float | None:
        """Return the mean number of cores that other processes used; None where the system does not report it."""
        return max(self.others / self.seconds, 0.0) if self.known and self.seconds else None


def busy_ticks() -> int | None:
    """Return the ticks in which the cores that this process may use were busy, or were taken by another virtual
    machine."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    total = 0
    try:
        with open("/proc/stat") as file:
            for line in file:
                name, *ticks = line.split()
                if name in mine:
                    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
                    total += user + nice + system + irq + softirq + steal
    except (OSError, ValueError):
        return None
    return total or None


def own_ticks() -> dict[tuple[int, int], int]:
    """Return the ticks used by this process and each of its living descendants, with those of the children that it has
    waited for, by (process id, start time)."""
    parents, usage = dict[int, int](), dict[int, tuple[int, int]]()
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for number in numbers:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{number}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            parents[number], usage[number] = int(fields[1]), (int(fields[19]), sum(map(int, fields[11:15])))
    mine = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {(number, usage[number][0]): usage[number][1] for number in mine if number in usage}


def fixed_loop() -> float:
    """Time ``PRODUCTS`` products of small matrices in plain Python, in seconds."""
    rows = [[float(i * j % 7) for j in range(ROWS)] for i in range(ROWS)]
    start = time.perf_counter()
    for _ in range(PRODUCTS):
        columns = list(zip(*rows, strict=True))
        _ = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in rows]
    return time.perf_counter() - start


if __name__ == "__main__":
    for _ in sys.stdin:
        fixed_loop()  # a processor that slept wakes up
        print(fixed_loop(), flush=True)
