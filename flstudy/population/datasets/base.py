"""Data sets: examples in memory, and who owns them where the data set says so."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flstudy.hyper import Configurable


class Examples(NamedTuple):
    """All examples of a data set."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example; labels below 0 are padding
    owner: Tensor | None  # [D] natural device of each example; None where a partition has to say


class Dataset(Configurable, ABC):
    """A source of examples. ``shape``, ``classes`` and ``tokens`` are known before loading, so that a task can be
    built; they are attributes of the class, or properties."""

    seeded: ClassVar[bool] = False
    """Whether the examples themselves differ between seeds."""

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
        """Numbers of which texts are made, padding 0 included; 0 where inputs are no texts."""
        return 0

    @abstractmethod
    def load(self, seed: int, clients: int) -> Examples:
        """The examples for one replica of ``clients`` devices."""


@dataclass(frozen=True, kw_only=True)
class FileDataset(Dataset):
    """A data set in files that its authors publish."""

    inside: ClassVar[str] = ""
    """Folder in the root to which the authors' archive unpacks."""

    root: str = "data"
    """Folder of the files."""

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return Path(self.root, self.inside)

    @property
    @abstractmethod
    def remedy(self) -> str:
        """What to do where the files are not there, or not as published."""

    def existing(self, path: Path) -> Path:
        """The path, if there is such a file, or a ValueError that names what is missing: its folder, or itself."""
        if not path.parent.is_dir():
            self.absent("folder", path.parent)
        if not path.is_file():
            self.absent("file", path)
        return path

    def absent(self, kind: str, path: Path) -> NoReturn:
        """Raise ValueError for a file or folder that is not there."""
        raise ValueError(f"{type(self).__name__}: there is no {kind} {str(path)!r}: {self.remedy}")

    def refuse(self, reason: object, path: Path | None = None) -> NoReturn:
        """Raise ValueError for a file, or the folder, that is not as published."""
        raise ValueError(f"{type(self).__name__}: {path or self.folder} is not as published: {reason}; {self.remedy}")


class InMemory(Dataset):
    """A user's own data: a map-style ``torch.utils.data.Dataset`` of (x, y) pairs, or a tuple of two tensors."""

    def __init__(self, data: Any) -> None:
        batch = data
        mapped = hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str)
        if mapped and not is_pair(data) and len(data) > 0:
            batch = next(iter(DataLoader(data, batch_size=len(data))))
        if not is_pair(batch):
            raise ValueError(
                f"dataset must be a flstudy dataset, a map-style torch dataset of (x, y) or a tuple of two tensors, "
                f"got {type(data).__name__}"
            )
        x, y = batch
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"dataset must hold as many inputs as labels, at least one, got {len(x)} and {len(y)}")
        self.examples = Examples(x, torch.as_tensor(y), None)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.examples.x.shape[1:])

    @cached_property
    def classes(self) -> int:
        y = self.examples.y
        return 0 if torch.is_floating_point(y) else int(y.max()) + 1

    def load(self, seed: int, clients: int) -> Examples:
        return self.examples


def is_pair(value: Any) -> bool:
    """Whether this is a pair of tensors (x, y)."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, Tensor) for part in value)
