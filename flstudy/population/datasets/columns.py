"""Columns of tables, and of rows that are mappings or tuples: what they mean, and how they become inputs and labels."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.user_error import UserError

LABELS = ("label", "labels", "target", "y")
SPLIT_NAMES = {"train": 0, "valid": 1, "validation": 1, "val": 1, "dev": 1, "test": 2}
"""Libraries' names of the splits, and their places in `SPLITS`."""
EXACT = 2**24  # the largest integer up to which single precision holds all

Missing = Literal["refuse", "mean", "zero"]


class Columns(NamedTuple):
    """Meaning of the columns of a table, or of the keys of rows that are mappings."""

    label: str | None = None  # None: the first of `LABELS` that there is
    client: str = "client"  # the column of owners, where there is one
    split: str = "split"  # the column that says train, valid or test, where there is one
    inputs: Sequence[str] | None = None  # None: all others
    missing: Missing = "refuse"  # what becomes of numbers that inputs lack
    rows_before: int = 0  # where a table is read in parts


ValuePath = tuple[str | int, ...]
"""Keys of mappings and places in tuples that lead to a value of a batch."""


@dataclass(frozen=True)
class RowForm:
    """Callable that turns inputs and labels into the batches that a DataLoader makes of rows that are mappings or
    tuples, nested as they may be."""

    label: ValuePath
    inputs: tuple[tuple[ValuePath, tuple[int, ...], str], ...]  # place, an example's shape, and numpy's kind of it

    def __call__(self, x: Tensor, y: Tensor) -> Any:
        """Return the batch of x [B, ...], y [B].

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
    y: Any  # [D, ...] a tensor, or the array of names or numbers of a column
    client: NDArray[Any] | None = None  # [D] numbers or names
    split: NDArray[np.int64] | None = None  # [D] places in `SPLITS`
    form: RowForm | None = None  # of rows that are no pairs


def column_name(path: ValuePath) -> str:
    """Return the name of a value's column: its keys and places with points between them."""
    return ".".join(map(str, path))


def nested(values: Mapping[ValuePath, Tensor]) -> Any:
    """Return the mappings and lists whose values [D, ...] are given by their places."""
    if () in values:
        return values[()]
    parts: dict[str | int, dict[ValuePath, Tensor]] = {}
    for (key, *rest), value in values.items():
        parts.setdefault(key, {})[tuple(rest)] = value
    batch = {key: nested(part) for key, part in parts.items()}
    return [batch[k] for k in sorted(batch)] if all(isinstance(key, int) for key in batch) else batch


def column_values(name: object, values: Sequence[Any]) -> NDArray[Any]:
    """Return [D, ...]: the values of a column; images as numbers in [0, 1], channels first. A number that is missing is
    NaN; where a name is, the array is of objects.

    Raises:
        UserError: for values of several shapes.
    """
    present = [value for value in values if not is_gap(value)]
    if len(present) < len(values):
        numbers = all(isinstance(value, bool | int | float | np.number) for value in present)
        return np.array(values, dtype=np.float64 if numbers else object)
    try:
        return np.stack([_pixels(value) if hasattr(value, "getbands") else np.asarray(value) for value in values])
    except ValueError as error:
        raise UserError(f"dataset: column {name!r} must hold values of one shape: pad or resize them") from error


def is_gap(value: Any) -> bool:
    """Return whether this is null or NaN, which stand for a value that is missing."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def gaps_of(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [D, ...]: whether each value of a column [D, ...] is missing: a NaN, null, or empty name."""
    if values.dtype.kind == "f":
        return np.array(np.isnan(values))
    if values.dtype.kind not in "OUS":
        return np.zeros(values.shape, dtype=np.bool_)
    gaps = [is_gap(value) or (isinstance(value, str) and not value) for value in values.flat]
    return np.array(gaps, dtype=np.bool_).reshape(values.shape)


def refuse_gaps(name: str, values: NDArray[Any], columns: Columns, advice: str = "drop or fill those rows") -> None:
    """Raise UserError for a column [D, ...] in which values are missing."""
    rows = np.flatnonzero(gaps_of(values).reshape(len(values), -1).any(1))
    if len(rows):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        raise UserError(
            f"dataset: column {name!r} must have a value in every row, got none in row "
            f"{columns.rows_before + rows[0] + 1}{more}: {advice}"
        )


def without_gaps(name: str, values: NDArray[Any], columns: Columns) -> NDArray[Any]:
    """Return a column of inputs [D, ...] with numbers in place of those that are missing.

    Raises:
        UserError: where they are refused, or have no mean.
    """
    gaps = gaps_of(values)
    if not gaps.any():
        return values
    unknown = columns.missing == "mean" and gaps.all(0).any()
    if columns.missing == "refuse" or values.dtype.kind != "f" or unknown:
        refuse_gaps(name, values, columns, "drop or fill those rows, or set missing: mean or zero")
    return np.where(gaps, 0.0 if columns.missing == "zero" else np.nanmean(values, axis=0), values)


def _pixels(image: Any) -> NDArray[np.float32]:
    """Return a PIL image [channels, height, width], as torchvision's ToTensor has it."""
    pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def label_and_inputs(arrays: Mapping[str, NDArray[Any]], columns: Columns) -> tuple[str, list[str]]:
    """Return the names of the columns of labels and of inputs among columns [D, ...] by name."""
    label = columns.label or next((name for name in LABELS if name in arrays), LABELS[0])
    special = [name for name in (label, columns.client, columns.split) if name in arrays]
    inputs = list(columns.inputs) if columns.inputs is not None else [name for name in arrays if name not in special]
    return label, inputs


def part_of_columns(arrays: Mapping[str, NDArray[Any]], columns: Columns) -> Part:
    """Return the examples of columns [D, ...] by name.

    Raises:
        UserError: for columns that are not there, are no numbers, or lack values.
    """
    names, (label, inputs) = list(arrays), label_and_inputs(arrays, columns)
    for what, name in (("label", label), *(("inputs", name) for name in inputs)):
        if name not in arrays:
            raise UserError(f"dataset: {what} must name a column, got {name!r}: there are {', '.join(names)}")
    for name in (label, columns.client, columns.split):
        if name in arrays:
            refuse_gaps(name, arrays[name], columns)
    arrays = {**arrays, **{name: without_gaps(name, arrays[name], columns) for name in inputs}}
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
    split = arrays.get(columns.split)
    return Part(
        torch.from_numpy(x),
        arrays[label],
        arrays.get(columns.client),
        None if split is None else _places(columns.split, split),
    )


def refuse_inexact(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise UserError for columns [D, ...] of integers that change beside others, as floats of single precision."""
    for name, values in arrays.items():
        whole = values.dtype.kind in "iu" or (values.dtype == np.float64 and (values == np.rint(values)).all())
        if whole and values.size and (most := int(np.abs(values).max())) > EXACT:
            raise UserError(
                f"dataset: column {name!r} must hold integers up to {EXACT}, which single precision keeps, got {most}: "
                "leave it out, or number its values"
            )


def _places(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    for value in np.unique(values):
        if str(value) not in SPLIT_NAMES:
            raise UserError(f"dataset: column {name!r} must say train, valid or test, got {str(value)!r}")
    return np.array([SPLIT_NAMES[str(value)] for value in values], dtype=np.int64)


def numbers_or_names(values: NDArray[Any]) -> NDArray[Any]:
    """Return [...]: numbers [...] as they are, and anything else as its name."""
    return values if values.dtype.kind in "fiub" else values.astype(str)


def numbered_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return the labels [D, ...] of a column as they are in a batch.

    Names, and integers of two values, are numbered from 0 by their order. Other integers stay, and real numbers come in
    single precision.

    Raises:
        UserError: for integers below 0.
    """
    if y.dtype.kind == "f":
        return y.astype(np.float32)
    if y.dtype.kind not in "iub":
        return np.unique(y.astype(str), return_inverse=True)[1]
    y = y.astype(np.int64)
    values = np.unique(y)
    if y.ndim == 1 and len(values) == 2 and values.tolist() != [0, 1]:
        warnings.warn(f"dataset: labels {values[0]} and {values[1]} are numbered 0 and 1", stacklevel=2)
        return np.searchsorted(values, y)
    if y.ndim == 1 and values[0] < 0:
        raise UserError(f"dataset: labels must be integers from 0, real numbers or names, got {values[0]}")
    return y
