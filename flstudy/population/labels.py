"""Partitions by label, for devices that come and go in groups (device sessions, sec. VI and App. D)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.population.availability import groups_of
from flstudy.population.partition import BalancedDirichlet, Partition

NOBODY = -1


@dataclass
class LabelGroups(Partition):
    """Each group of devices holds a set of labels; sets of neighbouring groups overlap (device sessions, sec. VI).

    Of L labels and g groups a set has G = ⌊L / (g - (g - 1) o)⌋ labels, ⌊G o⌋ of which it shares with the next; two
    groups share a label's examples equally. Labels that no set reaches are nobody's. The groups are those of
    `AlternatingGroups`: devices in the order of their numbers.

    Args:
        overlap: o, share of a set's labels that the next one has too, in [0, 1).
        alpha: inside a group, the concentration of a `BalancedDirichlet`; null deals every label out evenly.
        groups: g, number of groups, ≥ 2.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = 0.0
    alpha: float | None = 0.3
    groups: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise ValueError(f"{type(self).__name__}: overlap must lie in [0, 1), got {self.overlap}")
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"{type(self).__name__}: alpha must be > 0, got {self.alpha}")
        if self.groups < 2:
            raise ValueError(f"{type(self).__name__}: groups must be ≥ 2, got {self.groups}")

    def sets(self, labels: int) -> list[range]:
        """The labels of each group, of 0 … labels - 1."""
        size = int(labels / (self.groups - (self.groups - 1) * self.overlap) + 1e-9)
        step = size - int(size * self.overlap + 1e-9)
        if size < 1 or step < 1:
            raise ValueError(
                f"{type(self).__name__}: an overlap of {self.overlap} between {self.groups} groups leaves a session "
                f"without labels of its own: {labels} labels are too few; lower overlap or groups"
            )
        return [range(group * step, group * step + size) for group in range(self.groups)]

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if clients < self.groups:
            raise ValueError(f"{type(self).__name__}: {self.groups} groups need as many clients, got {clients}")
        sets = self.sets(int(labels.max()) + 1)
        held: list[list[NDArray[np.int64]]] = [[] for _ in sets]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            wanted = [group for group, own in enumerate(sets) if label in own]
            for group, part in zip(wanted, np.array_split(rows, max(1, len(wanted))), strict=False):
                held[group].append(part)
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        group_of = groups_of(clients, self.groups)
        inside: Partition = EvenLabels() if self.alpha is None else BalancedDirichlet(alpha=self.alpha)
        for group, parts in enumerate(held):
            rows, devices = np.concatenate(parts), np.flatnonzero(group_of == group)
            owner[rows] = devices[inside.assign(labels[rows], len(devices), rng)]
        return owner


@dataclass
class Half(LabelGroups):
    """One half of the devices shares one half of the labels, the other half the other, every label dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    alpha: float | None = None


@dataclass
class PartialOverlap(LabelGroups):
    """Two sets of 60 % of the labels with 20 % in both, every label dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = 1 / 3
    alpha: float | None = None


@dataclass
class TwoShard(Partition):
    """Labels are divided into as many batches as there are devices, each batch into two shards; every device holds
    one shard of two different batches."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for device, rows in enumerate(batches(labels, clients, rng, "TwoShard")):
            first, second = np.array_split(rows, 2)
            owner[first], owner[second] = device, (device + 1) % clients
        return owner


@dataclass
class Distinct(Partition):
    """Every device holds labels of its own, as many as the others."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for device, rows in enumerate(batches(labels, clients, rng, "Distinct")):
            owner[rows] = device
        return owner


class EvenLabels(Partition):
    """Every label is dealt out evenly."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner, begin = np.empty(len(labels), dtype=np.int64), 0
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            owner[rows] = (begin + np.arange(len(rows))) % clients  # what is left over goes round, too
            begin += len(rows)
        return owner


def batches(labels: NDArray[np.int64], clients: int, rng: np.random.Generator, name: str) -> list[NDArray[np.int64]]:
    """Shuffled rows of as many equal batches of neighbouring labels as there are devices."""
    kinds = np.unique(labels)
    if len(kinds) % clients:
        raise ValueError(f"{name}: clients must divide the number of labels ({len(kinds)}), got {clients}")
    return [rng.permutation(np.flatnonzero(np.isin(labels, part))) for part in np.array_split(kinds, clients)]
