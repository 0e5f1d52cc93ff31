"""Images of many files, decoded once: a copy of their pixels beside the folder serves later runs."""

import contextlib
import hashlib
import os
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MARK = 32  # bytes at the head of the decoded copy that say of which files it is


class Decoder(NamedTuple):
    """How the images of a data set are read."""

    name: str  # of the data set
    folder: Path  # below which the files are
    copy: Path  # the .npy file of their pixels, with a mark of the files
    size: tuple[int, int, int]  # (channels, height, width)
    decode: Callable[[str], NDArray[Any]]  # a file's uint8 pixels [*size]
    absent: Callable[[str, Path], Any]  # raises for a "file" that is not there


def decoded(files: Sequence[str], how: Decoder) -> Tensor:
    """uint8 [len(files), *size], from the copy if that is of these files, by their names and sizes.

    Raises:
        ValueError: for a file that is not there, or as ``decode`` does.
    """
    mark, copy, size = marked(files, how), how.copy, how.size
    bytes_ = MARK + len(files) * int(np.prod(size))
    with contextlib.suppress(OSError, ValueError, EOFError):  # absent, or no such copy: decoded below
        kept = np.load(copy, mmap_mode="c")
        if kept.dtype == np.uint8 and kept.shape == (bytes_,) and kept[:MARK].tobytes() == mark:
            return torch.from_numpy(kept[MARK:].reshape(-1, *size))
    flat = np.empty(bytes_, dtype=np.uint8)
    flat[:MARK] = np.frombuffer(mark, dtype=np.uint8)
    pixels = flat[MARK:].reshape(-1, *size)

    def place(index: int) -> None:
        pixels[index] = how.decode(files[index])

    with ThreadPoolExecutor() as pool:  # decoding lets go of the interpreter
        for _ in pool.map(place, range(len(files))):
            continue
    try:
        keep(copy, flat)
    except OSError as error:
        warnings.warn(
            f"{how.name}: {copy} cannot be written ({error}), so that each run decodes the images; "
            f"let it be written once, or set root to a copy in a folder of yours",
            stacklevel=2,
        )
    return torch.from_numpy(pixels)


def marked(files: Sequence[str], how: Decoder) -> bytes:
    """The same for the same names and sizes of files, of which all exist."""
    told = hashlib.sha256()
    for file in files:
        try:
            told.update(f"{file} {(how.folder / file).stat().st_size}\n".encode())
        except FileNotFoundError:
            how.absent("file", how.folder / file)
    return told.digest()


def keep(path: Path, array: NDArray[Any]) -> None:
    """Save an array so that a reader sees all of it or what was there before, however many write it."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("wb") as file:
            np.save(file, array)
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
