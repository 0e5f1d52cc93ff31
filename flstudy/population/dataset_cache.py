"""Loaded data sets and where a process gets them from: from the data set itself, or from a source that keeps them.

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

KEPT_BYTES = 2**28  # of what a process keeps that it has loaded itself


class CachedDataset(NamedTuple):
    """The examples of all replicas, one replica's after the other's; those of an unseeded data set once, for all.

    Nobody may write into them: they may be the same memory for all processes of a machine.
    """

    x: Tensor  # [D, ...]
    y: Tensor  # [D]
    owner: Tensor | None  # [D] natural device of each example
    starts: tuple[int, ...]  # first example of each replica
    stops: tuple[int, ...]  # one past its last
    split: Tensor | None = None  # [D] the user's own, as `Examples` has it
    ranges: Ranges | None = None  # of an unseeded data set, as `Examples` has them
    coding: Coding | None = None  # of x and y

    def replica(self, index: int) -> Examples:
        """The examples of one replica, without copying them."""
        part = slice(self.starts[index], self.stops[index])
        owner, split = (None if one is None else one[part] for one in (self.owner, self.split))
        return Examples(self.x[part], self.y[part], owner, split, self.ranges, self.coding)


Source = Callable[[Dataset, Sequence[int], int], CachedDataset]


def read_examples(dataset: Dataset, seeds: Sequence[int], clients: int) -> CachedDataset:
    """The examples for replicas of these seeds with so many devices each, read from the data set."""
    parts = [dataset.load(seed, clients) for seed in (seeds if dataset.seeded else seeds[:1])]
    if len(parts) > 1 and any(part.ranges is not None or part.coding is not None for part in parts):
        name = type(dataset).__name__
        raise ValueError(f"{name}: examples that differ between seeds must come with owners, and as batches take them")
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
    """Concatenated; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


_source: Source = read_examples


def load_examples(dataset: Dataset, seeds: Sequence[int], clients: int) -> CachedDataset:
    """The examples, from wherever this process gets them."""
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
    """Equal where the same examples are loaded; None for a data set that says not in plain values what it is."""
    fields = {name: value for name, value in vars(dataset).items() if not is_derived(dataset, name)}
    if isinstance(dataset, InMemory) or not all(is_plain(value) for value in fields.values()):
        return None
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    given = sorted((name, repr(value)) for name, value in fields.items())
    return repr((kind, given, tuple(seeds) if dataset.seeded else len(seeds), clients))


def is_derived(dataset: Dataset, name: str) -> bool:
    """Whether an attribute only keeps what a property has computed."""
    return isinstance(getattr(type(dataset), name, None), cached_property)


def is_plain(value: object) -> bool:
    """Whether ``repr`` tells all of it."""
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
        """As ``read_examples``."""
        wanted = key(dataset, seeds, clients)
        if wanted is None or dataset.mapped:
            return read_examples(dataset, seeds, clients)
        if wanted not in self.shared and wanted not in self.own and (found := self.elsewhere(wanted)) is not None:
            self.shared[wanted] = found
        if wanted in self.shared:
            return self.shared[wanted]
        if wanted not in self.own:
            self.own[wanted] = read_examples(dataset, seeds, clients)
        self.own.move_to_end(wanted)
        while len(self.own) > 1 and sum(map(size, self.own.values())) > self.limit:
            self.own.popitem(last=False)
        return self.own[wanted]


def size(loaded: CachedDataset) -> int:
    """Bytes."""
    parts = (loaded.x, loaded.y, loaded.owner, loaded.split)
    return sum(part.numel() * part.element_size() for part in parts if part is not None)
