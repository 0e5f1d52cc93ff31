"""Preparation of a data set's copy as Federated Parquet: in parts that a killed process leaves whole, moved at once.

Everything is written in a hidden folder beside the target. A part of the samples counts from the moment its note is
there, which is renamed last; a later process goes on after the last note. The finished folder takes the target's place
in one step, so that a reader finds the copy of before or the new one.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.config import ConfigError
from flstudy.population.dataset_cache import is_derived
from flstudy.population.datasets.base import SPLITS, Dataset, FileDataset, Originals, Piece
from flstudy.population.datasets.federated_format import (
    CLIENTS,
    COLUMN_TYPES,
    COLUMNS,
    METADATA,
    SAMPLES,
    VOCABULARY,
    Metadata,
    codes,
    column_file,
    read_metadata,
    seal,
    write_columns,
)
from flstudy.remote import RemoteError, RemoteFolder
from flstudy.study.lock import FolderLock, Holder
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

COPY = "copy"  # in the hidden folder, beside the notes
PART_BYTES = 2**26  # of samples, before Parquet packs them
GROUP_BYTES = 2**24  # of a row group
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Told = Callable[[str, int, int], None]
"""Progress callback, called with a stage, how much of it is done and how much there is."""


class Note(NamedTuple):
    """Note of a part of the samples: its presence says that the part is whole."""

    file: str
    next: int  # number of the first piece after it
    rows: int
    bytes: int
    sha256: str
    x: str  # types and shapes
    y: str
    shape: list[int]
    label_shape: list[int]
    clients: list[list[Any]]  # id and examples of each split; none of a pooled set
    splits: bool


class Hashed:
    """File that is written once from its beginning, with its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.bytes, self.closed = file, hashlib.sha256(), 0, False

    def write(self, block: Any) -> int:
        """Write the next bytes."""
        self.digest.update(block)
        self.bytes += len(block)
        return self.file.write(block)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.bytes

    def flush(self) -> None:
        """Flush the bytes written so far to the file."""
        self.file.flush()

    def close(self) -> None:
        """Flush only: pyarrow calls this, and whoever opened the file closes it."""
        self.flush()


def prepare(
    dataset: Dataset,
    target: Path,
    *,
    attributes: Path | None = None,
    on_progress: Told = lambda stage, done, all_: None,
    part_bytes: int = PART_BYTES,
) -> tuple[Metadata, bool]:
    """Copy a data set into a folder of Federated Parquet, going on where an earlier attempt was cut off.

    Args:
        dataset: reads the originals.
        target: the folder; what is there before stays until the copy is whole.
        attributes: a CSV or Parquet file with a column ``id`` and one value for each client in every other column.
        on_progress: progress callback.
        part_bytes: of the samples in a file.

    Returns:
        The folder's metadata, and whether it was made now rather than found.

    Raises:
        ConfigError: another process prepares it, or the disk is full.
        UserError: originals that are missing, or not as published.
    """
    target = target.absolute()
    work = target.with_name(f".{target.name}.preparing")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{target.parent} cannot be made ({error.strerror}): give another folder with --to"
        ) from error
    with FolderLock(target.with_name(f".{target.name}.lock")).hold(target.name, _busy):
        _recovered(target)
        try:
            return _prepared(dataset, target, work, attributes, on_progress, part_bytes)
        except (OSError, MemoryError) as error:
            if not is_full(error):
                raise
            before = "the copy of before is as it was" if target.exists() else "there is no copy yet"
            raise ConfigError(
                f"no room on the disk of {target.parent}: {before}; make room and give the same command, which goes on"
            ) from error


def check_target(uri: str) -> None:
    """Raise ConfigError for a place by URI that cannot be used or written."""
    try:
        RemoteFolder.open(uri).check_writable()
    except RemoteError as error:
        raise ConfigError(f"--to: {error}") from error


def deliver(folder: Path, metadata: Metadata, uri: str, on_progress: Told = lambda stage, done, all_: None) -> bool:
    """Send a prepared folder to its place by URI: the metadata last, since a folder without them is none.

    Args:
        folder: of this machine.
        metadata: the folder's.
        uri: the place.
        on_progress: progress callback.

    Returns:
        Whether anything was sent, rather than there already.

    Raises:
        ConfigError: of the place.
    """
    try:
        remote, content = RemoteFolder.open(uri), (folder / METADATA).read_bytes()
        if remote.read(METADATA) == content:
            return False
        remote.delete(METADATA)
        whole = sum(entry["bytes"] for entry in metadata.files.values())
        done = 0
        for name, recorded in metadata.files.items():
            remote.write(name, folder / name)
            done += recorded["bytes"]
            on_progress("bytes sent", done, whole)
        for name in set(remote.files()) - set(metadata.files):
            remote.delete(name)  # of another preparation
        remote.write(METADATA, content)
        return True
    except RemoteError as error:
        raise ConfigError(f"{error}: mend it and give the same command") from error


def _busy(name: str, other: Holder) -> str:
    return f"{name} is being prepared by {other}: wait for its end, or stop it there (Ctrl-C)"


def is_full(error: BaseException | None) -> bool:
    """Return whether an exception comes from a disk without room."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in FULL or "No space left" in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _prepared(
    dataset: Dataset, target: Path, work: Path, attributes: Path | None, on_progress: Told, part_bytes: int
) -> tuple[Metadata, bool]:
    work.mkdir(exist_ok=True)
    try:
        originals = dataset.originals(work)
    except BaseException:
        with contextlib.suppress(OSError):
            work.rmdir()  # unless there are parts in it
        raise
    wanted = {**request_of(dataset, originals, attributes), "part_bytes": part_bytes}
    if (finished := _finished(target, wanted)) is not None:
        shutil.rmtree(work)
        return finished, False
    asked = work / "request.json"
    if not asked.is_file() or json.loads(asked.read_text()) != wanted:
        shutil.rmtree(work)
        work.mkdir()
        _write_whole(asked, json.dumps(wanted).encode())
    (work / COPY / SAMPLES).mkdir(parents=True, exist_ok=True)
    notes = _notes(work)
    labels = originals.classes if originals.classes is not None else dataset.classes
    for note in _written(dataset, originals, work, notes, labels, part_bytes, on_progress):
        notes.append(note)
    if not sum(note.rows for note in notes):
        raise UserError(f"{type(dataset).__name__}: there is no example in {originals.files[0]}: give other files")
    _finish(dataset, originals, work, notes, labels, wanted, attributes, on_progress)
    _put(work / COPY, target)
    shutil.rmtree(work)
    return read_metadata(target), True


def request_of(dataset: Dataset, originals: Originals, attributes: Path | None) -> dict[str, Any]:
    """Request for a copy: the data set, its arguments and its files; another request makes another copy."""
    fields = {name: value for name, value in vars(dataset).items() if not is_derived(dataset, name)}
    fields.pop("download", None)
    files = [*originals.files, *([attributes] if attributes else [])]
    return {
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "arguments": {name: value for name, value in fields.items() if name != "root"},
        "originals": fingerprint_of(files),
    }


def fingerprint_of(files: list[Path]) -> str:
    """Return the digest of the names, sizes and times of files, or of all files in folders."""
    digest = hashlib.sha256()
    for path in files:
        inside = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in inside:
            stat = file.stat()
            digest.update(f"{file.relative_to(path.parent)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _finished(target: Path, wanted: dict[str, Any]) -> Metadata | None:
    """Return the folder's metadata, if it is whole and of the same request."""
    try:
        metadata = read_metadata(target)
        request = json.loads((target / METADATA).read_text(encoding="utf-8"))["request"]
    except (ValueError, KeyError, OSError):
        return None
    whole = all((target / name).is_file() and (target / name).stat().st_size == entry["bytes"]
                for name, entry in metadata.files.items())  # fmt: skip
    return metadata if whole and request == wanted else None


def _notes(work: Path) -> list[Note]:
    """Return the notes of the parts that are whole, which follow one another from the first."""
    notes: list[Note] = []
    while True:
        path = work / f"part-{len(notes):05d}.json"
        try:
            note = Note(**json.loads(path.read_text(encoding="utf-8")))
            if hashlib.sha256((work / COPY / note.file).read_bytes()).hexdigest() != note.sha256:
                return notes
        except (OSError, ValueError, TypeError):
            return notes
        notes.append(note)


# ---- parts -------------------------------------------------------------------------------------------------------


def _written(
    dataset: Dataset,
    originals: Originals,
    work: Path,
    notes: list[Note],
    labels: int,
    part_bytes: int,
    on_progress: Told,
) -> Iterator[Note]:
    """Write the parts that are missing after those that are there, and yield their notes."""
    start, number = (notes[-1].next if notes else 0), len(notes)
    types = (notes[0].x, notes[0].y, tuple(notes[0].shape), tuple(notes[0].label_shape)) if notes else None
    waiting: list[Piece] = []
    size, place = 0, start
    on_progress("examples", start, originals.total)
    if start >= originals.total:
        return
    for place, original in enumerate(originals.pieces(start), start=start):
        piece = narrowed(dataset, originals, original, labels)
        form = (str(piece.x.dtype), str(piece.y.dtype), piece.x.shape[1:], piece.y.shape[1:])
        types = form if types is None else types
        if form != types:
            whose = f"client {piece.client!r}" if piece.client is not None else f"piece {place}"
            raise UserError(f"{type(dataset).__name__}: {whose} has {form}, others {types}: give files of one kind")
        waiting.append(piece)
        size += piece.x.nbytes + piece.y.nbytes
        if size >= part_bytes:
            yield _write_part(work, number, place + 1, waiting)
            waiting, size, number = [], 0, number + 1
            on_progress("examples", place + 1, originals.total)
    if waiting:
        yield _write_part(work, number, place + 1, waiting)
    on_progress("examples", originals.total, originals.total)


def narrowed(dataset: Dataset, originals: Originals, piece: Piece, labels: int) -> Piece:
    """Return a piece in the types in which it is stored.

    Raises:
        UserError: for labels that the data set does not have, or inputs that are no numbers.
    """
    x, y = piece.x, piece.y
    whose = f"{type(dataset).__name__}: client {piece.client!r}" if piece.client else type(dataset).__name__
    if x.dtype.kind in "iu" and not originals.mean:
        tokens = dataset.tokens if originals.shape is None else 0
        x = x.astype(narrow(tokens)) if tokens else x.astype(np.int64)
    if str(x.dtype) not in COLUMN_TYPES:
        raise UserError(f"{whose}: inputs must be of one of {', '.join(COLUMN_TYPES)}, got {x.dtype}: convert them")
    if y.dtype.kind == "f":
        y = y.astype(np.float32)
    else:
        least = 0 if y.ndim == 1 else -1
        if y.size and not least <= y.min() <= y.max() < labels:
            raise UserError(f"{whose}: labels must lie in {least} … {labels - 1}, got {y.min()} … {y.max()}: mend them")
        y = y.astype(narrow(labels))
    split = piece.split
    if split is not None and piece.client is not None and (np.diff(split) < 0).any():
        order = np.argsort(split, kind="stable")
        x, y, split = x[order], y[order], split[order]
    return Piece(x, y, piece.client, split)


def narrow(numbers: int) -> np.dtype[Any]:
    """Return the smallest type that holds −1 … numbers."""
    return np.dtype(np.int8 if numbers < 2**7 else np.int16 if numbers < 2**15 else np.int32)


def _write_part(work: Path, number: int, after: int, pieces: list[Piece]) -> Note:
    import pyarrow as pa
    from pyarrow import parquet

    x, y = np.concatenate([piece.x for piece in pieces]), np.concatenate([piece.y for piece in pieces])
    sizes = [len(piece.y) for piece in pieces]
    clients = [[piece.client, *by_split(piece)] for piece in pieces if piece.client is not None]
    columns = {}
    if clients:
        index = pa.array(np.repeat(np.arange(len(pieces), dtype=np.int32), sizes))
        columns["client"] = pa.DictionaryArray.from_arrays(index, pa.array([piece.client for piece in pieces]))
    splits = pieces[0].split is not None
    if splits:
        columns["split"] = pa.array(np.concatenate([piece.split for piece in pieces]).astype(np.int8))  # type: ignore
    columns |= {"x": as_column(x), "y": as_column(y)}
    name = f"{SAMPLES}/part-{number:05d}.parquet"
    with whole_file(work / COPY / name, durable=True) as hidden, hidden.open("wb") as file:
        hashed = Hashed(file)
        parquet.write_table(
            pa.table(columns),
            hashed,
            row_group_size=max(1, GROUP_BYTES // max(1, (x.nbytes + y.nbytes) // max(1, len(y)))),
            compression="zstd",
            use_dictionary=["client", "split"],
            write_page_checksum=True,
        )
    note = Note(
        name, after, len(y), hashed.bytes, hashed.digest.hexdigest(), str(x.dtype), str(y.dtype), list(x.shape[1:]),
        list(y.shape[1:]), clients, splits,
    )  # fmt: skip
    _write_whole(work / f"part-{number:05d}.json", json.dumps(note._asdict()).encode())
    return note


def by_split(piece: Piece) -> list[int]:
    """Return the number of examples of each split that a client has; all are for training where shares have to say."""
    if piece.split is None:
        return [len(piece.y), 0, 0]
    counted: list[int] = np.bincount(piece.split, minlength=len(SPLITS)).tolist()
    return counted


def as_column(array: NDArray[Any]) -> Any:
    """Return a pyarrow column of [n, ...]: numbers, fixed-size bytes of images, or fixed-size lists of numbers."""
    import pyarrow as pa

    shape, flat = array.shape[1:], np.ascontiguousarray(array).reshape(-1)
    if not shape:
        return pa.array(flat)
    wide = int(np.prod(shape))
    if codes(shape, array.dtype):
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(wide), len(array), [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), wide)


def _write_whole(path: Path, content: bytes) -> None:
    """Write all of a file, or nothing."""
    with whole_file(path, durable=True) as hidden:
        hidden.write_bytes(content)


# ---- the end -----------------------------------------------------------------------------------------------------


def _finish(
    dataset: Dataset,
    originals: Originals,
    work: Path,
    notes: list[Note],
    labels: int,
    wanted: dict[str, Any],
    attributes: Path | None,
    on_progress: Told,
) -> None:
    """Write all files of the copy but the samples; nothing in them tells how often the preparation was cut off."""
    import pyarrow as pa
    from pyarrow import parquet

    copy, first, rows = work / COPY, notes[0], sum(note.rows for note in notes)
    clients = [client for note in notes for client in note.clients]
    names = [name for name, *_ in clients]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise UserError(f"{type(dataset).__name__}: client {twice!r} is there twice: give each a name of its own")
    counts = np.array([counts for _, *counts in clients], dtype=np.int64).reshape(-1, 3)
    ends = counts.sum(1).cumsum()
    table = {"id": pa.array(names, pa.string()), "offset": pa.array(ends - counts.sum(1))}
    table |= {split: pa.array(counts[:, place]) for place, split in enumerate(SPLITS)}
    if attributes is not None:
        table |= attribute_columns(attributes, names)
    parquet.write_table(pa.table(table), copy / CLIENTS)
    if originals.vocabulary:
        words = pa.table({"number": pa.array(range(1, len(originals.vocabulary) + 1)), "text": originals.vocabulary})
        parquet.write_table(words, copy / VOCABULARY)
    values: dict[str, Any] = {
        "name": type(dataset).__name__,
        "task": originals.task if labels else "regression",
        "licence": dataset.licence if isinstance(dataset, FileDataset) else "see its authors' page",
        "citations": list(dataset.citations),
        "shape": first.shape,
        "label_shape": first.label_shape,
        "classes": labels,
        "tokens": dataset.tokens if originals.shape is None else 0,
        "x": first.x,
        "y": first.y,
        "mean": list(originals.mean),
        "deviation": list(originals.deviation),
        "examples": rows,
        "clients": len(clients),
        "pooled": not clients,
        "splits": any(note.splits for note in notes) if not clients else bool(counts[:, 1:].any()),
        "request": wanted,
        "files": {note.file: {"bytes": note.bytes, "sha256": note.sha256} for note in notes},
    }
    _write_whole(copy / METADATA, seal(values).encode())
    metadata = read_metadata(copy)
    write_columns(copy, metadata, lambda done: on_progress("columns", done, rows))
    others = [copy / CLIENTS, *([copy / VOCABULARY] if originals.vocabulary else [])]
    for path in [*others, *(column_file(copy, name) for name in metadata.columns)]:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        values["files"][str(path.relative_to(copy))] = {"bytes": path.stat().st_size, "sha256": digest}
    _write_whole(copy / METADATA, seal(values).encode())


def attribute_columns(path: Path, names: list[str]) -> dict[str, Any]:
    """Return further columns of the table of clients, from a file with a row for each.

    Raises:
        ConfigError: for a file without a row for every client, or without ids.
    """
    from flstudy.population.datasets.table import TableFile

    if path.suffix not in TableFile.readers or not path.is_file():
        raise ConfigError(f"--attributes must be a .csv or .parquet file that is there, got {str(path)!r}")
    try:
        table = TableFile.readers[path.suffix](path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--attributes: {path} cannot be read: {str(error).splitlines()[0]}") from error
    if "id" not in table.column_names or table.column("id").null_count:
        raise ConfigError(f"--attributes: {path} must have a column 'id' without nulls: it names the clients")
    place = {str(name): row for row, name in enumerate(table.column("id").to_pylist())}
    missing = [name for name in names if name not in place]
    if missing or not names:
        who = f"no row for client {missing[0]!r}" if missing else "rows, but the data set has no clients"
        raise ConfigError(f"--attributes: {path} has {who}: give one for each client")
    taken = table.take([place[name] for name in names])
    reserved = ("id", "offset", *SPLITS)
    return {name: taken.column(name).combine_chunks() for name in table.column_names if name not in reserved}


def _put(copy: Path, target: Path) -> None:
    """Move the finished copy to the target, in one step where the system can; an earlier copy is then at ``copy``."""
    for folder in (copy / SAMPLES, copy / COLUMNS, copy):
        _sync(folder)
    if not target.exists():
        os.rename(copy, target)
    elif not _exchanged(copy, target):
        before = _before(target)
        os.rename(target, before)
        os.rename(copy, target)
        shutil.rmtree(before)
    _sync(target.parent)


def _before(target: Path) -> Path:
    return target.with_name(f".{target.name}.before")


def _recovered(target: Path) -> None:
    """Bring the earlier copy back where a process was killed between two renames."""
    before = _before(target)
    if before.is_dir():
        if target.exists():
            shutil.rmtree(before)
        else:
            os.rename(before, target)


def _exchanged(copy: Path, target: Path) -> bool:
    """Exchange two paths at once, which Linux can on most file systems, and say whether that was done."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2
    return int(renameat2(here, os.fsencode(copy), here, os.fsencode(target), exchange)) == 0


def _sync(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
