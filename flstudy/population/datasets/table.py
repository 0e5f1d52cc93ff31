"""A table in a file: examples with their owners and splits as columns."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import FilePath
from flstudy.population.datasets.base import Examples, FileDataset, Originals, Piece
from flstudy.population.datasets.columns import Columns, Missing, Part, numbered_labels, numbers_or_names
from flstudy.population.datasets.in_memory import InMemory, part_of
from flstudy.user_error import UserError

SLICE_ROWS = 2**14  # of a table that are turned into numbers at once


def _csv_batches(path: Path) -> Iterator[Any]:
    from pyarrow import csv

    yield from csv.open_csv(path)


def _parquet_batches(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(SLICE_ROWS)


def _arrow_batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        opened = pa.ipc.open_file(file)
        for number in range(opened.num_record_batches):
            yield opened.get_batch(number)


class Names:
    """Index of the names, or numbers, in a column that is read in parts."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._codes: list[NDArray[np.int32]] = []

    def add(self, values: NDArray[Any]) -> None:
        """Append the column's next part [D]."""
        values = numbers_or_names(values)
        uniques, inverse = np.unique(values, return_inverse=True)
        codes = np.array([self._known.setdefault(name, len(self._known)) for name in uniques.tolist()], dtype=np.int32)
        self._codes.append(codes[inverse])

    def sorted(self) -> tuple[list[Any], NDArray[np.int64]]:
        """Return all names in their order, and the place there of each row's [D]."""
        names = sorted(self._known)
        place = np.empty(len(names), dtype=np.int64)
        place[[self._known[name] for name in names]] = np.arange(len(names))
        return names, place[np.concatenate(self._codes)]


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
    natural: ClassVar[bool] = True  # where the file names them

    readers: ClassVar[dict[str, Callable[[Path], Any]]] = {
        ".csv": _csv,
        ".parquet": _parquet,
        ".arrow": _arrow,
        ".feather": _arrow,
    }

    batches: ClassVar[dict[str, Callable[[Path], Iterator[Any]]]] = {
        ".csv": _csv_batches,
        ".parquet": _parquet_batches,
        ".arrow": _arrow_batches,
        ".feather": _arrow_batches,
    }

    file: str
    """Name of the file, which ends in .csv, .parquet, .arrow or .feather."""
    root: FilePath = "."
    """Folder of the file."""
    label: str | None = None
    """The column of labels; null takes the first of label, labels, target and y that there is."""
    client: str = "client"
    """The column of owners, numbers or names, where there is one; they become devices in their order."""
    split: str = "split"
    """The column that says train, valid or test, where there is one."""
    inputs: list[str] | None = None
    """The columns of inputs; null takes all others."""
    missing: Missing = "refuse"
    """Treatment of numbers that rows of inputs lack: they are refused, or get the column's mean or 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.file).suffix not in self.readers:
            raise UserError(f"TableFile: file must end in one of {', '.join(self.readers)}, got {self.file!r}")

    @cached_property
    def _read(self) -> InMemory:
        path = self.existing(self.folder / self.file)
        try:
            table = self.readers[path.suffix](path)
        except (OSError, ValueError) as error:  # pyarrow's own are of these kinds
            raise UserError(f"TableFile: {path} cannot be read: {str(error).splitlines()[0]}") from error
        return InMemory(
            table,
            label=self.label,
            client=self.client,
            split=self.split,
            inputs=self.inputs,
            missing=self.missing,
        )

    def _columns(self) -> Columns:
        return Columns(self.label, self.client, self.split, self.inputs, self.missing)

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

    def originals(self, scratch: Path) -> Originals:
        path = self.existing(self.folder / self.file)
        clients, labels, numbers, splits = Names(), Names(), list[NDArray[Any]](), list[NDArray[np.int64]]()
        form: tuple[np.dtype[Any], tuple[int, ...]] | None = None
        rows = owned = 0
        with tempfile.TemporaryFile(dir=scratch) as aside:  # inputs in the file's order
            for part in self._in_parts(path):
                x = np.ascontiguousarray(part.x.numpy())
                if form is not None and form != (x.dtype, x.shape[1:]):
                    self.refuse(f"inputs are {form} at first and {(x.dtype, x.shape[1:])} from row {rows + 1} on", path)
                form, rows = (x.dtype, x.shape[1:]), rows + len(x)
                aside.write(x.data.cast("B"))
                if part.client is not None:
                    clients.add(part.client)
                    owned += len(x)
                if part.y.dtype.kind in "fiub":
                    numbers.append(part.y)
                else:
                    labels.add(part.y)
                if part.split is not None:
                    splits.append(part.split)
            if form is None:
                self.refuse("it holds no row", path)
            aside.flush()
            inputs = np.memmap(aside, dtype=form[0], mode="r", shape=(rows, *form[1]))
        y = numbered_labels(np.concatenate(numbers)) if numbers else labels.sorted()[1]
        split = np.concatenate(splits) if splits else None
        classes = 0 if y.dtype.kind == "f" else int(y.max()) + 1
        if owned:
            names, owner = clients.sorted()
            keys = (owner,) if split is None else (split, owner)
            order = np.lexsort(keys)  # of equal ones, the file's
            ends = np.searchsorted(owner[order], np.arange(len(names) + 1))
        else:
            names, order = [None] * -(-rows // SLICE_ROWS), np.arange(rows)
            ends = np.minimum(np.arange(len(names) + 1) * SLICE_ROWS, rows)

        def pieces(start: int) -> Iterator[Piece]:
            for place in range(start, len(names)):
                here, name = order[ends[place] : ends[place + 1]], names[place]
                divided = None if split is None else split[here]
                yield Piece(inputs[here], y[here], None if name is None else str(name), divided)

        return Originals([path], len(names), pieces, shape=tuple(form[1]), classes=classes)

    def _in_parts(self, path: Path) -> Iterator[Part]:
        """Yield the rows of a file, some at a time."""
        columns = self._columns()
        if columns.missing == "mean":  # of rows that are not in memory together
            raise UserError("TableFile: missing must be refuse or zero for a file that is prepared, got mean: fill it")
        try:
            for batch in self.batches[path.suffix](path):
                for begin in range(0, len(batch), SLICE_ROWS):
                    part = part_of(batch.slice(begin, SLICE_ROWS), columns)
                    columns = columns._replace(rows_before=columns.rows_before + len(part.x))
                    yield part
        except (OSError, ValueError) as error:
            if str(error).startswith("dataset:"):
                raise UserError(f"TableFile: {path}: {str(error).removeprefix('dataset: ')}") from error
            raise UserError(f"TableFile: {path} cannot be read: {str(error).splitlines()[0]}") from error
