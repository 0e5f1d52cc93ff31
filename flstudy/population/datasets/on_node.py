"""Federated Parquet by URI: each node copies it once, into its user's cache, from which it is mapped.

The metadata decide whether a copy is right: every file is compared with its checksum there when it is copied, and a
folder that was prepared anew is another copy. Of several processes of a node that ask at once one copies, and the
others wait; the kernel lets them go on if it dies, and what it has copied counts.
"""

import fcntl
import hashlib
import json
import logging
from pathlib import Path

from flstudy.population.datasets.federated_format import COLUMNS, METADATA, SAMPLES
from flstudy.remote import RemoteError, RemoteFolder, cached_folder, shown_uri
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

log = logging.getLogger(__name__)


def copied_to_node(uri: str) -> Path:
    """Return the folder of this node with the data set at a URI; its samples are left out where it has columns to be
    mapped.

    Raises:
        UserError: where there is none, or it cannot be copied.
    """
    copies = cached_folder("data", uri)
    try:
        remote = RemoteFolder.open(uri)
        metadata = remote.read(METADATA)
    except RemoteError as error:
        there = sorted(copies.glob(f"*/{METADATA}"), key=lambda path: path.stat().st_mtime)
        if error.lasting or not there:
            raise UserError(str(error)) from error
        log.warning("%s: the copy of this node is used", error)
        return there[-1].parent
    if metadata is None:
        raise UserError(f"there is no prepared data set in {shown_uri(uri)}: make it with 'flstudy data prepare --to'")
    copy = copies / hashlib.sha256(metadata).hexdigest()[:16]
    if not (copy / METADATA).is_file():
        copy.mkdir(parents=True, exist_ok=True)
        with (copies / f"{copy.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # waits for another process that copies
            if not (copy / METADATA).is_file():
                _copy(remote, metadata, copy)
    return copy


def _copy(remote: RemoteFolder, metadata: bytes, copy: Path) -> None:
    """Copy all files that are mapped or read, the metadata last."""
    try:
        recorded, there = json.loads(metadata)["files"], remote.files()
        checksums = {name: str(entry["sha256"]) for name, entry in recorded.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{remote}/{METADATA} is damaged: prepare it again with 'flstudy data prepare'") from error
    columns = [name for name in checksums if name.startswith(f"{COLUMNS}/")]
    left = SAMPLES if columns and all(name in there for name in columns) else COLUMNS
    for name, checksum in checksums.items():
        if name.startswith(f"{left}/") or (copy / name).is_file():  # whole: a file appears with its last byte
            continue
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise UserError(f"{remote}/{METADATA} names a file outside of the folder, {name!r}: take another folder")
        try:
            remote.fetch(name, copy / name)
        except (RemoteError, FileNotFoundError) as error:
            missing = f"{remote}/{name} is not there: prepare it again with 'flstudy data prepare'"
            raise UserError(missing if isinstance(error, FileNotFoundError) else str(error)) from error
        with (copy / name).open("rb") as file:
            copied = hashlib.file_digest(file, "sha256").hexdigest()
        if copied != checksum:
            (copy / name).unlink()
            raise UserError(f"{remote}/{name} is damaged, or being prepared: its bytes do not give its checksum")
    with whole_file(copy / METADATA) as hidden:
        hidden.write_bytes(metadata)
