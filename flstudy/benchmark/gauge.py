"""Whether the machine is quiet while something is timed.

Beside every block two things are measured. The *foreign load*: cores that other processes, and other virtual machines
on the same hardware, took meanwhile (Linux's ``/proc``; None elsewhere). And the *loop*: a fixed amount of Python in a
process of its own, timed before and after the block; where it takes longer than at its best, so does the block. A
timing says something about speed only where both are small.

Needs the standard library alone: this file is also the script of the loop's process.
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

FOREIGN_CORES = 0.15  # more than this, and a moment is busy
SLOWER = 1.25  # so much more than the loop's best, and it is
ATTEMPTS = 4  # at a quiet moment, for each block
CHECK_S = 1.0  # of doing nothing before anything is timed
CHECKS = 5  # of them, should the first be busy
ROWS = 24  # of the loop's matrices: a product takes about a millisecond
PRODUCTS = 10
Result = TypeVar("Result")


class Quietness(NamedTuple):
    """How quiet it was beside a block."""

    foreign: float | None  # cores taken by others
    loop_s: float  # the slower one of the loops before and after

    def busy(self, best_s: float) -> bool:
        """Whether a timing of this moment says nothing about speed; ``best_s`` is the loop's best."""
        return (self.foreign or 0.0) > FOREIGN_CORES or self.loop_s > SLOWER * best_s

    def told(self, best_s: float) -> str:
        """The moment in words."""
        taken = "" if self.foreign is None else f"others take {self.foreign:.2f} cores (at most {FOREIGN_CORES}), "
        return f"{taken}a fixed loop takes {self.loop_s / best_s:.2f} × its best (at most {SLOWER})"


class BusyMachine(ValueError):
    """Others use the machine, so that nothing can be said of speed."""

    def __init__(self, moment: Quietness, best_s: float) -> None:
        super().__init__(
            f"a machine must be quiet to be timed, but {moment.told(best_s)}: "
            "stop the others or wait, or mark all with --busy"
        )


class Watched(NamedTuple, Generic[Result]):
    """A piece of work that was done, and its moment."""

    result: Result
    moment: Quietness


class Gauge:
    """Measures how quiet the machine is beside pieces of work; `end` it.

    Args:
        strict: whether a busy moment is refused; otherwise it is only noted.
        every_s: seconds between looks at this process's descendants while work is done, where they may end unseen and
            take their account with them; None looks before and after only.
    """

    def __init__(self, *, strict: bool, every_s: float | None = None) -> None:
        self.strict, self.every_s, self.moments = strict, every_s, list[Quietness]()
        command = [sys.executable, "-I", "-S", str(Path(__file__).absolute())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.best_s = float("inf")
        self.best_s = min(self.loop() for _ in range(5))

    def loop(self) -> float:
        """Seconds of the fixed loop, now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = float(self.process.stdout.readline())
        self.best_s = min(self.best_s, found)
        return found

    def beside(self, work: Callable[[], Result]) -> Watched[Result]:
        """Do the work, and see how quiet it was meanwhile."""
        before, account = self.loop(), Account(self.every_s)
        with account.open():
            result = work()
        moment = Quietness(account.foreign(), max(before, self.loop()))
        return Watched(result, moment)

    def check(self) -> Quietness:
        """Wait a second or a few for a quiet one.

        Raises:
            BusyMachine: if there is none, and the gauge is strict.
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
        """Do the work, and where others disturbed it once more after a while; the last time counts.

        Args:
            work: what is timed.
            attempts: at most so many; one where the gauge is not strict.
            pause_s: seconds before the second one, doubled before each further one.
            say: is told of a busy moment after which the work is done again.
            refused: whether a result says itself that it was disturbed.

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
        """All moments that count, as plain data."""
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
        """Let the loop's process go."""
        with contextlib.suppress(OSError):
            self.process.communicate("")


def account_lines(account: dict[str, Any]) -> str:
    """`Gauge.account` as the foot of a table."""
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
    """Cores that others take between `open` and its end."""

    def __init__(self, every_s: float | None) -> None:
        self.every_s, self.seen = every_s, dict[tuple[int, int], int]()
        self.seconds = self.others = 0.0
        self.known = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """While work is done."""
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
        """The cores; None where the system does not say."""
        return max(self.others / self.seconds, 0.0) if self.known and self.seconds else None


def busy_ticks() -> int | None:
    """Ticks in which the cores that this process may use did anything, or were taken by another virtual machine."""
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
    """Ticks used by this process and each of its living descendants, with those of their children that they buried;
    by the process's number and start."""
    parents, found = dict[int, int](), dict[int, tuple[int, int]]()
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for number in numbers:
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{number}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            parents[number], found[number] = int(fields[1]), (int(fields[19]), sum(map(int, fields[11:15])))
    mine = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {(number, found[number][0]): found[number][1] for number in mine if number in found}


def fixed_loop() -> float:
    """Seconds of some products of small matrices in plain Python."""
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
