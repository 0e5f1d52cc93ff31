"""Folders by URI: s3://, gs://, abfss://, file:// and what else pyarrow's file systems know.

Credentials come from where pyarrow's client of each store looks for them: AWS_ACCESS_KEY_ID and ~/.aws, Google's
application default, …; a server of one's own by AWS_ENDPOINT_URL or ``?endpoint_override=HOST:PORT&scheme=http``. None
belongs in a URI, which is written down.
"""

import contextlib
import errno
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_REASONS = (
    (r"NO_SUCH_BUCKET|bucket does not exist|ContainerNotFound", "there is no such bucket", True),
    (
        r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE|EXPIRED_TOKEN|ExpiredToken"
        r"|PERMISSION_DENIED|UNAUTHENTICATED|AuthorizationFailure|AuthorizationPermissionMismatch|HTTP status 40[13]",
        "access is denied",
        True,
    ),
    (r"StorageFull|QuotaExceeded|InsufficientStorage|HTTP status 507|No space left", "the bucket is full", True),
    (r"NETWORK_CONNECTION|UNAVAILABLE|resolve host|Connection refused|Timeout", "nobody answers", False),
)
"""Patterns of stores' errors, each with its reason for a sentence, and whether the error is lasting."""


class RemoteError(UserError):
    """Error of a folder by URI that cannot be used, in a sentence.

    Args:
        sentence: names the folder.
        lasting: whether it stays so until somebody mends it, rather than a server that comes back.
    """

    def __init__(self, sentence: str, *, lasting: bool = False) -> None:
        super().__init__(sentence)
        self.lasting = lasting


class RemoteFile(NamedTuple):
    """File in a store: size in bytes, and time of writing by the store's clock, in seconds since 1970."""

    size: int
    written: float


def is_uri(text: object) -> bool:
    """Return whether a place is given by URI, rather than as a path of this machine."""
    return isinstance(text, str) and _URI.match(text) is not None


def cache_home() -> Path:
    """Return the folder of this user's copies of remote files: $XDG_CACHE_HOME/flstudy, ~/.cache/flstudy."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flstudy"


def cached_folder(kind: str, uri: str) -> Path:
    """Return the folder of copies of a folder by URI on this machine, apart from those of other stores.

    Args:
        kind: of the folder's content.
        uri: the folder's.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    digest = hashlib.sha256(f"{uri} {endpoint}".encode()).hexdigest()[:16]
    return cache_home() / kind / f"{shown_uri(uri).rpartition('/')[2]}-{digest}"


def shown_uri(uri: str) -> str:
    """Return a URI for people: without its query."""
    return uri.partition("?")[0].rstrip("/")


@dataclass(frozen=True)
class RemoteFolder:
    """A folder in a store.

    Attributes:
        uri: as a user types it.
        filesystem: pyarrow's.
        path: of the folder in it.
    """

    uri: str
    filesystem: Any
    path: str

    @classmethod
    def open(cls, uri: str) -> "RemoteFolder":
        """Return the folder, which need not exist.

        Raises:
            RemoteError: for a scheme that pyarrow does not know, a bucket that there is not, one without rights, and,
                after some 10 s, for a server that does not answer.
        """
        parts = urlsplit(uri)
        if parts.password is not None:
            raise RemoteError(
                f"{parts.scheme}://…@{parts.hostname} must hold no credentials: set those of the environment, such as "
                "AWS_SECRET_ACCESS_KEY",
                lasting=True,
            )

        folder = cls(uri, *_filesystem(uri))
        folder.folders()
        return folder

    def __str__(self) -> str:
        return shown_uri(self.uri)

    def child(self, name: str) -> "RemoteFolder":
        """Return a folder in this one."""
        return RemoteFolder(child_uri(self.uri, name), self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def _at(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    # ---- reading -----------------------------------------------------------------------------------------------------

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        from pyarrow import fs

        try:
            with _explained(self.uri):  # allow_not_found would forgive a bucket that there is not
                listed = self.filesystem.get_file_info(fs.FileSelector(self.path))
        except FileNotFoundError:
            return []
        return sorted(info.base_name for info in listed if info.type == fs.FileType.Directory)

    def files(self, *, recursive: bool = True) -> dict[str, RemoteFile]:
        """Return all files in it, by their paths from here."""
        from pyarrow import fs

        with _explained(self.uri):
            selected = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
            listed = self.filesystem.get_file_info(selected)
        start = len(self.path.rstrip("/")) + 1
        return {
            info.path[start:]: RemoteFile(info.size, info.mtime.timestamp())
            for info in listed
            if info.type == fs.FileType.File and not info.base_name.startswith(_HIDDEN)
        }

    def file(self, name: str) -> RemoteFile | None:
        """Return one file; None where it is not there."""
        from pyarrow import fs

        with _explained(self.uri):
            info = self.filesystem.get_file_info(self._at(name))
        return RemoteFile(info.size, info.mtime.timestamp()) if info.type == fs.FileType.File else None

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None where it is not there."""
        try:
            with _explained(self.uri), self.filesystem.open_input_stream(self._at(name), compression=None) as file:
                content: bytes = file.read()
                return content
        except FileNotFoundError:
            return None

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this machine, all of it or nothing.

        Raises:
            FileNotFoundError: it is not there.
        """
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target, shared=True) as hidden, hidden.open("wb") as file:
            with _explained(self.uri):
                source = self.filesystem.open_input_stream(self._at(name), compression=None)
            with source:
                while True:
                    with _explained(self.uri):
                        block = source.read(_BLOCK)
                    if not block:
                        break
                    file.write(block)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, name: str, content: bytes | Path) -> None:
        """Put a file there; a reader sees the old one or the new one."""
        path = self._at(name)
        local = self.filesystem.type_name == "local"  # where a file is there from its first byte on
        head, _, tail = path.rpartition("/")
        hidden = f"{head}/{_HIDDEN}{uuid.uuid4().hex}.{tail}" if local else path
        if local:
            with _explained(self.uri):
                self.filesystem.create_dir(head, recursive=True)
        with contextlib.ExitStack() as opened:
            source = opened.enter_context(content.open("rb")) if isinstance(content, Path) else None
            with _explained(self.uri):
                with self.filesystem.open_output_stream(hidden, compression=None) as file:
                    if source is None:
                        file.write(content)
                    else:
                        while block := source.read(_BLOCK):
                            file.write(block)
                if local:
                    self.filesystem.move(hidden, path)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with _explained(self.uri), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._at(name))

    def check_writable(self) -> None:
        """Raise RemoteError for a folder in which this user may not write and delete."""
        name = f"{_HIDDEN}{uuid.uuid4().hex}"
        self.write(name, b"")
        self.delete(name)


def _filesystem(uri: str) -> tuple[Any, str]:
    """Return the file system of pyarrow, and the folder's path there. Clients give up within seconds: callers ask
    again."""
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, fs  # the engine runs without it

    parts = urlsplit(uri)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "s3" and parts.netloc and set(options) <= _S3_OPTIONS:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and "endpoint_override" not in options:
            options |= {"endpoint_override": endpoint}
        if not {"region", "endpoint_override"} & set(options) and not _REGION & set(os.environ):
            with _explained(uri):
                options["region"] = fs.resolve_s3_region(parts.netloc)
        s3 = fs.S3FileSystem(
            **options,
            connect_timeout=2,
            request_timeout=5,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
            allow_delayed_open=True,  # a small file takes one request, not three
        )
        return s3, f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
    if parts.scheme in ("gs", "gcs") and "retry_limit_seconds" not in options:
        uri += f"{'&' if parts.query else '?'}retry_limit_seconds=8"
    try:
        with _explained(uri):
            filesystem, path = fs.FileSystem.from_uri(uri)
        return filesystem, path
    except (ArrowInvalid, ArrowNotImplementedError) as error:
        reason = str(error).partition(":")[0].strip()
        raise RemoteError(
            f"{shown_uri(uri)} must be a URI that pyarrow knows, such as s3://BUCKET/FOLDER or gs://… ({reason})",
            lasting=True,
        ) from error


_S3_OPTIONS = {"region", "scheme", "endpoint_override"}
_REGION = {"AWS_REGION", "AWS_DEFAULT_REGION"}
_HIDDEN = ".flstudy-"  # begins the names of files that are not whole yet
_BLOCK = 1 << 22  # bytes


def child_uri(uri: str, name: str) -> str:
    """Return the URI of a folder or file in a folder."""
    place, mark, query = uri.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{query}"


def split_uri(uri: str) -> tuple[str, str]:
    """Return the URI of the folder above, and the name in it."""
    place, mark, query = uri.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    return f"{above}{mark}{query}", name


@contextlib.contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Raise pyarrow's errors of a store as RemoteError; FileNotFoundError for a file that is not there."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        message = " ".join(str(error).split())
        reason, lasting = message[:100], False
        for pattern, words, stays in _REASONS:
            if re.search(pattern, message):
                reason, lasting = words, stays
                break
        if error.errno in _FULL:
            reason, lasting = "its disk is full", True
        elif error.errno in _DENIED:
            reason, lasting = "access is denied", True
        raise RemoteError(f"{shown_uri(uri)} cannot be used: {reason}", lasting=lasting) from error
