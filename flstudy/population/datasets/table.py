"""A table in a file: examples with their owners and splits as columns."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from flstudy.population.datasets.base import Examples, FileDataset
from flstudy.population.datasets.in_memory import InMemory


def _csv(path: Path) -> Any:
    from pyarrow import csv  # a study dependency; the engine runs without it

    return csv.read_csv(path)


def _parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path)


def _arrow(path: Path) -> Any:
    from pyarrow import feather

    return feather.read_table(path)


@dataclass(frozen=True, kw_only=True)
class TableFile(FileDataset):
    """A CSV, Parquet or Arrow file of examples, one in a row."""

    citations: ClassVar[tuple[str, ...]] = ()

    readers: ClassVar[dict[str, Callable[[Path], Any]]] = {
        ".csv": _csv,
        ".parquet": _parquet,
        ".arrow": _arrow,
        ".feather": _arrow,
    }

    file: str
    """Its name, which ends in .csv, .parquet, .arrow or .feather."""
    root: str = "."
    """Folder of the file."""
    label: str | None = None
    """The column of labels; null takes the first of label, labels, target and y that there is."""
    client: str = "client"
    """The column of owners, where there is one: numbers from 0, or names."""
    split: str = "split"
    """The column that says train, valid or test, where there is one."""
    inputs: list[str] | None = None
    """The columns of inputs; null takes all others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.file).suffix not in self.readers:
            raise ValueError(f"TableFile: file must end in one of {', '.join(self.readers)}, got {self.file!r}")

    @cached_property
    def _read(self) -> InMemory:
        path = self.existing(self.folder / self.file)
        try:
            table = self.readers[path.suffix](path)
        except (OSError, ValueError) as error:  # pyarrow's own are of these kinds
            raise ValueError(f"TableFile: {path} cannot be read: {str(error).splitlines()[0]}") from error
        return InMemory(table, label=self.label, client=self.client, split=self.split, inputs=self.inputs)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._read.shape

    @property
    def classes(self) -> int:
        return self._read.classes

    @property
    def remedy(self) -> str:
        return "set root and file to a table of yours"

    def load(self, seed: int, clients: int) -> Examples:
        return self._read.examples
