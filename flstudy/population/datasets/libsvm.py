"""Tables of numbers in LIBSVM's sparse text format."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import FilePath
from flstudy.population.datasets.base import Examples, FileDataset, Originals
from flstudy.population.datasets.images import SLICE, in_slices


class Known(NamedTuple):
    """A data set of the collection."""

    files: tuple[str, ...]
    features: int
    labels: tuple[int, ...]
    largest: float  # value of a feature


KNOWN = {
    "covtype": Known(("covtype.scale",), 54, tuple(range(1, 8)), 1.0),
    "mnist": Known(("mnist", "mnist.t"), 780, tuple(range(10)), 255.0),
}
ENDINGS = ("", ".bz2", ".gz")


@dataclass(frozen=True, kw_only=True)
class LibSvm(FileDataset):
    """Covertype or MNIST as the LIBSVM collection has them (Chang & Lin 2011), pooled, as in Master-FL (Ganguly &
    Aggarwal 2024, sec. VI).

    ``covtype`` is covtype.scale: 581,012 places, 54 features in [0, 1], seven kinds of forest, numbered 1 … 7 in the
    file and 0 … 6 here. ``mnist`` is mnist and mnist.t: 70,000 digits, 780 pixels, here divided by 255. The
    authors' training and test files are pooled and divided anew for each device.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2011",)
    first_task: ClassVar[str] = "Logistic"

    name: Literal["covtype", "mnist"] = "covtype"
    """Name of the data set in the collection."""
    root: FilePath = "data"
    """Folder of the files, packed or not."""
    file: str | None = None
    """Name of another file of the same kind to read instead, such as an unscaled one."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (KNOWN[self.name].features,)

    @cached_property
    def classes(self) -> int:
        return len(KNOWN[self.name].labels)

    @property
    def remedy(self) -> str:
        files = self.file or " and ".join(KNOWN[self.name].files)
        return (
            f"set root to the folder that holds {files}; see the LIBSVM data page, section multi-class; files may stay "
            f"packed (.bz2, .gz)"
        )

    def load(self, seed: int, clients: int) -> Examples:
        x, y = self._tables()
        return Examples(torch.from_numpy(x), torch.from_numpy(y), None)

    def originals(self, scratch: Path) -> Originals:
        x, y = self._tables()
        return Originals([self._path(file) for file in self._files()], -(-len(y) // SLICE), in_slices(x, y))

    def _files(self) -> tuple[str, ...]:
        return (self.file,) if self.file else KNOWN[self.name].files

    def _tables(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the inputs [D, features] and labels [D] of all files."""
        parts = [self._read(file, KNOWN[self.name]) for file in self._files()]
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        return x, y

    def _read(self, file: str, source: Known) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the inputs [n, features] and labels [n] of a file."""
        from sklearn.datasets import load_svmlight_file  # a study dependency; the engine runs without it

        path = self._path(file)
        try:
            table: tuple[Any, NDArray[np.float64]] = load_svmlight_file(
                str(path), n_features=source.features, dtype=np.float32
            )
        except (ValueError, OSError, EOFError) as error:
            self.refuse(str(error).splitlines()[0], path)
        x, labels = table
        number = {label: place for place, label in enumerate(source.labels)}
        strange = sorted(set(labels.tolist()) - set(source.labels))
        if strange or not len(labels):
            self.refuse(f"labels must be {source.labels[0]} … {source.labels[-1]}, got {strange[:3]}", path)
        y = np.array([number[int(label)] for label in labels.tolist()], dtype=np.int64)
        return (x.toarray() / np.float32(source.largest)).astype(np.float32, copy=False), y

    def _path(self, file: str) -> Path:
        """Return the file, packed or not."""
        paths = [self.folder / f"{file}{ending}" for ending in ENDINGS]
        return next((path for path in paths if path.is_file()), None) or self.existing(paths[0])
