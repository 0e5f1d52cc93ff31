"""The examples that a DataLoader yields: those of its sampler, each as often as it is drawn in an epoch."""

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset

from flstudy.user_error import UserError

Origins = dict[int, NDArray[np.int64]]
"""Indices of examples, by the identity of the data set that holds them."""
MOST_EPOCHS = 100  # indices for each example of a data set, beyond which a sampler counts as one without an end


def sampled(loader: "DataLoader[Any]", name: str) -> Any:
    """Return the data set of the examples that a loader yields, in their order in its own data set.

    Args:
        loader: of a map-style data set.
        name: of the loader, for messages.

    Raises:
        UserError: for another kind of loader, or a sampler whose examples are others in each epoch.
    """
    data: Any = getattr(loader, "dataset", None)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserError(
            f"dataset: {name} must be a DataLoader of a map-style dataset, got "
            f"{type(loader if data is None else data).__name__}"
        )
    sampler = index_source(loader)
    if draws_all(sampler, data):
        return data
    indices, again = (indices_of(sampler, len(data), name) for _ in range(2))
    if getattr(sampler, "replacement", False) or not np.array_equal(indices, again):
        raise UserError(
            f"dataset: {name} draws other examples in each epoch by its {type(sampler).__name__}, but those of a "
            "device stay: give a Subset or SubsetRandomSampler, and let the loss weigh classes"
        )
    return Subset(data, indices.tolist())


def index_source(loader: "DataLoader[Any]") -> Iterable[Any]:
    """Return the source of a loader's indices: its sampler, or a batch sampler of the user's own."""
    batches = loader.batch_sampler
    if batches is None or type(batches) is BatchSampler:
        return loader.sampler if batches is None else batches.sampler
    return batches


def draws_all(sampler: Any, data: Any) -> bool:
    """Return whether a sampler is one of torch's that draw each example once, so that its indices need not be read."""
    if type(sampler) not in (SequentialSampler, RandomSampler) or getattr(sampler, "replacement", False):
        return False
    return len(sampler) == len(sampler.data_source) == len(data)


def indices_of(sampler: Iterable[Any], count: int, name: str) -> NDArray[np.int64]:
    """Return [K]: the sorted indices, or those of batches, that a sampler yields in an epoch of ``count`` examples.

    Raises:
        UserError: for indices of no example, or without an end.
    """
    most = MOST_EPOCHS * count
    yielded = list(itertools.islice(sampler, most + 1))
    indices = np.sort(np.concatenate([np.atleast_1d(part) for part in yielded]) if yielded else np.empty(0))
    if len(indices) > most:
        raise UserError(f"dataset: {name} has a {type(sampler).__name__} without an end: let it yield one epoch")
    if indices.size and (indices.dtype.kind not in "iu" or indices[0] < 0 or indices[-1] >= count):
        raise UserError(
            f"dataset: {name} has a {type(sampler).__name__} whose indices must lie from 0 to {count - 1}, got "
            f"{indices[0]} to {indices[-1]}"
        )
    return indices.astype(np.int64)


def origins_of(data_sets: Sequence[Any]) -> Origins:
    """Return where the examples of data sets come from, subsets followed to the data set that they are of."""
    origins: Origins = {}
    for data in data_sets:
        indices, whole = np.arange(len(data)), data
        while isinstance(whole, Subset):
            indices, whole = np.asarray(whole.indices, dtype=np.int64)[indices], whole.dataset
        origins[id(whole)] = np.union1d(origins.get(id(whole), indices), indices)
    return origins


def tell_shared(splits: Mapping[str, Sequence[Any]]) -> None:
    """Warn of examples that several splits hold, given the data sets of each by its name."""
    origins = {name: origins_of(data_sets) for name, data_sets in splits.items()}
    for (name, here), (other_name, there) in itertools.combinations(origins.items(), 2):
        shared = sum(len(np.intersect1d(here[data], there[data])) for data in here.keys() & there.keys())
        if shared:
            warnings.warn(
                f"dataset: {shared} examples are in {name} and in {other_name}, so that {other_name} says little of "
                "examples that a model has not seen",
                stacklevel=2,
            )
