"""Working copy on this machine of a study's folder in a bucket, under this user's cache.

The driver of the study writes here, and `flstudy.study.mirror` sends the files to the bucket; a reader, or a driver on
another machine, copies them from there first. A memo beside the copy, .NAME.json, holds:

    token     token of this machine's latest lease of the study. As long as the bucket's lease has the same token, no
              other machine has driven the study since. This copy is then as new as the bucket's files or newer
    asked     token of a lease that this machine has asked for and does not hold yet
    stale     whether the bucket's files were newer when that lease was asked for
    sent      each file of the bucket as this machine has sent it: size, time of change in ns
    fetched   each file as it was copied from there: size, time by the store's clock
    driver    the process that held the lease when it was last read; seen: the time of that
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from flstudy.config import ConfigError
from flstudy.remote import RemoteError, RemoteFile, RemoteFolder, cached_folder, child_uri, is_uri, shown_uri, split_uri
from flstudy.study.lease import CLAIMS, LEASE, Lease, is_gone
from flstudy.study.lock import SILENT_S, Holder
from flstudy.whole_file import whole_file

AT_ONCE = 8  # files under way
_URI = ".uri"  # in the folder of a bucket's working copies
_ATTEMPTS = 5  # to list and read what somebody else writes meanwhile
_TICK_S = 2.0  # stores show times to the second: a file may change once more within it and look the same


def home_of(folder: str) -> Path:
    """Return the folder of this machine in which studies of ``study.folder`` lie."""
    return cached_folder("studies", folder.rstrip("/")) if is_uri(folder) else Path(folder)


@dataclass(frozen=True)
class WorkingCopy:
    """Working copy of one study.

    Attributes:
        path: of the copy.
        uri: of the study in the bucket.
    """

    path: Path
    uri: str

    @classmethod
    def of(cls, uri: str) -> "WorkingCopy":
        """Return the copy of a study by URI, which need not exist yet."""
        parent, name = split_uri(uri)
        if not name or parent.endswith((":/", ":")):
            raise ConfigError(f"{shown_uri(uri)} must name a study in a folder, such as s3://BUCKET/studies/NAME")
        return cls(home_of(parent) / name, child_uri(parent, name))

    @classmethod
    def at(cls, path: Path) -> "WorkingCopy | None":
        """Return the study whose copy a folder is; None for any folder outside of this user's cache."""
        with contextlib.suppress(OSError, ValueError):
            copy = cls.of(child_uri((path.parent / _URI).read_text(encoding="utf-8"), path.name))
            if copy.path.absolute() == path.absolute():
                return cls(path, copy.uri)
        return None

    @property
    def _memo_file(self) -> Path:
        return self.path.with_name(f".{self.path.name}.json")

    def memo(self) -> dict[str, Any]:
        """Return the content of the memo; empty where there is none."""
        try:
            memo = json.loads(self._memo_file.read_text(encoding="utf-8"))
            return memo if isinstance(memo, dict) else {}
        except (OSError, ValueError):
            return {}

    def note(self, **more: Any) -> None:
        """Add values to the memo."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (self.path.parent / _URI).exists():
            (self.path.parent / _URI).write_text(split_uri(self.uri)[0], encoding="utf-8")
        with whole_file(self._memo_file) as hidden:
            hidden.write_text(json.dumps({**self.memo(), **more}), encoding="utf-8")

    def remote(self) -> RemoteFolder:
        """Return the folder in the bucket.

        Raises:
            ConfigError: for one that cannot be used.
        """
        try:
            return RemoteFolder.open(self.uri)
        except RemoteError as error:
            raise ConfigError(str(error)) from error

    # ---- driving -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the study's lease, with all files of the bucket copied here.

        Raises:
            ConfigError: where another process holds it, or the bucket cannot be used.
        """
        with contextlib.ExitStack() as lease_held:
            try:
                remote = self.remote()
                memo = self.memo()
                mine = {memo.get("token"), memo.get("asked")}  # of processes that are gone: this one holds the copy
                lease = Lease(remote, mine - {None})
                before, _ = lease.last()
                stale = "token" not in memo or before not in mine
                self.note(asked=lease.token, stale=stale or (memo.get("stale", False) and before == memo.get("asked")))
                if lease_held.enter_context(lease.hold(self.path.name)) != before:
                    self.note(stale=True)  # another one was faster, and is done
                if self.memo()["stale"]:
                    self._pull(remote, lambda name: True)
                    files = {name: self.path / name for name in self.memo()["fetched"]}
                    self.note(sent={name: stamp(path) for name, path in files.items() if path.is_file()})
                self.note(token=lease.token, asked=None, stale=False)
            except RemoteError as error:
                raise ConfigError(str(error)) from error
            yield

    def is_held(self, remote: RemoteFolder) -> bool:
        """Return whether the lease names no other driver than this machine's."""
        return Lease(remote).last()[0] in (None, self.memo().get("token"))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def refresh(self, wanted: Callable[[str], bool], *, recursive: bool = True) -> None:
        """Copy the bucket's files, as far as they are wanted, unless this copy is as new.

        Args:
            wanted: whether a file is to be copied, by its path in the study.
            recursive: whether to look for files in folders, too.

        Raises:
            ConfigError: where there is no such study, or the bucket cannot be used.
        """
        remote = self.remote()
        try:
            token, holder = Lease(remote).last()
            memo = self.memo()
            if holder is not None or "driver" in memo:
                self.note(driver=None if holder is None else asdict(holder), seen=time.time())
            if token is None or token != memo.get("token") or memo.get("stale"):
                self._pull(remote, wanted, recursive=recursive)
        except RemoteError as error:
            raise ConfigError(str(error)) from error

    def driver(self) -> Holder | None:
        """Return the process that drove the study when the bucket was last read.

        Return None where that was more than `SILENT_S` seconds ago, or the process has ended.
        """
        memo = self.memo()
        if memo.get("driver") is None or time.time() - memo.get("seen", 0.0) > SILENT_S:
            return None
        holder = Holder.parse(json.dumps(memo["driver"]).encode())
        return None if holder is None or is_gone(holder) else holder

    def _pull(self, remote: RemoteFolder, wanted: Callable[[str], bool], *, recursive: bool = True) -> None:
        for attempt in range(_ATTEMPTS):
            listed = remote.files(recursive=recursive)
            if "study.yaml" not in listed:
                parent, name = split_uri(self.uri)
                raise ConfigError(f"there is no study {name!r} in {shown_uri(parent)}: see flstudy studies {parent}")
            files = {name: file for name, file in listed.items() if wanted(name) and is_content(name)}
            try:
                self._fetch(remote, files)
                break
            except FileNotFoundError:  # the driver has merged or deleted it since
                if attempt == _ATTEMPTS - 1:
                    raise
        for path in [*self.path.rglob("*")] if recursive else []:
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and name not in files and wanted(name) and is_content(name) and follows_bucket(name):
                path.unlink(missing_ok=True)

    def _fetch(self, remote: RemoteFolder, files: Mapping[str, RemoteFile]) -> None:
        """Copy the files that have changed, the list of trials first: files that it refers to are older."""
        fetched = self.memo().get("fetched", {})
        newest = max(file.written for file in files.values())
        settled = {name: list(file) for name, file in files.items() if file.written < newest - _TICK_S}

        def fetch(name: str) -> None:
            if name not in fetched or fetched[name] != list(files[name]) or not (self.path / name).is_file():
                remote.fetch(name, self.path / name)

        self.path.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(AT_ONCE) as side_by_side:
            for deep in (False, True):
                list(side_by_side.map(fetch, [name for name in files if ("/" in name) == deep]))
        self.note(fetched={**fetched, **dict.fromkeys(files), **settled})


def stamp(path: Path) -> list[int]:
    """Return the size and time of change of a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def is_content(name: str) -> bool:
    """Return whether a file is the study's content, rather than a lock, a lease or a part of a file; a name that leaves
    the folder is not."""
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or name.endswith(".tmp") or parts[-1].startswith("."):
        return False
    return parts[0] not in ("lock", "writer", "ray", LEASE, CLAIMS) and name != "snapshots/going"


def follows_bucket(name: str) -> bool:
    """Return whether a file of the study is deleted here when the bucket lacks it: all are, except for reports."""
    return PurePosixPath(name).parts[0] not in ("report", "best")
