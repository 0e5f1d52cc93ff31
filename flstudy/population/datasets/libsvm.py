"""Tables of numbers in LIBSVM's sparse text format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.population.datasets.base import Dataset, Examples

PAGE = "see the LIBSVM data page, section multi-class; files may stay packed (.bz2, .gz)"


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


@dataclass
class LibSvm(Dataset):
    """Covertype or MNIST as the LIBSVM collection has them (Chang & Lin 2011), pooled, as in Master-FL (Ganguly &
    Aggarwal 2024, sec. VI).

    ``covtype`` is covtype.scale: 581,012 places, 54 features in [0, 1], seven kinds of forest, numbered 1 … 7 in the
    file and 0 … 6 here. ``mnist`` is mnist and mnist.t: 70,000 digits, 780 pixels, here divided by 255. What its
    authors put into training and test files is divided anew for each device.

    Args:
        name: covtype or mnist.
        root: folder with the files, packed or not.
        file: another file of the same kind instead, such as an unscaled one.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2011",)

    name: str = "covtype"
    root: str = "data"
    file: str | None = None

    def __post_init__(self) -> None:
        if self.name not in KNOWN:
            raise ValueError(f"LibSvm: name must be one of {', '.join(KNOWN)}, got {self.name!r}")
        self.shape, self.classes = (KNOWN[self.name].features,), len(KNOWN[self.name].labels)

    def load(self, seed: int, clients: int) -> Examples:
        known = KNOWN[self.name]
        parts = [self._read(file, known) for file in ((self.file,) if self.file else known.files)]
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Examples(torch.from_numpy(x), torch.from_numpy(y), None)

    def _read(self, file: str, known: Known) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inputs [n, features] and labels [n] of a file."""
        from sklearn.datasets import load_svmlight_file  # a study dependency; the engine runs without it

        path = self._path(file)
        try:
            table: tuple[Any, NDArray[np.float64]] = load_svmlight_file(
                str(path), n_features=known.features, dtype=np.float32
            )
        except (ValueError, OSError, EOFError) as error:
            self._refuse(path, str(error))
        x, labels = table
        number = {label: place for place, label in enumerate(known.labels)}
        strange = sorted(set(labels.tolist()) - set(known.labels))
        if strange or not len(labels):
            self._refuse(path, f"labels must be {known.labels[0]} … {known.labels[-1]}, got {strange[:3]}")
        y = np.array([number[int(label)] for label in labels.tolist()], dtype=np.int64)
        return (x.toarray() / np.float32(known.largest)).astype(np.float32, copy=False), y

    def _path(self, file: str) -> Path:
        """The file, packed or not."""
        paths = [Path(self.root) / f"{file}{ending}" for ending in ENDINGS]
        for path in paths:
            if path.is_file():
                return path
        missing = paths[0] if Path(self.root).is_dir() else Path(self.root)
        kind = "file" if Path(self.root).is_dir() else "folder"
        raise ValueError(
            f"LibSvm: there is no {kind} {str(missing)!r}: set root to the folder that holds {file}; {PAGE}"
        )

    def _refuse(self, path: Path, reason: str) -> NoReturn:
        raise ValueError(f"LibSvm: {path} is not as published: {reason.splitlines()[0]}; {PAGE}")
