"""A user's own examples, in the forms that libraries give them: tensors, map-style data sets, tables, Hugging Face
data sets, LightningDataModules, and one (train, valid, test) for each client."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from flstudy.lightning_hooks import BATCH_HOOKS
from flstudy.population.datasets.base import SPLITS, Dataset, Examples
from flstudy.user_error import UserError

LABELS = ("label", "labels", "target", "y")
SPLIT_NAMES = {"train": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2}
"""Libraries' names of the splits, and their places in `SPLITS`."""
EXACT = 2**24  # the largest integer up to which single precision holds all
AGAIN = 64  # examples of a map-style data set that are read twice


class Columns(NamedTuple):
    """Meaning of the columns of a table, or of the keys of rows that are mappings."""

    label: str | None = None  # None: the first of `LABELS` that there is
    client: str = "client"  # the column of owners, where there is one
    split: str = "split"  # the column that says train, valid or test, where there is one
    inputs: Sequence[str] | None = None  # None: all others


ValuePath = tuple[str | int, ...]
"""Keys of mappings and places in tuples that lead to a value of a batch."""


@dataclass(frozen=True)
class RowForm:
    """Callable that turns inputs and labels into the batches that a DataLoader makes of rows that are mappings or
    tuples, nested as they may be."""

    label: ValuePath
    inputs: tuple[tuple[ValuePath, tuple[int, ...], str], ...]  # place, an example's shape, and numpy's kind of it

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """The batch of x [B, ...], y [B].

        Raises:
            UserError: in half precision, which does not hold integers such as the numbers of words.
        """
        values, start, flat = {self.label: y}, 0, x.flatten(1)
        for path, shape, kind in self.inputs:
            if kind in "iu" and x.is_floating_point() and torch.finfo(x.dtype).bits < 32:
                precision = str(x.dtype).removeprefix("torch.")
                raise UserError(
                    f"dataset: column {column_name(path)!r} holds integers, which {precision} does not: set precision "
                    "to 32-true or bf16-mixed"
                )
            size = math.prod(shape)
            value = flat[:, start : start + size].reshape(len(x), *shape)
            values[path] = value if kind == "f" else value.to(torch.bool if kind == "b" else torch.int64)
            start += size
        return nested(values)


class Part(NamedTuple):
    """Some of the examples, before names are numbered."""

    x: Tensor  # [D, ...]
    y: Any  # [D, ...] a tensor, or an array of names
    client: NDArray[Any] | None = None  # [D] numbers or names
    split: NDArray[np.int64] | None = None  # [D] places in `SPLITS`
    form: RowForm | None = None  # of rows that are no pairs


class InMemory(Dataset):
    """A user's own data, in any of the forms that libraries give them.

    Args:
        data: a tuple of two tensors (x, y); a map-style ``torch.utils.data.Dataset`` of (x, y), of mappings as Hugging
            Face's are, or of both nested in each other; a pyarrow table or a pandas frame; several of them by split,
            such as ``{"train": ..., "test": ...}``; a LightningDataModule, of which the three loaders' data sets are
            read; or a list of (train, valid, test), one for each client.
        label: the column of labels; null takes the first of label, labels, target and y that there is, of tuples the
            last value. A value in a mapping or tuple of another is called ``target.kind``, or ``0.1``.
        client: the column of owners: numbers from 0, or names, which are numbered in their order.
        split: the column that says train, valid or test.
        inputs: the columns of inputs; null takes all others. One column is taken as it is, several numbers are stacked.

    Raises:
        UserError: for anything else.
    """

    def __init__(
        self,
        data: Any,
        *,
        label: str | None = None,
        client: str = "client",
        split: str = "split",
        inputs: Sequence[str] | None = None,
    ) -> None:
        part = part_of(data, Columns(label, client, split, inputs))
        self.examples, self._form = numbered(part), part.form

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.examples.x.shape[1:])

    @cached_property
    def classes(self) -> int:
        y = self.examples.y
        return 0 if torch.is_floating_point(y) else int(y.max()) + 1

    @property
    def form(self) -> Callable[[Tensor, Tensor], Any] | None:
        return self._form

    def load(self, seed: int, clients: int) -> Examples:
        return self.examples


def numbered(part: Part) -> Examples:
    """Examples whose labels and owners are numbers.

    Raises:
        UserError: for none, or as many inputs as there are no labels.
    """
    if len(part.x) != len(part.y) or len(part.x) == 0:
        raise UserError(
            f"dataset must hold as many inputs as labels, at least one, got {len(part.x)} and {len(part.y)}"
        )
    y = part.y if isinstance(part.y, Tensor) else torch.from_numpy(np.unique(part.y, return_inverse=True)[1])
    owner = part.client
    if owner is not None and owner.dtype.kind not in "iu":
        owner = np.unique(owner.astype(str), return_inverse=True)[1]
    return Examples(
        part.x,
        y,
        None if owner is None else torch.from_numpy(owner.astype(np.int64)),
        None if part.split is None else torch.from_numpy(part.split),
    )


# ---- forms -------------------------------------------------------------------------------------------------------


def part_of(data: Any, columns: Columns) -> Part:
    """The examples of whatever form the data have.

    Raises:
        UserError: for no known form.
    """
    for knows, read in FORMS:
        if knows(data):
            return read(data, columns)
    raise UserError(
        f"dataset must be a flstudy dataset, a map-style torch dataset of (x, y) or a tuple of two tensors, "
        f"got {type(data).__name__}"
    )


def is_pair(value: Any) -> bool:
    """Whether this is a pair of tensors (x, y)."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, Tensor) for part in value)


def is_by_split(value: Any) -> bool:
    """Whether these are data sets by the names of splits."""
    return isinstance(value, Mapping) and len(value) > 0 and set(value) <= set(SPLIT_NAMES)


def is_by_client(value: Any) -> bool:
    """Whether these are three data sets for each client."""
    return isinstance(value, tuple | list) and len(value) > 0 and all(map(is_three_sets, value))


def is_three_sets(value: Any) -> bool:
    """Whether this is a (train, valid, test), each with a length of its own."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 3
        and all(is_pair(part) or (is_mapped(part) and not isinstance(part, Tensor)) for part in value)
    )


def is_table(value: Any) -> bool:
    """Whether this is a table of pyarrow or pandas."""
    return type(value).__module__.partition(".")[0] in ("pyarrow", "pandas") and hasattr(value, "columns")


def is_mapped(value: Any) -> bool:
    """Whether this is a map-style data set."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | Mapping)


def _by_split(data: Mapping[str, Any], columns: Columns) -> Part:
    return all_parts(
        (part_of(part, columns), None, SPLIT_NAMES[name]) for name, part in data.items() if part is not None
    )


def _by_client(data: Sequence[Any], columns: Columns) -> Part:
    return all_parts(
        (part_of(part, columns), client, place)
        for client, three in enumerate(data)
        for place, part in enumerate(three)
        if len(part) > 0
    )


def _module(data: L.LightningDataModule, columns: Columns) -> Part:
    """The data sets of the loaders that a module has, read with the loaders' own collate function.

    Raises:
        UserError: for loaders of other data sets than map-style ones, or a module that changes batches itself.
    """
    for hook in BATCH_HOOKS:
        if getattr(type(data), hook) is not getattr(L.LightningDataModule, hook):
            raise UserError(
                f"dataset: {type(data).__name__}.{hook} would not be called, since examples are read once: move it to "
                "the LightningModule, whose hook is called for every batch"
            )
    data.prepare_data()
    for stage in ("fit", "test"):
        data.setup(stage)
    parts = []
    for place, (name, stage) in enumerate(zip(SPLITS, ("train", "val", "test"), strict=True)):
        try:
            loaders = getattr(data, f"{stage}_dataloader")()
        except (NotImplementedError, L.pytorch.utilities.exceptions.MisconfigurationException):
            continue  # Lightning's own method, which the module does not replace
        for loader in loaders if isinstance(loaders, list | tuple) else [loaders]:
            if not is_mapped(getattr(loader, "dataset", None)):
                raise UserError(
                    f"dataset: the {name} loader of {type(data).__name__} must be a DataLoader of a map-style dataset, "
                    f"got {type(getattr(loader, 'dataset', loader)).__name__}"
                )
            parts.append((_mapped(loader.dataset, columns, loader.collate_fn), None, place))
    return all_parts(parts)


def _mapped(data: Any, columns: Columns, collate: Callable[[Any], Any] = default_collate) -> Part:
    rows = next(iter(DataLoader(data, batch_size=len(data), collate_fn=list))) if len(data) else []
    refuse_random(data, rows)
    if rows and isinstance(rows[0], Mapping) and collate is default_collate:
        values = [values_by_path(row, (tuple,)) for row in rows]
        arrays = {path: column_values(column_name(path), [row[path] for row in values]) for path in values[0]}
        return _nested(arrays, columns)
    try:
        batch = collate(rows) if rows else data
    except (RuntimeError, TypeError) as error:  # torch's words for rows of several shapes or kinds
        reason = str(error).splitlines()[0]
        raise UserError(
            f"dataset: its examples do not fit into one batch ({reason[:100]}): pad or resize them"
        ) from error
    if is_pair(batch):
        return Part(*batch)
    tensors = values_by_path(batch, (tuple, list)) if rows else {}
    if not tensors or not all(isinstance(part, Tensor) and part.shape[:1] == (len(rows),) for part in tensors.values()):
        raise UserError(
            "dataset must be a flstudy dataset, a map-style torch dataset of (x, y), of mappings or tuples of numbers, "
            f"or a tuple of two tensors, got {type(data).__name__}"
        )
    return _nested({path: part.numpy(force=True) for path, part in tensors.items()}, columns)


def _nested(arrays: Mapping[ValuePath, NDArray[Any]], columns: Columns) -> Part:
    """Examples of the values [D, ...] of rows, by their places."""
    paths = {column_name(path): path for path in arrays}
    named = {name: arrays[path] for name, path in paths.items()}
    columns = columns._replace(label=columns.label or _label(list(arrays)))
    part, (label, inputs) = _columns(named, columns), _names(named, columns)
    kinds = tuple((paths[name], named[name].shape[1:], named[name].dtype.kind) for name in inputs)
    return part._replace(form=RowForm(paths[label], kinds))


def _label(paths: Sequence[ValuePath]) -> str | None:
    """The name of the labels among the values of rows: of tuples the last, of mappings one of `LABELS`; None: there is
    none, or several."""
    if isinstance(paths[-1][0], int):
        return column_name(paths[-1]) if len(paths[-1]) == 1 else None
    for name in LABELS:
        nested_paths = [path for path in paths if path[-1] == name]
        if (name,) in nested_paths or len(nested_paths) == 1:
            return column_name(min(nested_paths, key=len))
    return None


def values_by_path(row: Any, sequences: tuple[type, ...], path: ValuePath = ()) -> dict[ValuePath, Any]:
    """The values of nested mappings and sequences by their places; sequences of other types are values.

    Raises:
        UserError: for keys that are no names.
    """
    if isinstance(row, Mapping):
        if (key := next((key for key in row if not isinstance(key, str)), None)) is not None:
            raise UserError(f"dataset: the keys of a row must be names, got {key!r}: give it one")
        parts: list[tuple[str | int, Any]] = [*row.items()]
    elif isinstance(row, sequences):
        parts = [*enumerate(cast(Sequence[Any], row))]
    else:
        return {path: row}
    return {
        place: value for key, part in parts for place, value in values_by_path(part, sequences, (*path, key)).items()
    }


def nested(values: Mapping[ValuePath, Tensor]) -> Any:
    """The mappings and lists whose values are given by their places."""
    if () in values:
        return values[()]
    parts: dict[str | int, dict[ValuePath, Tensor]] = {}
    for (key, *rest), value in values.items():
        parts.setdefault(key, {})[tuple(rest)] = value
    batch = {key: nested(part) for key, part in parts.items()}
    return [batch[k] for k in sorted(batch)] if all(isinstance(key, int) for key in batch) else batch


def column_name(path: ValuePath) -> str:
    """The name of a value's column: its keys and places with points between them."""
    return ".".join(map(str, path))


def refuse_random(data: Any, rows: Sequence[Any]) -> None:
    """Raise UserError for a map-style data set some of whose rows differ when they are read again."""
    for k in sorted({round(place * (len(rows) - 1) / max(AGAIN - 1, 1)) for place in range(AGAIN)} if rows else ()):
        if not is_same(rows[k], data[k]):
            raise UserError(
                f"dataset: example {k} of {type(data).__name__} differs when it is read again, but examples are read "
                "once for all epochs: move random transforms to on_after_batch_transfer of the LightningModule"
            )


def is_same(value: Any, other_value: Any) -> bool:
    """Whether two rows hold the same values."""
    if isinstance(value, Mapping):
        return all(is_same(value[name], other_value[name]) for name in value)
    if isinstance(value, list | tuple):
        return all(map(is_same, value, other_value))
    if isinstance(value, Tensor | np.ndarray | int | float):
        array = np.asarray(value)
        return np.array_equal(array, np.asarray(other_value), equal_nan=array.dtype.kind == "f")
    return bool(np.all(value == other_value)) if isinstance(value, str | bytes) else True


def _table(data: Any, columns: Columns) -> Part:
    if hasattr(data, "column_names"):
        return _columns(
            {name: column_values(name, data.column(name).to_pylist()) for name in data.column_names}, columns
        )
    return _columns({str(name): column_values(name, data[name].tolist()) for name in data.columns}, columns)


FORMS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Columns], Part]], ...] = (
    (is_pair, lambda data, columns: Part(*data)),
    (is_by_split, _by_split),
    (lambda data: isinstance(data, L.LightningDataModule), _module),
    (is_by_client, _by_client),
    (is_table, _table),
    (is_mapped, _mapped),
)
"""Test and reader of each form; the first form that fits is read."""


# ---- columns -----------------------------------------------------------------------------------------------------


def column_values(name: object, values: Sequence[Any]) -> NDArray[Any]:
    """[D, ...]: the values of a column; images as numbers in [0, 1], channels first.

    Raises:
        UserError: for missing values, or values of several shapes.
    """
    if any(value is None for value in values):
        raise UserError(f"dataset: column {name!r} must have a value in every row, got null: drop or fill those rows")
    try:
        return np.stack([_pixels(value) if hasattr(value, "getbands") else np.asarray(value) for value in values])
    except ValueError as error:
        raise UserError(f"dataset: column {name!r} must hold values of one shape: pad or resize them") from error


def _pixels(image: Any) -> NDArray[np.float32]:
    """A PIL image [channels, height, width], as torchvision's ToTensor has it."""
    pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _names(arrays: Mapping[str, NDArray[Any]], columns: Columns) -> tuple[str, list[str]]:
    """The columns of labels and of inputs."""
    label = columns.label or next((name for name in LABELS if name in arrays), LABELS[0])
    special = [name for name in (label, columns.client, columns.split) if name in arrays]
    inputs = list(columns.inputs) if columns.inputs is not None else [name for name in arrays if name not in special]
    return label, inputs


def _columns(arrays: Mapping[str, NDArray[Any]], columns: Columns) -> Part:
    names, (label, inputs) = list(arrays), _names(arrays, columns)
    for what, name in (("label", label), *(("inputs", name) for name in inputs)):
        if name not in arrays:
            raise UserError(f"dataset: {what} must name a column, got {name!r}: there are {', '.join(names)}")
    numbers = [name for name in inputs if arrays[name].dtype.kind in "fiub"]
    if not inputs or numbers != inputs:
        strange = next((name for name in inputs if name not in numbers), "none")
        raise UserError(f"dataset: inputs must be columns of numbers, got {strange!r}: leave it out, or encode it")
    if len(inputs) == 1 and arrays[inputs[0]].ndim > 1:
        x = arrays[inputs[0]]
    else:
        refuse_inexact({name: arrays[name] for name in inputs})
        x = np.concatenate([arrays[name].reshape(len(arrays[name]), -1).astype(np.float32) for name in inputs], axis=1)
    x = x.astype(np.float32) if x.dtype.kind == "f" else x
    y = arrays[label]
    split = arrays.get(columns.split)
    return Part(
        torch.from_numpy(x),
        torch.from_numpy(y.astype(np.float32) if y.dtype.kind == "f" else y.astype(np.int64))
        if y.dtype.kind in "fiub"
        else y.astype(str),
        arrays.get(columns.client),
        None if split is None else _places(columns.split, split),
    )


def refuse_inexact(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise UserError for integers that change where they stand beside others as floats of single precision."""
    for name, values in arrays.items():
        if values.dtype.kind in "iu" and values.size and (most := int(np.abs(values).max())) > EXACT:
            raise UserError(
                f"dataset: column {name!r} must hold integers up to {EXACT}, which single precision keeps, got {most}: "
                "leave it out, or number its values"
            )


def _places(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    for value in np.unique(values):
        if str(value) not in SPLIT_NAMES:
            raise UserError(f"dataset: column {name!r} must say train, valid or test, got {str(value)!r}")
    return np.array([SPLIT_NAMES[str(value)] for value in values], dtype=np.int64)


def all_parts(parts: Iterable[tuple[Part, int | None, int]]) -> Part:
    """All of the parts, each with the client and the split that it is given.

    Raises:
        UserError: for parts that do not fit each other.
    """
    labelled = [
        (part, part.client if client is None else np.full(len(part.x), client), np.full(len(part.x), place))
        for part, client, place in parts
    ]
    if not labelled:
        raise UserError("dataset must hold at least one example, got no data set for training, validation or testing")
    shapes = {tuple(part.x.shape[1:]) for part, *_ in labelled}
    owned = {client is None for _, client, _ in labelled}
    if len(shapes) > 1 or len(owned) > 1:
        what = f"inputs of one shape, got {sorted(shapes)}" if len(shapes) > 1 else "a client column in all or in none"
        raise UserError(f"dataset: its parts must have {what}")
    tensors = [isinstance(part.y, Tensor) for part, *_ in labelled]
    return Part(
        torch.cat([part.x for part, *_ in labelled]),
        (torch.cat if all(tensors) else np.concatenate)([part.y for part, *_ in labelled]),
        None if owned == {True} else np.concatenate([client for _, client, _ in labelled if client is not None]),
        np.concatenate([split for *_, split in labelled]).astype(np.int64),
        labelled[0][0].form if len({part.form for part, *_ in labelled}) == 1 else None,
    )
