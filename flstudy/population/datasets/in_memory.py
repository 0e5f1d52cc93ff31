"""A user's own examples, in the forms that libraries give them: tensors, map-style data sets, tables, Hugging Face
data sets, LightningDataModules, and one (train, valid, test) for each client."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from flstudy.lightning_hooks import BATCH_HOOKS
from flstudy.population.datasets.base import SPLITS, Dataset, Examples
from flstudy.population.datasets.columns import (
    LABELS,
    SPLIT_NAMES,
    Columns,
    Missing,
    Part,
    RowForm,
    ValuePath,
    column_name,
    column_values,
    label_and_inputs,
    numbered_labels,
    numbers_or_names,
    part_of_columns,
)
from flstudy.population.datasets.loaders import sampled, tell_shared
from flstudy.process_state import PROCESS_STATE
from flstudy.user_error import UserError

ROWS = (Tensor, np.ndarray, list, tuple)  # what can be a row of a data set
AGAIN = 64  # examples of a map-style data set that are read twice


class InMemory(Dataset):
    """A user's own data, in any of the forms that libraries give them.

    Args:
        data: a tuple (x, y) of tensors or arrays; a map-style ``torch.utils.data.Dataset`` of (x, y), of mappings as
            Hugging Face's are, or of both nested in each other; a DataLoader, of which the examples are read that it
            yields in an epoch; a pyarrow table or a pandas frame; several of them by split, such as ``{"train": ...,
            "test": ...}``; a LightningDataModule with up to three loaders; or a list with an element for each client:
            a data set, or its (train, valid, test).
        label: the column of labels; null takes the first of label, labels, target and y that there is, of tuples the
            last value. A value in a mapping or tuple of another is called ``target.kind``, or ``0.1``.
        client: the column of owners, numbers or names, which become devices in their order.
        split: the column that says train, valid or test.
        inputs: the columns of inputs; null takes all others. One column is taken as it is, several numbers are stacked.
        missing: what becomes of numbers that rows of inputs lack: they are refused, or get the column's mean or 0.

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
        missing: Missing = "refuse",
    ) -> None:
        with PROCESS_STATE, torch.random.fork_rng(devices=[]):  # samplers and DataLoaders draw; nothing random stays
            part = part_of(data, Columns(label, client, split, inputs, missing))
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
    """Return the examples whose labels and owners are numbers.

    Raises:
        UserError: for none, or as many inputs as there are no labels.
    """
    if len(part.x) != len(part.y) or len(part.x) == 0:
        raise UserError(
            f"dataset must hold as many inputs as labels, at least one, got {len(part.x)} and {len(part.y)}"
        )
    owner = None if part.client is None else np.unique(numbers_or_names(part.client), return_inverse=True)[1]
    return Examples(
        part.x,
        part.y if isinstance(part.y, Tensor) else torch.from_numpy(numbered_labels(part.y)),
        None if owner is None else torch.from_numpy(owner),
        None if part.split is None else torch.from_numpy(part.split),
    )


# ---- forms -------------------------------------------------------------------------------------------------------


def part_of(data: Any, columns: Columns) -> Part:
    """Return the examples of whatever form the data have.

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
    """Return whether this is a pair (x, y) of tensors or arrays, or of one and a list of labels."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[0], Tensor | np.ndarray):
        return False
    return isinstance(value[1], Tensor | np.ndarray | list)


def is_by_split(value: Any) -> bool:
    """Return whether these are data sets by the names of splits."""
    return isinstance(value, Mapping) and len(value) > 0 and set(value) <= set(SPLIT_NAMES)


def is_by_client(value: Any) -> bool:
    """Return whether these are three data sets for each client."""
    return isinstance(value, tuple | list) and len(value) > 0 and all(map(is_three_sets, value))


def is_three_sets(value: Any) -> bool:
    """Return whether this is a (train, valid, test), each with a length of its own."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 3
        and all(
            is_pair(part) or isinstance(part, DataLoader) or (is_mapped(part) and not isinstance(part, Tensor))
            for part in value
        )
    )


def is_set_by_client(value: Any) -> bool:
    """Return whether these are data sets, one for each client."""
    return isinstance(value, tuple | list) and len(value) > 0 and all(map(is_set, value))


def is_set(value: Any) -> bool:
    """Return whether this is a data set, and no row of one."""
    return is_table(value) or isinstance(value, DataLoader) or (is_mapped(value) and not isinstance(value, ROWS))


def is_table(value: Any) -> bool:
    """Return whether this is a table of pyarrow or pandas."""
    return type(value).__module__.partition(".")[0] in ("pyarrow", "pandas") and hasattr(value, "columns")


def is_mapped(value: Any) -> bool:
    """Return whether this is a map-style data set."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, str | Mapping)


def _by_split(data: Mapping[str, Any], columns: Columns) -> Part:
    return all_parts(
        (part_of(part, columns), None, SPLIT_NAMES[name]) for name, part in data.items() if part is not None
    )


def _pair(data: Sequence[Any], columns: Columns) -> Part:
    x, y = data
    y = np.asarray(y) if isinstance(y, list) else y
    return Part(torch.as_tensor(x), y if isinstance(y, Tensor) or y.dtype.kind not in "fiub" else torch.as_tensor(y))


def _sets_by_client(data: Sequence[Any], columns: Columns) -> Part:
    return all_parts((part_of(part, columns), client, None) for client, part in enumerate(data))


def _by_client(data: Sequence[Any], columns: Columns) -> Part:
    return all_parts(
        (part_of(part, columns), client, place)
        for client, three in enumerate(data)
        for place, part in enumerate(three)
        if len(part) > 0
    )


def _module(data: L.LightningDataModule, columns: Columns) -> Part:
    """Return the examples of the loaders that a module has.

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
    splits: dict[str, list[DataLoader[Any]]] = {}
    for name, stage in zip(SPLITS, ("train", "val", "test"), strict=True):
        try:
            loaders = getattr(data, f"{stage}_dataloader")()
        except (NotImplementedError, L.pytorch.utilities.exceptions.MisconfigurationException):
            continue  # Lightning's own method, which the module does not replace
        splits[name] = list(loaders) if isinstance(loaders, list | tuple) else [loaders]
    called = f"of {type(data).__name__}"
    examples = {
        name: [sampled(loader, f"the {name} loader {called}") for loader in loaders] for name, loaders in splits.items()
    }
    tell_shared(examples)
    return all_parts(
        (_mapped(part, columns, loader.collate_fn), None, SPLIT_NAMES[name])
        for name, loaders in splits.items()
        for loader, part in zip(loaders, examples[name], strict=True)
    )


def _loader(data: "DataLoader[Any]", columns: Columns) -> Part:
    return _mapped(sampled(data, "a loader"), columns, data.collate_fn)


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
        return _pair(batch, columns)
    tensors = values_by_path(batch, (tuple, list)) if rows else {}
    if not tensors or not all(isinstance(part, Tensor) and part.shape[:1] == (len(rows),) for part in tensors.values()):
        raise UserError(
            "dataset must be a flstudy dataset, a map-style torch dataset of (x, y), of mappings or tuples of numbers, "
            f"or a tuple of two tensors, got {type(data).__name__}"
        )
    return _nested({path: part.numpy(force=True) for path, part in tensors.items()}, columns)


def _nested(arrays: Mapping[ValuePath, NDArray[Any]], columns: Columns) -> Part:
    """Return the examples of the values [D, ...] of rows, by their places."""
    paths = {column_name(path): path for path in arrays}
    named = {name: arrays[path] for name, path in paths.items()}
    columns = columns._replace(label=columns.label or _label(list(arrays)))
    part, (label, inputs) = part_of_columns(named, columns), label_and_inputs(named, columns)
    kinds = tuple((paths[name], named[name].shape[1:], named[name].dtype.kind) for name in inputs)
    return part._replace(form=RowForm(paths[label], kinds))


def _label(paths: Sequence[ValuePath]) -> str | None:
    """Return the name of the labels among the values of rows: of tuples the last, of mappings one of `LABELS`; None:
    there is none, or several."""
    if isinstance(paths[-1][0], int):
        return column_name(paths[-1]) if len(paths[-1]) == 1 else None
    for name in LABELS:
        nested_paths = [path for path in paths if path[-1] == name]
        if (name,) in nested_paths or len(nested_paths) == 1:
            return column_name(min(nested_paths, key=len))
    return None


def values_by_path(row: Any, sequences: tuple[type, ...], path: ValuePath = ()) -> dict[ValuePath, Any]:
    """Return the values of nested mappings and sequences by their places; sequences of other types are values.

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


def refuse_random(data: Any, rows: Sequence[Any]) -> None:
    """Raise UserError for a map-style data set some of whose rows differ when they are read again."""
    for k in sorted({round(place * (len(rows) - 1) / max(AGAIN - 1, 1)) for place in range(AGAIN)} if rows else ()):
        if not is_same(rows[k], data[k]):
            raise UserError(
                f"dataset: example {k} of {type(data).__name__} differs when it is read again, but examples are read "
                "once for all epochs: move random transforms to on_after_batch_transfer of the LightningModule"
            )


def is_same(value: Any, other_value: Any) -> bool:
    """Return whether two rows hold the same values."""
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
        return part_of_columns(
            {name: column_values(name, data.column(name).to_pylist()) for name in data.column_names}, columns
        )
    meant = {columns.label, columns.client, columns.split}
    data = data.reset_index(level=[name for name in data.index.names if name is not None and name in meant])
    return part_of_columns({str(name): column_values(name, data[name].tolist()) for name in data.columns}, columns)


FORMS: tuple[tuple[Callable[[Any], bool], Callable[[Any, Columns], Part]], ...] = (
    (is_pair, _pair),
    (is_by_split, _by_split),
    (lambda data: isinstance(data, L.LightningDataModule), _module),
    (is_by_client, _by_client),
    (is_set_by_client, _sets_by_client),
    (is_table, _table),
    (lambda data: isinstance(data, DataLoader), _loader),
    (is_mapped, _mapped),
)
"""Test and reader of each form; the first form that fits is read."""


def all_parts(parts: Iterable[tuple[Part, int | None, int | None]]) -> Part:
    """Return all of the parts, each with the client and the split that it is given; None: those of its own.

    Raises:
        UserError: for parts that do not fit each other.
    """
    labelled = [
        (
            part,
            part.client if client is None else np.full(len(part.x), client),
            part.split if place is None else np.full(len(part.x), place),
        )
        for part, client, place in parts
    ]
    if not labelled:
        raise UserError("dataset must hold at least one example, got no data set for training, validation or testing")
    shapes = {tuple(part.x.shape[1:]) for part, *_ in labelled}
    owned = {client is None for _, client, _ in labelled}
    divided = {split is None for *_, split in labelled}
    if len(shapes) > 1 or len(owned) > 1 or len(divided) > 1:
        what = f"a {'client' if len(owned) > 1 else 'split'} column in all or in none"
        raise UserError(
            f"dataset: its parts must have {f'inputs of one shape, got {sorted(shapes)}' if len(shapes) > 1 else what}"
        )
    tensors = [isinstance(part.y, Tensor) for part, *_ in labelled]
    return Part(
        torch.cat([part.x for part, *_ in labelled]),
        (torch.cat if all(tensors) else np.concatenate)([part.y for part, *_ in labelled]),
        None if owned == {True} else np.concatenate([client for _, client, _ in labelled if client is not None]),
        None if divided == {True} else np.concatenate([split for *_, split in labelled]).astype(np.int64),
        labelled[0][0].form if len({part.form for part, *_ in labelled}) == 1 else None,
    )
