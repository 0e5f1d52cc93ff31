"""Data sets: examples in memory, and who owns them where the data set says so."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn

from torch import Tensor

from flstudy.hyper import Configurable

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Examples(NamedTuple):
    """All examples of a data set."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example; labels below 0 are padding
    owner: Tensor | None  # [D] natural device of each example; None where a partition has to say
    split: Tensor | None = None  # [D] its place in `SPLITS`; None where shares have to say


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

    @property
    def form(self) -> Callable[[Tensor, Tensor], Any] | None:
        """What makes of inputs and labels the batch that a task's own steps are given; None: they are given a pair."""
        return None

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
