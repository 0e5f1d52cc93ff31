"""Federated Parquet: a folder of examples sorted by client, of which opening reads no more than the table of clients.

    metadata.json            description: format number, shapes, classes, normalisation, licence, files with checksums
    clients.parquet          a row per client: id, offset, and how many examples of each split lie there in a row
    samples/part-*.parquet   the examples: client, split, x, y; for other programs, and to make the columns anew
    columns/x.npy, y.npy     the same examples uncompressed, one row after the other; they are mapped, not read
    vocabulary.parquet       of texts, the tokens of their numbers

A round reads some rows of thousands of clients that lie anywhere. Parquet decodes whole row groups to give one of their
rows, so that a cohort would cost its clients' row groups; the columns are indexed like memory, and processes of one
machine share their pages. They are made once, when a data set is prepared, or where the folder came without them.
"""

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.datasets.base import SPLITS, Ranges
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

FORMAT, VERSION = "federated parquet", 1
METADATA, CLIENTS, SAMPLES, COLUMNS, VOCABULARY = (
    "metadata.json",
    "clients.parquet",
    "samples",
    "columns",
    "vocabulary.parquet",
)
KEYS = {
    "name": str, "task": str, "licence": str, "shape": list, "label_shape": list, "classes": int, "tokens": int,
    "x": str, "y": str, "mean": list, "deviation": list, "examples": int, "clients": int, "splits": bool,
    "pooled": bool, "files": dict,
}  # fmt: skip
"""Keys of the metadata and their types, beside format, version and checksum."""
COLUMN_TYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")


class Metadata(NamedTuple):
    """Description of a folder of Federated Parquet, from its metadata.json."""

    name: str
    task: str
    licence: str
    shape: tuple[int, ...]
    label_shape: tuple[int, ...]  # of one example's labels
    classes: int
    tokens: int
    x: np.dtype[Any]
    y: np.dtype[Any]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    examples: int
    clients: int
    splits: bool  # whether examples come divided
    pooled: bool  # whether a partition has to say who owns what
    files: dict[str, dict[str, Any]]  # bytes and sha256 of each file but for this one

    def column(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the type and shape of one row of a mapped column."""
        kinds = {"x": (self.x, self.shape), "y": (self.y, self.label_shape), "split": (np.dtype(np.int8), ())}
        return kinds[name]

    @property
    def columns(self) -> tuple[str, ...]:
        """The mapped columns: of a pooled set also each example's split, where it has one."""
        return ("x", "y", "split") if self.pooled and self.splits else ("x", "y")


class ClientTable(NamedTuple):
    """The clients in the order of their examples."""

    ids: Any  # [N] a pyarrow column
    ranges: Ranges
    attributes: dict[str, Any]  # further pyarrow columns [N], such as a speed or a calendar of sessions


def seal(values: dict[str, Any]) -> str:
    """Return the text of a metadata file, closed with the checksum of all else in it."""
    plain = {"format": FORMAT, "version": VERSION, **values}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return json.dumps({**plain, "checksum": digest}, indent=1)


def read_metadata(folder: Path) -> Metadata:
    """Return the metadata of a folder of Federated Parquet.

    Raises:
        UserError: for a folder that is none, one of another version, or metadata that are damaged.
    """
    path = folder / METADATA
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"there is no prepared data set in {str(folder)!r}: make it with 'flstudy data prepare', or see "
            "'flstudy data list'"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is no JSON; {REMEDY}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise UserError(f"{path} is not of Federated Parquet: its format must be {FORMAT!r}; {REMEDY}")
    if (version := content.pop("version", None)) != VERSION:
        raise UserError(
            f"{path} is of version {version!r} of Federated Parquet, and this flstudy reads version {VERSION}: "
            "prepare the data again, or take the flstudy that wrote it"
        )
    checksum = content.pop("checksum", None)
    if json.loads(seal(content))["checksum"] != checksum or not all(
        isinstance(content.get(key), kind) for key, kind in KEYS.items()
    ):
        raise UserError(f"{path} is damaged: its contents do not give its checksum; {REMEDY}")
    if content["x"] not in COLUMN_TYPES or content["y"] not in COLUMN_TYPES:
        raise UserError(f"{path} names the types {content['x']} and {content['y']}, not some of {COLUMN_TYPES}")
    fields = {key: content[key] for key in KEYS}
    for key in ("shape", "label_shape", "mean", "deviation"):
        fields[key] = tuple(fields[key])
    return Metadata(**{**fields, "x": np.dtype(fields["x"]), "y": np.dtype(fields["y"])})


REMEDY = "prepare it again with 'flstudy data prepare'"


def damaged(path: Path, reason: str) -> NoReturn:
    """Raise UserError for a file that is not as it was written."""
    raise UserError(f"{path} is damaged: {reason}; {REMEDY}")


def read_clients(folder: Path, metadata: Metadata) -> ClientTable:
    """Return the table of clients, checked against the metadata.

    Raises:
        UserError: for a table that is not the one that was written, or contradicts itself.
    """
    from pyarrow import ArrowException, parquet  # a study dependency; the engine runs without it

    path = folder / CLIENTS
    recorded = metadata.files.get(CLIENTS, {})
    try:
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        if checksum != recorded.get("sha256"):
            damaged(path, "its bytes do not give its checksum")
        table = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        damaged(path, str(error).splitlines()[0][:80])
    needed = ("id", "offset", *SPLITS)
    missing = [name for name in needed if name not in table.column_names]
    if missing or len(table) != metadata.clients:
        damaged(path, f"it has {len(table)} clients, not {metadata.clients}" if not missing else f"no {missing[0]!r}")
    for name in needed:
        if table.column(name).null_count:
            damaged(path, f"column {name!r} has nulls")
    offset = table.column("offset").to_numpy().astype(np.int64)
    counts = np.stack([table.column(name).to_numpy().astype(np.int64) for name in SPLITS], 1)
    ends = counts.sum(1).cumsum()
    if (counts < 0).any() or (offset != ends - counts.sum(1)).any() or (len(ends) and ends[-1] != metadata.examples):
        damaged(path, "offsets and counts contradict each other")
    rest = {name: table.column(name) for name in table.column_names if name not in needed}
    return ClientTable(table.column("id"), Ranges(offset, counts), rest)


# ---- the mapped columns ------------------------------------------------------------------------------------------


def sample_files(folder: Path, metadata: Metadata) -> list[Path]:
    """Return the files of samples in their order."""
    return [folder / name for name in sorted(metadata.files) if name.startswith(f"{SAMPLES}/")]


def column_file(folder: Path, name: str) -> Path:
    """Return the path of a mapped column."""
    return folder / COLUMNS / f"{name}.npy"


def write_columns(folder: Path, metadata: Metadata, on_progress: Callable[[int], None] = lambda rows: None) -> None:
    """Make the mapped columns of the samples, all of them or none.

    Args:
        folder: of the data set.
        metadata: of it; its examples and types must be those of the samples.
        on_progress: progress callback, called with the number of rows that are written.

    Raises:
        UserError: for samples that are damaged.
        OSError: of the disk.
    """
    target = folder / COLUMNS
    target.mkdir(exist_ok=True)
    with contextlib.ExitStack() as opened:
        paths = [column_file(folder, name) for name in metadata.columns]
        hidden = [opened.enter_context(whole_file(path, shared=True, durable=True)) for path in paths]
        files: dict[str, BinaryIO] = {}
        for name, path in zip(metadata.columns, hidden, strict=True):
            kind, shape = metadata.column(name)
            files[name] = opened.enter_context(path.open("wb"))
            header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False}
            np.lib.format.write_array_header_1_0(files[name], {**header, "shape": (metadata.examples, *shape)})
        rows = 0
        for part in sample_files(folder, metadata):
            for arrays in read_part(part, metadata):
                for name, file in files.items():
                    file.write(np.ascontiguousarray(arrays[name]).data.cast("B"))
                rows += len(arrays["y"])
                on_progress(rows)
        if rows != metadata.examples:
            damaged(folder / SAMPLES, f"it holds {rows} examples, not {metadata.examples}")


def read_part(path: Path, metadata: Metadata) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the columns of a file of samples, a row group at a time.

    Raises:
        UserError: for a file that cannot be read, or is of other types and shapes.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(metadata.columns))
                yield {name: as_array(table.column(name), *metadata.column(name)) for name in metadata.columns}
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        damaged(path, (str(error).splitlines() or [""])[0][:80])


def as_array(column: Any, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return [n, *shape] of a column of numbers, of fixed-size lists of them, or of fixed-size bytes.

    Raises:
        UserError: for nulls, or another size.
    """
    import pyarrow as pa

    if column.null_count:
        raise UserError("there are nulls")
    combined = column.combine_chunks()
    chunks = combined.chunks if isinstance(combined, pa.ChunkedArray) else [combined]
    arrays = []
    for chunk in chunks:
        if pa.types.is_fixed_size_binary(chunk.type):
            wide = chunk.type.byte_width
            flat = np.frombuffer(chunk.buffers()[1], dtype=np.uint8)[chunk.offset * wide :][: len(chunk) * wide]
            flat = flat.view(kind)
        else:
            if pa.types.is_fixed_size_list(chunk.type):
                chunk = chunk.flatten()
            flat = chunk.to_numpy(zero_copy_only=False).astype(kind, copy=False)
        arrays.append(flat.reshape(-1, *shape))
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.empty((0, *shape), kind)


def mapped_column(folder: Path, metadata: Metadata, name: str) -> Tensor | None:
    """Return a column [D, ...] in mapped memory that cannot be written to; None where there is no such file.

    Raises:
        UserError: for a file that is not of this data set, or cut short.
    """
    path, (kind, shape) = column_file(folder, name), metadata.column(name)
    try:
        column = np.load(path, mmap_mode="r") if metadata.examples else np.empty((0, *shape), kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        damaged(path, str(error).splitlines()[0][:80])
    if column.dtype != kind or column.shape != (metadata.examples, *shape):
        damaged(path, f"it holds {column.dtype} {list(column.shape)}, not {kind} {[metadata.examples, *shape]}")
    with warnings.catch_warnings():
        # torch warns that writing to such a tensor is undefined; nothing in flstudy writes to examples.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(column)


def verify(folder: Path, metadata: Metadata, on_progress: Callable[[int], None] = lambda bytes: None) -> None:
    """Read every byte of the folder and compare each file with its checksum.

    Raises:
        UserError: for the first file whose bytes do not give its checksum.
    """
    done = 0
    for name, recorded in metadata.files.items():
        path = folder / name
        if not path.is_file():
            if name.startswith(f"{COLUMNS}/"):
                continue  # made anew when the folder is opened
            damaged(path, "it is not there")
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(2**22):
                digest.update(block)
                done += len(block)
                on_progress(done)
        if digest.hexdigest() != recorded["sha256"]:
            damaged(path, "its bytes do not give its checksum")


# ---- the data set ------------------------------------------------------------------------------------------------


def codes(shape: Sequence[int], kind: np.dtype[Any]) -> bool:
    """Return whether samples of a column are bytes, as images are, rather than lists of numbers."""
    return kind == np.uint8 and len(shape) > 1
