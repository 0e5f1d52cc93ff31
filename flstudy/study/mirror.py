"""Mirror of a study's folder in a bucket, from which another machine can resume the study.

The bucket holds a study that can be resumed at every moment, whatever kills the driver. Files appear there whole, in
this order: records, the snapshots that follow them, and the list of trials, which tells of their ends. Files that the
list no longer needs are deleted last.

Files that have changed are therefore pinned first, in the opposite order. A pinned file is kept as it was at that
moment: by a hard link where files are replaced and never rewritten, else by reading its content.
"""

import contextlib
import glob
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from flstudy.config import ConfigError
from flstudy.remote import RemoteError, RemoteFolder
from flstudy.study.folder import StudyFolder
from flstudy.study.working_copy import AT_ONCE, WorkingCopy, is_content, stamp

PIN_ORDER = ("list", "snapshots", "records", "models", "rest")
"""The order in which kinds of files are pinned: files that a list or a snapshot refers to are pinned after it."""
SEND_ORDER = ("records", "models", "rest", "rows", "snapshots", "list")
"""The order in which kinds of files are sent: files that a list or a snapshot refers to are sent before it."""
_LOOK_S = 0.5  # between two looks at the list of trials
_LAST_S = 10.0  # for a bucket that is away to come back at the study's end
_ATTEMPTS = 5  # to pin files while trials write


class PinnedFile(NamedTuple):
    """A file as it was at one moment."""

    stamp: list[int]
    content: Path | bytes | None  # None: the bucket has it


class BucketMirror:
    """Mirror of one study in its bucket, while this process holds the study's folder.

    Args:
        folder: the study's.
        every_s: seconds from one sending to the next while no trial begins or ends.
        say: tells the user a line.
        halt: stops the study, with a sentence that says why, since the bucket takes nothing any more.

    Attributes:
        lacks: the reason why the bucket lacks a part of the study; None where it has all.
    """

    def __init__(
        self,
        folder: StudyFolder,
        every_s: float = 10.0,
        say: Callable[[str], object] = lambda line: None,
        halt: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        copy = WorkingCopy.at(folder.path)
        assert copy is not None, folder.path
        self.folder, self.copy, self.every_s, self.say, self.halt = folder, copy, every_s, say, halt
        self.lacks: str | None = "nothing was sent yet"
        self.sent_bytes = self.sent_files = 0
        self._pins = f".{folder.name}.sending-"
        for left in folder.path.parent.glob(f"{glob.escape(self._pins)}*"):  # by a driver that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._remote: RemoteFolder | None = None
        self._sent: dict[str, list[int] | None] = dict(copy.memo().get("sent", {}))
        self._over = threading.Event()
        self._stopped = self._away = False
        self._thread = threading.Thread(target=self._watch, daemon=True, name="mirror")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> bool:
        """Send the rest, waiting a while for a bucket that does not answer; returns whether it has all of the study."""
        if self._over.is_set():
            return self.lacks is None
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        until = time.monotonic() + _LAST_S
        while not self._stopped and not self._try_sending() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self.lacks is None

    # ---- in the background -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        seen, due = None, 0.0
        while not self._over.wait(_LOOK_S) and not self._stopped:
            with contextlib.suppress(FileNotFoundError):
                now = stamp(self.folder.trials)
                if (now != seen and not self._away) or time.monotonic() >= due:
                    self._try_sending()
                    seen, due = now, time.monotonic() + self.every_s

    def _try_sending(self) -> bool:
        """Send the changes, and return whether that succeeded.

        The user is told of a failure once; a lasting failure stops the study.
        """
        try:
            self.send()
        except ConfigError as error:
            self.lacks, self._stopped = str(error), True
            self.halt(self.lacks)
            return False
        except (RemoteError, OSError) as error:
            self.lacks = str(error)
            if isinstance(error, RemoteError) and error.lasting:
                self._stopped = True
                self.halt(f"{self.lacks}: mend it, then flstudy tune --resume {self.folder.name_or_uri}")
            elif not self._away:
                self._away = True
                self.say(f"{self.lacks}: the study goes on, and the bucket gets the rest when it is back")
            return False
        if self._away:
            self._away = False
            self.say(f"{self.folder.name_or_uri} has all of the study again")
        self.lacks = None
        return True

    # ---- sending -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send the files that have changed.

        Raises:
            RemoteError: of the bucket.
            ConfigError: where another driver has taken the study.
        """
        if self._remote is None:
            remote = RemoteFolder.open(self.copy.uri)
            self._sent |= {name: None for name in remote.files() if is_content(name) and name not in self._sent}
            self._remote = remote
        if not self.copy.is_held(self._remote):
            name, path = self.folder.name, str(self.folder.path)
            raise ConfigError(f"study {name} has another driver now, and what this one has done stays in", path)
        with tempfile.TemporaryDirectory(prefix=self._pins, dir=self.folder.path.parent) as place:
            files = self._pin_all(Path(place))
            changed = {name for name, file in files.items() if file.content is not None}
            gone = [name for name in self._sent if name not in files]
            try:
                self._begin_anew(changed)
                with ThreadPoolExecutor(AT_ONCE) as side_by_side:
                    for kind in SEND_ORDER:
                        names = [name for name in changed if file_kind(name) == kind]
                        list(side_by_side.map(lambda name: self._put(name, files[name]), names))
                    list(side_by_side.map(self._remove, gone))
            finally:
                if changed or gone:
                    self.copy.note(sent=self._sent)

    def _begin_anew(self, changed: set[str]) -> None:
        """Remove from the bucket records that begin anew, and before them the snapshot that followed them.

        The new parts have the names of the old ones, and would mix with them.
        """
        again = {name.split("/")[1] for name in changed if file_kind(name) == "records" and self._sent.get(name)}
        for records in again:
            self._remove(f"snapshots/{records.removesuffix('.parquet')}.ckpt")
            for name in [name for name in self._sent if name.startswith(f"records/{records}/")]:
                self._remove(name)

    def _put(self, name: str, file: PinnedFile) -> None:
        assert self._remote is not None
        assert file.content is not None
        self._remote.write(name, file.content)
        self._sent[name] = file.stamp
        self.sent_files += 1
        self.sent_bytes += file.stamp[0]

    def _remove(self, name: str) -> None:
        assert self._remote is not None
        if name in self._sent:
            self._remote.delete(name)
            del self._sent[name]

    # ---- pinning -----------------------------------------------------------------------------------------------------

    def _pin_all(self, place: Path) -> dict[str, PinnedFile]:
        """Pin the study's files in the order `PIN_ORDER`, and return them by name; only changed files have a content.

        The order keeps the files consistent with each other.
        """
        files: dict[str, PinnedFile] = {}
        for kind in PIN_ORDER:
            for attempt in range(_ATTEMPTS):
                links = place / f"{kind}-{attempt}"
                links.mkdir()
                try:
                    pinned = {name: self._pin(name, path, links) for name, path in self._files(kind)}
                    if kind == "snapshots" and any(
                        stamp(self.folder.path / name) != file.stamp
                        for name, file in pinned.items()
                        if file_kind(name) == kind
                    ):
                        continue  # rows that the new ones need may be missing
                    files |= pinned
                    break
                except FileNotFoundError:  # replaced or deleted this moment
                    continue
            else:  # the bucket keeps its files of this kind for now, and those that refer to them
                unchanged = PIN_ORDER[: PIN_ORDER.index(kind) + 1]
                files = {name: file for name, file in files.items() if pin_kind(name) not in unchanged}
                files |= {
                    name: PinnedFile(at, None) for name, at in self._sent.items() if at and pin_kind(name) in unchanged
                }
        return files

    def _files(self, kind: str) -> Iterator[tuple[str, Path]]:
        """Yield the files of a kind, snapshots before the rows that they need; FileNotFoundError where one goes
        meanwhile."""
        root = self.folder.path
        if kind in ("snapshots", "records", "models"):
            paths = sorted((root / kind).rglob("*"), key=lambda path: len(path.parts))
        elif kind == "list":
            paths = [self.folder.trials]
        else:
            folders = self.folder.report, self.folder.best, self.folder.inside("hyper_parameters")
            paths = [*root.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
        for path in paths:
            name = path.relative_to(root).as_posix()
            # `is_file` is silent about parts that were merged since they were listed; `stat` raises, and all are listed
            # again.
            if (
                is_content(name)
                and stat.S_ISREG(path.lstat().st_mode)
                and (kind != "rest" or file_kind(name) == "rest")
            ):
                yield name, path

    def _pin(self, name: str, path: Path, links: Path) -> PinnedFile:
        now = stamp(path)
        if self._sent.get(name) == now:
            return PinnedFile(now, None)
        if file_kind(name) in ("list", "rest"):  # they may grow, or be written over
            with path.open("rb") as file:
                return PinnedFile(now, file.read(now[0]))
        link = links / f"{len(os.listdir(links))}"
        try:
            os.link(path, link)
        except FileNotFoundError:
            raise
        except OSError:  # a disk without links
            shutil.copyfile(path, link)
        return PinnedFile(now, link)


def pin_kind(name: str) -> str:
    """Return the kind with which a file is pinned, one of `PIN_ORDER`."""
    kind = file_kind(name)
    return "snapshots" if kind == "rows" else kind


def file_kind(name: str) -> str:
    """Return the kind of a file, one of `SEND_ORDER`."""
    folder, deep, rest = name.partition("/")
    if not deep:
        return "list" if folder == "trials.jsonl" else "rest"
    if folder == "snapshots" and "/" in rest:
        return "rows"
    return folder if folder in SEND_ORDER else "rest"
