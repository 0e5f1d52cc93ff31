"""Images of many files, decoded once: a copy of their pixels beside the folder serves later runs."""

import contextlib
import hashlib
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.datasets.base import FileDataset
from flstudy.whole_file import whole_file

MARK = 32  # bytes of the digest of the files' names and sizes at the head of the decoded copy


@dataclass(frozen=True, kw_only=True)
class DecodedImages(FileDataset):
    """A data set of single images, of which a copy of all pixels is kept."""

    @abstractmethod
    def decode(self, file: str) -> NDArray[Any]:
        """Return uint8 pixels [*shape] of a file below the folder."""

    def image(self, file: str, size: tuple[int, int] | None = None) -> NDArray[Any]:
        """Return uint8 [3, height, width] of a file, scaled to (width, height) if a size is given."""
        from PIL import Image  # a study dependency, of torchvision's; the engine runs without it

        try:
            with Image.open(self.folder / file) as image:
                colour = image.convert("RGB")
                return np.asarray(colour.resize(size, Image.Resampling.BILINEAR) if size else colour).transpose(2, 0, 1)
        except (OSError, ValueError, SyntaxError) as error:
            self.refuse(f"{file} is no image that can be read: {error}")

    def decoded(self, files: Sequence[str], copy: Path) -> Tensor:
        """Return uint8 [len(files), *shape], from the .npy file ``copy`` if that is of these files, by their names and
        sizes.

        Raises:
            UserError: for a file that is not there, or as ``decode`` does.
        """
        mark = self._mark(files)
        bytes_ = MARK + len(files) * int(np.prod(self.shape))
        with contextlib.suppress(OSError, ValueError, EOFError):  # absent, or no such copy: decoded below
            stored = np.load(copy, mmap_mode="c")
            if stored.dtype == np.uint8 and stored.shape == (bytes_,) and stored[:MARK].tobytes() == mark:
                return torch.from_numpy(stored[MARK:].reshape(-1, *self.shape))
        flat = np.empty(bytes_, dtype=np.uint8)
        flat[:MARK] = np.frombuffer(mark, dtype=np.uint8)
        pixels = flat[MARK:].reshape(-1, *self.shape)

        def place(index: int) -> None:
            pixels[index] = self.decode(files[index])

        with ThreadPoolExecutor() as pool:  # decoding lets go of the interpreter
            for _ in pool.map(place, range(len(files))):
                continue
        try:
            keep(copy, flat)
        except OSError as error:
            warnings.warn(
                f"{type(self).__name__}: {copy} cannot be written ({error}), so that each run decodes the images; "
                f"let it be written once, or set root to a copy in a folder of yours",
                stacklevel=2,
            )
        return torch.from_numpy(pixels)

    def _mark(self, files: Sequence[str]) -> bytes:
        """Return the digest of the names and sizes of files, of which all exist."""
        digest = hashlib.sha256()
        for file in files:
            try:
                digest.update(f"{file} {(self.folder / file).stat().st_size}\n".encode())
            except FileNotFoundError:
                self.absent("file", self.folder / file)
        return digest.digest()


def keep(path: Path, array: NDArray[Any]) -> None:
    """Save an array [...] so that a reader sees all of it or what was there before, however many write it."""
    with whole_file(path, shared=True) as hidden, hidden.open("wb") as file:
        np.save(file, array)
