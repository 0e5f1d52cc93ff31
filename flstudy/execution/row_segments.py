"""Segments beside checkpoints, for rows too many to be written into each: a segment holds the rows that had changed
since the one before.

    checkpoints/round-5.ckpt        names its segments, oldest first
    checkpoints/rows/<bank>-<name>/ slots.npy [R], 0.npy, 1.npy, … [R, bytes of a row] for each leaf

A segment is whole before it gets its name, and is never changed. Those that no checkpoint of the folder names are
deleted, and where old rows take as much room as all rows do, the next checkpoint begins with a segment of all.
"""

import contextlib
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flstudy.user_error import UserError

FOLDER = "rows"
AT_ONCE = 2**26  # bytes that are moved together


class Segment(NamedTuple):
    """Rows as they were written together."""

    name: str
    rows: int
    checksums: tuple[int, ...]  # of its files, the slots first


class RowJournal:
    """Journal of a bank's rows that changed since they were last written to a folder."""

    def __init__(self) -> None:
        self.writer = uuid.uuid4().hex[:12]
        self._writers, self._saves = {self.writer}, 0
        self._changed = torch.zeros(0, dtype=torch.int64)  # [rows] number of the save that will write them
        self._folders: dict[Path, tuple[int, list[Segment]]] = {}  # the last save to it, and what it names

    def touch(self, slots: Tensor) -> None:
        """Note that the rows at these slots [...] change."""
        if not slots.numel():
            return
        if (more := int(slots.max()) + 1 - len(self._changed)) > 0:
            self._changed = torch.cat([self._changed, self._changed.new_zeros(max(more, len(self._changed)))])
        self._changed[slots.flatten()] = self._saves + 1

    def write(self, folder: Path, rows: Sequence[Tensor], used: int) -> list[Segment]:
        """Return the segments that hold the first rows of leaves [capacity, ...], the changed ones being written
        now."""
        last, segments = self._folders.get(folder, (-1, []))
        if not all((folder / FOLDER / segment.name).is_dir() for segment in segments):
            last, segments = -1, []  # somebody deleted some
        self.touch(torch.arange(used)[len(self._changed) :])
        changed = (self._changed[:used] > last).nonzero().squeeze(1)
        if sum(segment.rows for segment in segments) + len(changed) > 2 * used:
            segments, changed = [], torch.arange(used)
        if len(changed):
            segments = [*segments, write_segment(folder / FOLDER, self.writer, changed, rows)]
        self._saves += 1
        self._folders[folder] = self._saves, segments
        return segments

    def taken_up(self, folder: Path, segments: Sequence[Segment], used: int) -> None:
        """Note that the first ``used`` rows are now those of a folder's segments."""
        self._changed = torch.zeros(used, dtype=torch.int64)
        self._folders = {folder: (0, list(segments))}
        self._saves, self._writers = 0, {self.writer, *(segment.name.split("-")[0] for segment in segments)}

    def collect(self, folder: Path, named: Iterable[str]) -> None:
        """Delete segments that this bank, or the one that it goes on from, wrote to a folder and nobody names."""
        named_segments = {*named, *(segment.name for segment in self._folders.get(folder, (0, []))[1])}
        with contextlib.suppress(OSError):  # another process deletes, too
            for path in (folder / FOLDER).iterdir():
                if path.name not in named_segments and path.name.lstrip(".").split("-")[0] in self._writers:
                    shutil.rmtree(path, ignore_errors=True)
            (folder / FOLDER).rmdir()  # where it is empty


def write_segment(folder: Path, writer: str, slots: Tensor, rows: Sequence[Tensor]) -> Segment:
    """Write a segment of the rows at some slots [R] of leaves [capacity, ...]."""
    name = f"{writer}-{uuid.uuid4().hex}"
    hidden = folder / f".{name}"
    hidden.mkdir(parents=True)
    try:
        checksums = [write_array(hidden / "slots.npy", [slots.numpy()], (len(slots),), np.dtype(np.int64))]
        for number, leaf in enumerate(rows):
            width = bytes_of(leaf)
            parts = (row_content(leaf[part]) for part in torch.split(slots, max(1, AT_ONCE // max(1, width))))
            shape, kind = (len(slots), width), np.dtype(np.uint8)
            checksums.append(write_array(hidden / f"{number}.npy", parts, shape, kind))
        os.replace(hidden, folder / name)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)  # half of it would take room on a full disk
        raise
    return Segment(name, len(slots), tuple(checksums))


def write_array(path: Path, parts: Iterable[Any], shape: tuple[int, ...], kind: Any) -> int:
    """Write an array's content part by part; returns its checksum."""
    checksum = 0
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in parts:
            content = np.ascontiguousarray(part).data
            checksum = zlib.crc32(content, checksum)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return checksum


def read_segments(folder: Path, segments: Sequence[Segment]) -> Iterator[tuple[Tensor, int, Any]]:
    """Yield slots [R], the number of a leaf, and its rows [R, bytes] at those slots, which are mapped; checked.

    Raises:
        UserError: for a segment that is damaged or not there.
    """
    for segment in segments:
        place = folder / FOLDER / segment.name
        slots = checked_array(place / "slots.npy", segment.checksums[0])
        for number, checksum in enumerate(segment.checksums[1:]):
            yield torch.from_numpy(np.array(slots)), number, checked_array(place / f"{number}.npy", checksum)


def checked_array(path: Path, checksum: int) -> Any:
    """Return a mapped array of a segment; UserError where it is not what was written."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is missing or damaged: keep the folder {FOLDER} beside its checkpoints") from error
    here = 0
    for part in np.array_split(array, max(1, array.nbytes // AT_ONCE)) if array.size else ():
        here = zlib.crc32(np.ascontiguousarray(part).data, here)
    if here != checksum:
        raise UserError(f"{path} is damaged: its checksum is another")
    return array


def bytes_of(leaf: Tensor) -> int:
    """Return the bytes of one row of a leaf [rows, ...]."""
    return leaf.shape[1:].numel() * leaf.element_size()


def row_content(rows: Tensor) -> Any:
    """Return the rows [R, ...] as an array [R, bytes]."""
    return rows.reshape(len(rows), rows.shape[1:].numel()).contiguous().view(torch.uint8).numpy()
