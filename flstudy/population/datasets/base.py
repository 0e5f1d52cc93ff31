"""Data sets: examples in memory, and who owns them where the data set says so."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.hyper import Configurable, FilePath
from flstudy.user_error import UserError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Ranges(NamedTuple):
    """Natural devices whose examples lie side by side: first those for training, then those for validation, then those
    for testing. Where no device has any of a split, shares have to say."""

    starts: NDArray[np.int64]  # [N] row of each device's first example
    counts: NDArray[np.int64]  # [N, 3] its examples by place in `SPLITS`

    def owner(self, examples: int) -> NDArray[np.int64]:
        """Return [D]: the device of each of so many examples; -1: nobody's."""
        sizes, devices = self.counts.sum(1), np.full(examples, -1, dtype=np.int64)
        devices[self._rows(sizes)] = np.repeat(np.arange(len(sizes)), sizes)
        return devices

    def split(self, examples: int) -> NDArray[np.int64] | None:
        """Return [D]: the place in `SPLITS` of each example, nobody's being 0; None where shares have to say."""
        if not self.counts[:, 1:].any():
            return None
        places = np.zeros(examples, dtype=np.int64)
        places[self._rows(self.counts.sum(1))] = np.repeat(np.tile(np.arange(3), len(self.counts)), self.counts.ravel())
        return places

    def _rows(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the devices' rows, device by device."""
        rows: NDArray[np.int64] = np.repeat(self.starts - (sizes.cumsum() - sizes), sizes)
        rows += np.arange(len(rows))
        return rows


class Coding(NamedTuple):
    """Storage of examples in less memory than they take in a batch: inputs as uint8 pixels, narrow integers or real
    numbers, labels as narrow integers. In a batch integers are int64, pixels float32 normalised by channel, and real
    numbers as they are stored."""

    mean: Tensor  # float32 [channels, 1, 1] in 0 … 1; empty: inputs are no pixels
    deviation: Tensor  # likewise, [channels, 1, 1]

    def inputs(self, x: Tensor) -> Tensor:
        """Return the stored inputs [D, ...] as they are in a batch; the bits are the same wherever it is done."""
        if x.is_floating_point():
            return x
        if self.mean.numel() == 0:
            return x.to(torch.int64)
        return x.to(torch.float32).div(255).sub(self.mean).div(self.deviation)


class Examples(NamedTuple):
    """All examples of a data set."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example; labels below 0 are padding
    owner: Tensor | None  # [D] natural device of each example; None where a partition, or `ranges`, has to say
    split: Tensor | None = None  # [D] its place in `SPLITS`; None where shares, or `ranges`, have to say
    ranges: Ranges | None = None  # of natural devices whose examples lie side by side; they stand for owner and split
    coding: Coding | None = None  # of x and y; None: they are as a batch is given them


class Piece(NamedTuple):
    """Examples as they are stored: all of a natural device, or some of a pooled set's."""

    x: NDArray[Any]  # [n, ...] uint8 pixels, integers, or real numbers
    y: NDArray[Any]  # [n, ...]
    client: str | None  # the device's own name; None: of a pooled set
    split: NDArray[np.int64] | None = None  # [n] places in `SPLITS`; None where shares have to say


class Originals(NamedTuple):
    """A data set as its authors' files have it, piece by piece, so that it never has to be in memory as a whole."""

    files: list[Path]  # it is read from them
    total: int  # pieces
    pieces: Callable[[int], Iterator[Piece]]  # from the piece with that number on
    mean: tuple[float, ...] = ()  # of pixels, by channel in 0 … 1
    deviation: tuple[float, ...] = ()
    task: str = "classification"
    vocabulary: tuple[str, ...] = ()  # tokens, of which texts hold the numbers 1, 2, …
    shape: tuple[int, ...] | None = None  # of one input; None: the data set tells it without its examples in memory
    classes: int | None = None  # number of labels; None as for the shape


class Dataset(Configurable, ABC):
    """A source of examples. ``shape``, ``classes`` and ``tokens`` are known before loading, so that a task can be
    built; they are attributes of the class, or properties."""

    seeded: ClassVar[bool] = False
    """Whether the examples themselves differ between seeds."""
    mapped: ClassVar[bool] = False
    """Whether examples stay in files that every process maps, so that loading costs little and nobody keeps or shares
    them."""
    first_task: ClassVar[str] = "Mlp"
    """flstudy's task with which a study of this data set begins (``flstudy init``)."""
    natural: ClassVar[bool] = False
    """Whether examples have owners, so that a study needs no partition."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one example's input."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of labels."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the vocabulary of texts, padding 0 included; 0 where inputs are no texts."""
        return 0

    @property
    def form(self) -> Callable[[Tensor, Tensor], Any] | None:
        """Function of inputs [B, ...] and labels [B, ...] that makes the batch for a task's own steps; None: the batch
        is a pair."""
        return None

    @abstractmethod
    def load(self, seed: int, clients: int) -> Examples:
        """Return the examples for one replica of ``clients`` devices.

        Raises:
            UserError: its files do not have so many devices, or are not what they should be.
        """

    def originals(self, scratch: Path) -> Originals:
        """Return all people's examples, for a copy of them as Federated Parquet.

        Args:
            scratch: a folder for files that are gone when the process is.

        Raises:
            UserError: for a data set that cannot be copied, or files that are not as published.
        """
        raise UserError(
            f"{type(self).__name__} is not read from files, so there is nothing to prepare: name it as it is"
        )


@dataclass(frozen=True, kw_only=True)
class FileDataset(Dataset):
    """A data set in files that its authors publish."""

    licence: ClassVar[str] = "see its authors' page"
    """Licence under which its authors publish the data set."""
    inside: ClassVar[str] = ""
    """Folder in the root to which the authors' archive unpacks."""

    root: FilePath = "data"
    """Folder of the files."""

    @property
    def folder(self) -> Path:
        """Folder of the files."""
        return Path(self.root, self.inside)

    @property
    @abstractmethod
    def remedy(self) -> str:
        """Advice to the user for files that are not there, or not as published."""

    def existing(self, path: Path) -> Path:
        """Return the path, if there is such a file, or a UserError that names what is missing: its folder, or
        itself."""
        if not path.parent.is_dir():
            self.absent("folder", path.parent)
        if not path.is_file():
            self.absent("file", path)
        return path

    def absent(self, kind: str, path: Path) -> NoReturn:
        """Raise UserError for a file or folder that is not there."""
        raise UserError(f"{type(self).__name__}: there is no {kind} {str(path)!r}: {self.remedy}")

    def refuse(self, reason: object, path: Path | None = None) -> NoReturn:
        """Raise UserError for a file, or the folder, that is not as published."""
        raise UserError(f"{type(self).__name__}: {path or self.folder} is not as published: {reason}; {self.remedy}")
