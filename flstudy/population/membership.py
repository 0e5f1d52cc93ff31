"""Which rows each device of a replica owns and for what, as arrays: an object for each device would be most of a large
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

Rows = NDArray[np.int64]  # of the stacked examples
KEPT = 2**20  # examples of a replica whose division is kept; of larger ones it is made anew for those who are asked for
TOGETHER = 2**20  # examples that are divided at once


class Ownership(NamedTuple):
    """The blocks of rows that devices own; the same for all replicas where no seed divides them."""

    starts: NDArray[np.int64]  # [N] where each device's block begins
    given: NDArray[np.int64]  # [N, 3] its rows by the place in `SPLITS` that the user gave them, 0 where he gave none
    order: NDArray[np.integer] | None  # [D] the row at each place of the blocks; None: rows lie in their order
    kept: tuple[Split, ...]  # the splits for validation and testing that the user has made


def ownership(owner: NDArray[np.int64], clients: int, split: NDArray[np.int64] | None = None) -> Ownership:
    """The blocks of ``clients`` devices.

    Args:
        owner: [D] the device of each example, or `NOBODY`.
        clients: N.
        split: [D] the user's own, as places in `SPLITS`.
    """
    width = 1 if split is None else len(SPLITS)
    place = owner if split is None else np.where(owner == NOBODY, NOBODY, owner * width + split)
    numbers = np.bincount(place - NOBODY, minlength=clients * width + 1)
    given = np.zeros((clients, len(SPLITS)), dtype=np.int64)
    given[:, :width] = numbers[1:].reshape(clients, width)
    sizes = given.sum(1)
    return Ownership(numbers[0] + sizes.cumsum() - sizes, given, order_of(place), made_splits(given))


def natural_ownership(ranges: Ranges, clients: int) -> Ownership:
    """The blocks of ``clients`` devices whose rows lie side by side; those that the data set does not know are empty.

    Raises:
        ValueError: for fewer of them than the data set has.
    """
    refuse_strangers("the data set", np.array([len(ranges.starts) - 1]), clients, 0)
    missing = clients - len(ranges.starts)
    given = np.concatenate([ranges.counts, np.zeros((missing, len(SPLITS)), dtype=np.int64)])
    starts = np.concatenate([ranges.starts, np.zeros(missing, dtype=np.int64)])
    return Ownership(starts, given, None, made_splits(given))


def made_splits(given: NDArray[np.int64]) -> tuple[Split, ...]:
    """The splits for validation and testing of which any device [N, 3] was given examples."""
    return tuple(name for place, name in enumerate(SPLITS) if place and given[:, place].any())


def refuse_strangers(source: str, owner: NDArray[np.int64], clients: int, least: int) -> None:
    """Raise ValueError for owners that are no devices."""
    for strange in (owner.max(), owner.min()):
        if not least <= strange < clients:
            more = f": set clients: {strange + 1}" if strange > 0 else ""
            raise ValueError(f"population: owners must lie in 0 … {clients - 1}, but {source} names {strange}{more}")


def order_of(place: NDArray[np.int64]) -> NDArray[np.integer] | None:
    """[D]: the rows by ascending place, those of one place ascending; None where they are in this order already."""
    if (place[1:] >= place[:-1]).all():
        return None
    order = np.argsort(place, kind="stable")
    return order.astype(np.int32) if len(order) < 2**31 else order


@dataclass(frozen=True, eq=False)
class Membership(Sequence[dict[Split, Rows]]):
    """The rows of each split that a replica's devices own, a pure function of (seed, device).

    A device's rows for validation and testing that the user gave are kept; of its other rows a random share is taken
    for what there is none of. As a sequence it holds for each device its rows by split.

    Attributes:
        seed: of the replica.
        start: the replica's first row among all.
        blocks: what each device owns.
        shared: [N, 3] rows of each split that a device owns.
        counts: [N, 3] those of them that count now.
        there: [rows] which of all rows count now; None: all.
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
        """The same where only some of all rows count."""
        whole, counts = replace(self, there=None), np.empty_like(self.counts)
        for devices in whole.portions():
            counts[devices] = remaining(*whole.arranged(devices), there)[1]
        return replace(self, counts=counts, there=there)

    def rows(self, devices: NDArray[np.int64], split: Split) -> tuple[Rows, NDArray[np.int64]]:
        """The rows of a split of devices [L], one device's after the other's, and how many each has [L]."""
        place = SPLITS.index(split)
        if self._whole is not None:
            flat, begins = self._whole
            count = self.counts[devices, place]
            return flat[stretches(begins[devices, place], count)], count
        flat, numbers = self.arranged(devices)
        begins = np.cumsum(numbers).reshape(numbers.shape) - numbers
        return flat[stretches(begins[:, place], numbers[:, place])], numbers[:, place]

    def every(self, split: Split) -> tuple[Rows, NDArray[np.int64]]:
        """The same of all devices."""
        parts = [self.rows(devices, split)[0] for devices in self.portions()]
        return np.concatenate(parts), self.counts[:, SPLITS.index(split)]

    def portions(self) -> Iterator[NDArray[np.int64]]:
        """All devices, so many at a time as are divided at once."""
        first, ends = 0, self.blocks.given.sum(1).cumsum()
        while first < len(self):
            before = ends[first - 1] if first else 0
            last = min(max(int(np.searchsorted(ends, before + TOGETHER)), first + 1), len(self))
            yield np.arange(first, last)
            first = last

    @cached_property
    def _whole(self) -> tuple[Rows, NDArray[np.int64]] | None:
        """The rows of all devices as `arranged`, and where those of each device and split begin [N, 3]; None where
        they are too many to be kept."""
        if self.blocks.given.sum() > KEPT:
            return None
        flat = np.concatenate([self.arranged(devices)[0] for devices in self.portions()])
        return flat, np.cumsum(self.counts).reshape(self.counts.shape) - self.counts

    def arranged(self, devices: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
        """The rows of devices [L], for each those for training, for validation and for testing, and how many there are
        of them [L, 3]."""
        blocks, counts = self.blocks, self.shared[devices]
        given = blocks.given[devices]
        first, pool, sizes = blocks.starts[devices], given[:, 0], given.sum(1)
        device, place = np.repeat(np.arange(len(devices)), sizes), counted_up(sizes)
        mixed = place < pool[device]  # what the user gave for validation and testing comes behind, in its own order
        owner, inside = device[mixed], place[mixed]
        drawn = inside[ordered(owner, random_bits(self.seed, "split", devices[owner], inside))]
        place[mixed] = drawn
        # The pool is drawn for validation first, then for testing; what is left is for training.
        kept = [name in blocks.kept for name in SPLITS]
        taken = np.where(kept, 0, counts)
        fresh = np.stack([taken[:, 1] + taken[:, 2], 0 * pool, taken[:, 1]], 1)
        begins = np.where(kept, given.cumsum(1) - given, fresh)
        at = stretches((begins + (np.cumsum(sizes) - sizes)[:, None]).ravel(), counts.ravel())
        rows = first[device[at]] + place[at]
        rows = self.start + (rows if blocks.order is None else blocks.order[rows].astype(np.int64))
        return (rows, counts) if self.there is None else remaining(rows, counts, self.there)


def membership(blocks: Ownership, start: int, seed: int, shares: dict[str, float]) -> Membership:
    """What the devices of a replica own.

    Args:
        blocks: of their rows.
        start: of the replica among all examples.
        seed: of the replica.
        shares: of a device's training examples that are kept for validation and testing; those of what the user has
            split off are not asked for.

    Raises:
        ValueError: for a device without an example for training, one for validation and one for testing.
    """
    left = {name: shares[name] for name in SPLITS if name in shares and name not in blocks.kept}
    _refuse_few(blocks, seed, list(left))
    pool, counts = blocks.given[:, 0], blocks.given.copy()
    for name, share in left.items():
        counts[:, SPLITS.index(name)] = np.maximum(1, np.rint(share * pool))
    places = [SPLITS.index(name) for name in reversed(left)]
    while len(short := np.flatnonzero(pool - counts[:, places].sum(1) < 1)) and places:
        # Three or four examples: one for each at least.
        counts[short, np.array(places)[counts[short][:, places].argmax(1)]] -= 1
    counts[:, 0] = pool - counts[:, places].sum(1)
    return Membership(seed, start, blocks, counts, counts)


def _refuse_few(blocks: Ownership, seed: int, left: list[str]) -> None:
    """Raise ValueError for the first device that lacks an example of a split."""
    lacking = blocks.given[:, [SPLITS.index(name) for name in blocks.kept]] == 0
    few = lacking.any(1) | (blocks.given[:, 0] < 1 + len(left))
    if not few.any():
        return
    device = int(few.argmax())
    for name, lacks in zip(blocks.kept, lacking[device], strict=True):
        if lacks:
            raise ValueError(
                f"population: device {device} of seed {seed} has no example in the {name} split of its own: give "
                "it one, or leave that split out, so that it is taken from the training examples"
            )
    raise ValueError(
        f"population: device {device} of seed {seed} holds {blocks.given[device, 0]} examples, but needs "
        f"{1 + len(left)} ({', '.join(('train', *left))}); lower clients or make the partition less extreme"
    )


def remaining(rows: Rows, counts: NDArray[np.int64], there: NDArray[np.bool_]) -> tuple[Rows, NDArray[np.int64]]:
    """Of rows, of which counts [L, 3] belong together, those that are there, and how many these are [L, 3]."""
    segment, stays = np.repeat(np.arange(counts.size), counts.ravel()), there[rows]
    return rows[stays], np.bincount(segment[stays], minlength=counts.size).reshape(counts.shape)


def fewer(rows: Rows, counts: NDArray[np.int64], keys: NDArray[np.uint64], most: int) -> tuple[Rows, NDArray[np.int64]]:
    """Of rows, of which counts [L] belong together, the ``most`` with the lowest random keys, and how many they are."""
    rank = np.empty_like(rows)
    rank[ordered(np.repeat(np.arange(len(counts)), counts), keys)] = counted_up(counts)
    return rows[rank < most], np.minimum(counts, most)


def counted_up(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, …, size-1 for each of the sizes [L], one after another."""
    return stretches(np.zeros_like(sizes), sizes)


def stretches(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin, …, begin+size-1 for each of L stretches, one after another."""
    ends = np.cumsum(sizes)
    places: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - ends + sizes, sizes)
    return places


def ordered(group: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of random keys in ascending order within groups, which ascend; of equal keys the first one first."""
    bits = np.uint64(int(group[-1] if len(group) else 0).bit_length())
    both = (group.astype(np.uint64) << (np.uint64(64) - bits)) | (key >> bits) if bits else key
    order = np.argsort(both)  # of numbers, in any order of equal ones: several times as fast as a sort by two keys
    both = both[order]
    if (both[1:] == both[:-1]).any():
        return np.lexsort((key, group))
    return order
