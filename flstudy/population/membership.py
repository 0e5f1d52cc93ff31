"""Rows that each device of a replica owns, by split, as arrays: objects for each device would be most of a large
population's memory, and making them most of its start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from flstudy.population.datasets.base import SPLITS, Ranges, Split
from flstudy.population.partition import NOBODY
from flstudy.population.streams import random_bits
from flstudy.user_error import UserError

Rows = NDArray[np.int64]  # of the stacked examples
KEPT = 2**20  # examples of a replica whose division is kept; that of a larger one is made anew for some devices
LISTED = 8  # devices that an error names
TOGETHER = 2**20  # examples that are divided at once


class Ownership(NamedTuple):
    """The blocks of rows that devices own; the same for all replicas where no seed divides them."""

    starts: NDArray[np.int64]  # [N] where each device's block begins
    user_counts: NDArray[np.int64]  # [N, 3] its rows by the user's own split of them, all in the first place without
    order: NDArray[np.integer] | None  # [D] the row at each place of the blocks; None: rows lie in their order
    user_splits: tuple[Split, ...]  # the splits for validation and testing that the user has made


def ownership(owner: NDArray[np.int64], clients: int, split: NDArray[np.int64] | None = None) -> Ownership:
    """Return the blocks of ``clients`` devices.

    Args:
        owner: [D] the device of each example, or `NOBODY`.
        clients: N.
        split: [D] the user's own, as places in `SPLITS`.
    """
    width = 1 if split is None else len(SPLITS)
    place = owner if split is None else np.where(owner == NOBODY, NOBODY, owner * width + split)
    numbers = np.bincount(place - NOBODY, minlength=clients * width + 1)
    counts = np.zeros((clients, len(SPLITS)), dtype=np.int64)
    counts[:, :width] = numbers[1:].reshape(clients, width)
    sizes = counts.sum(1)
    return Ownership(numbers[0] + sizes.cumsum() - sizes, counts, order_of(place), made_splits(counts))


def natural_ownership(ranges: Ranges) -> Ownership:
    """Return the blocks of a data set's own devices, whose rows lie side by side."""
    return Ownership(ranges.starts, ranges.counts, None, made_splits(ranges.counts))


def made_splits(counts: NDArray[np.int64]) -> tuple[Split, ...]:
    """Return the splits for validation and testing of which any device has examples, by their counts [N, 3]."""
    return tuple(name for place, name in enumerate(SPLITS) if place and counts[:, place].any())


def refuse_strangers(source: str, owner: NDArray[np.int64], clients: int, least: int) -> None:
    """Raise UserError for owners [D] outside ``least`` … clients - 1, which are no devices."""
    for strange in (owner.max(), owner.min()):
        if not least <= strange < clients:
            more = f": set clients: {strange + 1}" if strange > 0 else ""
            raise UserError(f"population: owners must lie in 0 … {clients - 1}, but {source} names {strange}{more}")


def order_of(place: NDArray[np.int64]) -> NDArray[np.integer] | None:
    """Return [D]: the rows by ascending place [D], those of one place ascending; None where they are in this order
    already."""
    if (place[1:] >= place[:-1]).all():
        return None
    order = np.argsort(place, kind="stable")
    return order.astype(np.int32) if len(order) < 2**31 else order


@dataclass(frozen=True, eq=False)
class Membership(Sequence[dict[Split, Rows]]):
    """The rows of each split that a replica's devices own, a pure function of (seed, device).

    Rows that the user has split off for validation and testing stay there; for a split without such rows a random share
    of the device's other rows is taken. As a sequence it holds for each device its rows by split.

    Attributes:
        seed: of the replica.
        start: the replica's first row among all.
        blocks: what each device owns.
        shared: [N, 3] rows of each split that a device owns.
        counts: [N, 3] rows among them that count now.
        there: [rows] whether each of all rows counts now; None: all do.
    """

    seed: int
    start: int
    blocks: Ownership
    shared: NDArray[np.int64]
    counts: NDArray[np.int64]
    there: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, device: int) -> dict[Split, Rows]: ...
    @overload
    def __getitem__(self, device: slice) -> Sequence[dict[Split, Rows]]: ...
    def __getitem__(self, device: int | slice) -> dict[Split, Rows] | Sequence[dict[Split, Rows]]:
        place = range(len(self))[device]
        if isinstance(place, range):
            return [self[k] for k in place]
        return {split: self.rows(np.array([place]), split)[0] for split in SPLITS}

    def among(self, there: NDArray[np.bool_]) -> "Membership":
        """Return the membership where only the rows with a mark in ``there`` [rows] count."""
        whole, counts = replace(self, there=None), np.empty_like(self.counts)
        for devices in whole.portions():
            counts[devices] = remaining(*whole.arranged(devices), there)[1]
        return replace(self, counts=counts, there=there)

    def rows(self, devices: NDArray[np.int64], split: Split) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows of a split of devices [L], one device's after the other's, and how many each has [L]."""
        place = SPLITS.index(split)
        if self._whole is not None:
            flat, begins = self._whole
            count = self.counts[devices, place]
            return flat[stretches(begins[devices, place], count)], count
        flat, numbers = self.arranged(devices)
        begins = np.cumsum(numbers).reshape(numbers.shape) - numbers
        return flat[stretches(begins[:, place], numbers[:, place])], numbers[:, place]

    def every(self, split: Split) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows of a split of all devices, one device's after the other's, and how many each has [N]."""
        parts = [self.rows(devices, split)[0] for devices in self.portions()]
        return np.concatenate(parts), self.counts[:, SPLITS.index(split)]

    def portions(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all devices, in portions [L] whose examples are divided at once."""
        first, ends = 0, self.blocks.user_counts.sum(1).cumsum()
        while first < len(self):
            before = ends[first - 1] if first else 0
            last = min(max(int(np.searchsorted(ends, before + TOGETHER)), first + 1), len(self))
            yield np.arange(first, last)
            first = last

    @cached_property
    def _whole(self) -> tuple[Rows, NDArray[np.int64]] | None:
        """The rows of all devices as `arranged`, and where those of each device and split begin [N, 3]; None where
        they are too many to be kept."""
        if self.blocks.user_counts.sum() > KEPT:
            return None
        flat = np.concatenate([self.arranged(devices)[0] for devices in self.portions()])
        return flat, np.cumsum(self.counts).reshape(self.counts.shape) - self.counts

    def arranged(self, devices: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows of devices [L], for each device those for training, for validation and for testing, and their
        counts [L, 3]."""
        blocks, counts = self.blocks, self.shared[devices]
        user_counts = blocks.user_counts[devices]
        first, pool, sizes = blocks.starts[devices], user_counts[:, 0], user_counts.sum(1)
        device, place = np.repeat(np.arange(len(devices)), sizes), counted_up(sizes)
        mixed = place < pool[device]  # what the user gave for validation and testing comes behind, in its own order
        owner, inside = device[mixed], place[mixed]
        drawn = inside[ordered(owner, random_bits(self.seed, "split", devices[owner], inside))]
        place[mixed] = drawn
        # The pool is drawn for validation first, then for testing; what is left is for training.
        fixed = [name in blocks.user_splits for name in SPLITS]
        taken = np.where(fixed, 0, counts)
        fresh = np.stack([taken[:, 1] + taken[:, 2], 0 * pool, taken[:, 1]], 1)
        begins = np.where(fixed, user_counts.cumsum(1) - user_counts, fresh)
        at = stretches((begins + (np.cumsum(sizes) - sizes)[:, None]).ravel(), counts.ravel())
        rows = first[device[at]] + place[at]
        rows = self.start + (rows if blocks.order is None else blocks.order[rows].astype(np.int64))
        return (rows, counts) if self.there is None else remaining(rows, counts, self.there)


def membership(blocks: Ownership, clients: int, start: int, seed: int, shares: dict[str, float]) -> Membership:
    """Return the membership of a replica's devices.

    Args:
        blocks: of their rows.
        clients: number of devices that there are to be.
        start: the replica's first row among all examples.
        seed: of the replica.
        shares: of a device's training examples that are kept for validation and testing; not asked for a split that
            the user has made.

    Raises:
        UserError: for another number of devices, and those without an example for training, one for validation and one
            for testing.
    """
    left = {name: shares[name] for name in SPLITS if name in shares and name not in blocks.user_splits}
    refuse_devices(blocks, clients, list(left))
    pool, counts = blocks.user_counts[:, 0], blocks.user_counts.copy()
    for name, share in left.items():
        counts[:, SPLITS.index(name)] = np.maximum(1, np.rint(share * pool))
    places = [SPLITS.index(name) for name in reversed(left)]
    while len(short := np.flatnonzero(pool - counts[:, places].sum(1) < 1)) and places:
        # Three or four examples: one for each at least.
        counts[short, np.array(places)[counts[short][:, places].argmax(1)]] -= 1
    counts[:, 0] = pool - counts[:, places].sum(1)
    return Membership(seed, start, blocks, counts, counts)


def refuse_devices(blocks: Ownership, clients: int, left: list[str]) -> None:
    """Raise UserError, one that tells all, for another number of devices than there are to be, and for devices that
    lack an example of a split, where ``left`` are the splits that shares have to say."""
    problems, counts, needed = [], blocks.user_counts, 1 + len(left)
    if len(counts) != clients:
        problems.append(f"clients must be {len(counts)}, the number of owners that the data set names, got {clients}")
    for name in blocks.user_splits:
        if (lacks := np.flatnonzero(counts[:, SPLITS.index(name)] == 0)).size:
            problems.append(f"{listed(lacks)} no example in the {name} split")
    if (few := np.flatnonzero(counts[:, 0] < needed)).size:
        examples = "examples" if left else "example"
        problems.append(f"{listed(few, counts[:, 0])} fewer than {needed} {examples} ({', '.join(('train', *left))})")
    if problems:
        lacking = len(problems) > (len(counts) != clients)
        advice = "leave such devices out, lower clients, or change the partition or the splits"
        raise UserError(f"population: {'; '.join(problems)}: {advice if lacking else f'set clients: {len(counts)}'}")


def listed(devices: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> str:
    """Return the devices [L] that lack something, the first of them by number and with its count [N], and the verb of a
    sentence."""
    numbers = [f"{device}" if counts is None else f"{device} ({counts[device]})" for device in devices[:LISTED]]
    more = f" and {len(devices) - LISTED} more" if len(devices) > LISTED else ""
    return f"device{'s'[: len(devices) > 1]} {', '.join(numbers)}{more} {'have' if len(devices) > 1 else 'has'}"


def remaining(rows: Rows, counts: NDArray[np.int64], there: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.int64]]:
    """Return the rows that are there, and their counts [L, 3], of rows in consecutive groups of counts [L, 3]."""
    segment, stays = np.repeat(np.arange(counts.size), counts.ravel()), there[rows]
    return rows[stays], np.bincount(segment[stays], minlength=counts.size).reshape(counts.shape)


def fewer(rows: Rows, counts: NDArray[np.int64], keys: NDArray[np.uint64], most: int) -> tuple[Rows, NDArray[np.int64]]:
    """Return the ``most`` rows with the lowest random keys in each consecutive group of counts [L] rows, and their
    counts."""
    rank = np.empty_like(rows)
    rank[ordered(np.repeat(np.arange(len(counts)), counts), keys)] = counted_up(counts)
    return rows[rank < most], np.minimum(counts, most)


def counted_up(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers 0, …, size-1 for each of the sizes [L], one after another."""
    return stretches(np.zeros_like(sizes), sizes)


def stretches(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers begin, …, begin+size-1 for each of the begins [L] and sizes [L], one after another."""
    ends = np.cumsum(sizes)
    places: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + sizes, sizes)
    return places


def ordered(group: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return [D]: the places of random keys [D] in ascending order within groups [D], which ascend; of equal keys the
    first one first."""
    bits = np.uint64(int(group[-1] if len(group) else 0).bit_length())
    both = (group.astype(np.uint64) << (np.uint64(64) - bits)) | (key >> bits) if bits else key
    order = np.argsort(both)  # of numbers, in any order of equal ones: several times as fast as a sort by two keys
    both = both[order]
    if (both[1:] == both[:-1]).any():
        return np.lexsort((key, group))
    return order
