"""Loaded data sets and their source in a process: the data set itself, or a cache.

A trial of a study needs the same examples as the trial before it. The engine asks for them here; whoever runs many
populations in a process, or on a machine, installs a source that has them already.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from flstudy.population.datasets.base import Coding, Dataset, Examples, Ranges
from flstudy.population.datasets.in_memory import InMemory
from flstudy.user_error import UserError

KEPT_BYTES = 2**28  # of the data sets that a process has loaded itself and keeps


class CachedDataset(NamedTuple):
    """The examples of all replicas, one replica's after the other's; those of an unseeded data set once, for all.

    Nobody may write into them: they may be the same memory for all processes of a machine.
    """

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example
    owner: Tensor | None  # [D] natural device of each example
    starts: tuple[int, ...]  # first example of each replica
    stops: tuple[int, ...]  # one past its last
    split: Tensor | None = None  # [D] the user's own, as `Examples` has it
    ranges: Ranges | None = None  # of an unseeded data set, as `Examples` has them
    coding: Coding | None = None  # of x and y

    def replica(self, index: int) -> Examples:
        """Return the examples of one replica, without copying them."""
        part = slice(self.starts[index], self.stops[index])
        owner, split = (None if column is None else column[part] for column in (self.owner, self.split))
        return Examples(self.x[part], self.y[part], owner, split, self.ranges, self.coding)


Source = Callable[[Dataset, Sequence[int], int], CachedDataset]


def read_examples(dataset: Dataset, seeds: Sequence[int], clients: int) -> CachedDataset:
    """Return the examples for replicas of these seeds with so many devices each, read from the data set.

    Raises:
        UserError: for examples that differ between seeds and are coded, or lie in ranges of devices.
    """
    parts = [dataset.load(seed, clients) for seed in (seeds if dataset.seeded else seeds[:1])]
    if len(parts) > 1 and any(part.ranges is not None or part.coding is not None for part in parts):
        name = type(dataset).__name__
        raise UserError(f"{name}: examples that differ between seeds must come with owners, and as batches take them")
    owners = [part.owner for part in parts if part.owner is not None]
    splits = [part.split for part in parts if part.split is not None]
    stops = torch.tensor([len(part.x) for part in parts]).cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    times = 1 if dataset.seeded else len(seeds)
    x, y = joined([part.x for part in parts]), joined([part.y for part in parts])
    owner = joined(owners) if len(owners) == len(parts) else None
    split = joined(splits) if len(splits) == len(parts) else None
    return CachedDataset(
        x, y, owner, tuple(starts * times), tuple(stops * times), split, parts[0].ranges, parts[0].coding
    )


def joined(parts: list[Tensor]) -> Tensor:
    """Return the tensors [D_i, ...], one after another [Σ D_i, ...]; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_source: Source = read_examples


def load_examples(dataset: Dataset, seeds: Sequence[int], clients: int) -> CachedDataset:
    """Return the examples, from wherever this process gets them."""
    return _source(dataset, tuple(seeds), clients)


def install(source: Source) -> Source:
    """Get examples from ``source`` from now on; returns what was used before."""
    global _source
    before, _source = _source, source
    return before


@contextlib.contextmanager
def installed(source: Source) -> Iterator[None]:
    """Get examples from ``source`` for a while."""
    before = install(source)
    try:
        yield
    finally:
        install(before)


def key(dataset: Dataset, seeds: Sequence[int], clients: int) -> str | None:
    """Return the key that is equal where the same examples are loaded; None for a data set that plain values do not
    describe."""
    fields = {name: value for name, value in vars(dataset).items() if not is_derived(dataset, name)}
    if isinstance(dataset, InMemory) or not all(is_plain(value) for value in fields.values()):
        return None
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    settings = sorted((name, repr(value)) for name, value in fields.items())
    return repr((kind, settings, tuple(seeds) if dataset.seeded else len(seeds), clients))


def is_derived(dataset: Dataset, name: str) -> bool:
    """Return whether an attribute only caches the value of a property."""
    return isinstance(getattr(type(dataset), name, None), cached_property)


def is_plain(value: object) -> bool:
    """Return whether the value's ``repr`` says all about it."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


class DatasetCache:
    """A source that loads each data set once.

    Args:
        elsewhere: asked first for the examples with a key; None where they are not there.
        limit: bytes of own loading to keep, the most recently used first; one data set is always kept.
    """

    def __init__(
        self, elsewhere: Callable[[str], CachedDataset | None] = lambda key: None, *, limit: int = KEPT_BYTES
    ) -> None:
        self.elsewhere, self.limit = elsewhere, limit
        self.shared: dict[str, CachedDataset] = {}
        self.own: OrderedDict[str, CachedDataset] = OrderedDict()

    def __call__(self, dataset: Dataset, seeds: Sequence[int], clients: int) -> CachedDataset:
        """Return the examples as ``read_examples`` returns them, from this cache where it has them."""
        wanted = key(dataset, seeds, clients)
        if wanted is None or dataset.mapped:
            return read_examples(dataset, seeds, clients)
        if wanted not in self.shared and wanted not in self.own and (copy := self.elsewhere(wanted)) is not None:
            self.shared[wanted] = copy
        if wanted in self.shared:
            return self.shared[wanted]
        if wanted not in self.own:
            self.own[wanted] = read_examples(dataset, seeds, clients)
        self.own.move_to_end(wanted)
        while len(self.own) > 1 and sum(map(size, self.own.values())) > self.limit:
            self.own.popitem(last=False)
        return self.own[wanted]


def size(loaded: CachedDataset) -> int:
    """Return the bytes of the tensors of a data set."""
    parts = (loaded.x, loaded.y, loaded.owner, loaded.split)
    return sum(part.numel() * part.element_size() for part in parts if part is not None)
