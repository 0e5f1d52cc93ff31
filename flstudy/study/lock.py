"""The claim of one process to a study's folder, which the kernel takes back however that process dies.

The file ``lock`` is locked (flock) as long as a process drives the study or delivers it; Linux passes the lock on to an
NFS server, so that it also holds between machines. The file names its holder, which updates the modification time every
20 s. Another machine that the lock does not reach judges by this time whether the holder still runs. Where the disk
cannot lock at all, a process of the holder's machine judges by the process that the file names.
"""

import contextlib
import fcntl
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from flstudy.config import ConfigError

log = logging.getLogger(__name__)

BEAT_S, SILENT_S = 20.0, 60.0
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a folder of somebody else's may hold a link or a pipe instead


def _boot() -> str:
    """Return the id of this start of this machine; its name where the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def process_start(pid: int) -> str | None:
    """Return the start time of a process of this machine; None where there is none, empty where the system does not
    tell."""
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # somebody else's, so it is there
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # field 22, in ticks since the boot
    except (OSError, IndexError):
        return ""


@dataclass(frozen=True)
class Holder:
    """A process that holds a study's folder; its number alone would soon be another process's."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=platform.node)
    boot: str = field(default_factory=_boot)
    start: str = field(default_factory=lambda: process_start(os.getpid()) or "")
    since: float = field(default_factory=time.time)

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Return the holder that a lock file names, if it names one."""
        try:
            entry = cls(**json.loads(text))
            entry = cls(int(entry.pid), str(entry.host)[:64], str(entry.boot), str(entry.start), float(entry.since))
            return entry if str(entry).isprintable() else None
        except (ValueError, TypeError, OverflowError):
            return None

    @property
    def lives(self) -> bool:
        """True if the process still runs, asked on its own machine."""
        return self.pid > 0 and process_start(self.pid) == self.start

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        return f"process {self.pid} on {self.host} since {since}"


class FolderLock:
    """The lock of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def holder(self) -> Holder | None:
        """Return the process that holds the folder; None where none does."""
        try:
            file = os.open(self.path, os.O_RDONLY | _SAFE)
        except OSError:
            return None  # nobody has ever held it
        try:
            return self._holder(file, _try_lock(file, fcntl.LOCK_SH))
        finally:
            os.close(file)

    @contextlib.contextmanager
    def hold(self, study: str, refused: Callable[[str, Holder], str] | None = None) -> Iterator[None]:
        """Hold the folder.

        Args:
            study: the study's name; with ``refused``, the name of another folder, such as a data set's.
            refused: function that makes the message for a second process; None is `refusal`.

        Raises:
            ConfigError: where another process holds it; its number, machine and start are named.
        """
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | _SAFE, 0o644)
        except OSError as error:
            name = f"study {study}" if refused is None else study
            raise ConfigError(f"{name} cannot be locked: {self.path} ({error.strerror})") from error
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(file, over), daemon=True, name="lock")
        _forked.add(file)
        try:
            self._take(file, study, refused or refusal)
            beating.start()
            try:
                yield
            finally:
                over.set()
                beating.join()
                with contextlib.suppress(OSError):
                    os.ftruncate(file, 0)
                    fcntl.flock(file, fcntl.LOCK_UN)  # also of a process that was forked this moment
        finally:
            _forked.discard(file)
            os.close(file)

    def _take(self, file: int, study: str, refused: Callable[[str, Holder], str]) -> None:
        until = time.monotonic() + 1.0
        while (locked := _try_lock(file, fcntl.LOCK_EX)) is True and time.monotonic() < until:
            time.sleep(0.05)  # a reader that asks holds it for a moment
        other = self._holder(file, locked)
        me = Holder()
        if other is None:
            with contextlib.suppress(OSError):  # a full disk: the lock counts, the name is for others to read
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(asdict(me)).encode(), 0)
            if locked is None:
                log.warning("%s: this disk cannot lock, so two drivers are told apart by their processes", self.path)
                time.sleep(0.5)  # of two that came at once, the later one has its name in the file
                other = self._holder(file, None)
                other = None if other == me else other
        if other is not None:
            raise ConfigError(refused(study, other))

    @staticmethod
    def _holder(file: int, locked: bool | None) -> Holder | None:
        """Return the process that holds a folder; None where none does.

        A holder on another machine, which the lock may not reach, counts as long as it updates the file's time.

        Args:
            file: descriptor of the lock file.
            locked: the answer of `_try_lock`. True: another process has the lock. False: this process got it. None: the
                disk cannot lock, and a process of this machine that the file names counts as long as it lives.
        """
        holder = Holder.parse(os.pread(file, 4096, 0))
        if locked:
            return holder or Holder(pid=0, host="a machine unknown", boot="", since=os.fstat(file).st_mtime)
        if holder is None:
            return None
        if holder.boot == _boot():
            return holder if locked is None and holder.lives else None
        return holder if abs(time.time() - os.fstat(file).st_mtime) < SILENT_S else None

    @staticmethod
    def _beat(file: int, over: threading.Event) -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(file)


def refusal(study: str, other: Holder) -> str:
    """Return the sentence that refuses a study which another process holds."""
    later = "" if other.boot in ("", _boot()) else f", or try again in {SILENT_S:.0f} s if it is gone"
    return f"study {study} is running in {other}: wait for its end, or stop it there (Ctrl-C){later}"


def _try_lock(file: int, kind: int) -> bool | None:
    """Lock a file, and return whether another process holds it instead; None where the disk cannot lock."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # ENOLCK, ENOTSUP, ENOSYS, ...
        return None
    return False


_forked: set[int] = set()  # a forked process would keep the lock of a parent that is gone


def _close_in_fork() -> None:
    while _forked:
        os.close(_forked.pop())


os.register_at_fork(after_in_child=_close_in_fork)
