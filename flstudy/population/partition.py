"""Who gets which example: partitions of a pooled data set over devices, those by label among them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.availability import groups_of

NOBODY = -1


class Partition(Configurable, ABC):
    """Assigns every example to a device."""

    training_only: ClassVar[bool] = False
    """Whether it assigns training examples only, where the data set has splits of its own: those for validation and
    testing are dealt out evenly."""

    @abstractmethod
    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Owner [D] in 0 … clients-1 of each example, given its label.

        Raises:
            ValueError: the examples cannot be divided so among so many clients.
        """


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Every device gets an equal random share."""

    citations: ClassVar[tuple[str, ...]] = ()
    training_only: ClassVar[bool] = True

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.arange(len(labels)) % clients
        return rng.permutation(owner)


@dataclass(frozen=True, kw_only=True)
class ClientLists(Partition):
    """The numbers of each device's examples, as the user lists them; an example in no list is nobody's. Where the data
    set has splits of its own they number its training examples."""

    citations: ClassVar[tuple[str, ...]] = ()
    training_only: ClassVar[bool] = True

    lists: list[list[int]] = hyper(domain="[0, 1e12]")
    """One for each device, of positions in the data set from 0."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if len(self.lists) != clients:
            raise ValueError(
                f"ClientLists: there must be one list for each of {clients} clients, got {len(self.lists)}: set "
                f"clients: {len(self.lists)}"
            )
        rows = np.concatenate([np.asarray(own, dtype=np.int64) for own in self.lists])
        device = np.repeat(np.arange(clients), [len(own) for own in self.lists])
        if len(rows) and (rows.max() >= len(labels) or rows.min() < 0):
            wrong = int(rows[(rows >= len(labels)) | (rows < 0)][0])
            raise ValueError(f"ClientLists: examples are numbered 0 … {len(labels) - 1}, got {wrong}")
        kinds, times = np.unique(rows, return_counts=True)
        if times.max(initial=1) > 1:
            twice = int(kinds[times > 1][0])
            whose = ", ".join(map(str, device[rows == twice]))
            raise ValueError(f"ClientLists: an example has one owner, but {twice} stands in the lists of {whose}")
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        owner[rows] = device
        return owner


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each label is divided over the devices in proportions drawn from Dirichlet(α) (Hsu et al. 2019; drawn per
    label, and again until everybody has ``min_size`` examples, as in Li et al. 2022, NIID-Bench).
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "li2022niid")

    alpha: float = hyper(0.3, "(0, 1e12]")
    """α, concentration; small is heterogeneous."""
    min_size: int = hyper(10, "[1, 1e6]")
    """Examples that every device has at least."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for _ in range(2000):
            for label in np.unique(labels):
                rows = rng.permutation(np.flatnonzero(labels == label))
                cuts = (np.cumsum(rng.dirichlet(np.full(clients, self.alpha)))[:-1] * len(rows)).astype(np.int64)
                owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
            if np.bincount(owner, minlength=clients).min() >= self.min_size:
                return owner
        raise ValueError(
            f"Dirichlet: no draw gave each of {clients} clients min_size {self.min_size} of {len(labels)} examples "
            f"at alpha {self.alpha}; lower min_size or the number of clients, or raise alpha"
        )


@dataclass(frozen=True, kw_only=True)
class BalancedDirichlet(Partition):
    """Every device gets equally many examples, of labels drawn from its own prior q ~ Dirichlet(α) (Hsu et al. 2019;
    Reddi et al. 2021, App. F). Examples are drawn without replacement; when a label is used up, q is renormalised
    over the others. Where sizes cannot be equal, they differ by one; every example has an owner.

    Late devices get what is left, so that they are more alike than the prior says; which devices are late is random.
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "reddi2021")

    alpha: float = hyper(0.1, "(0, 1e12]")
    """α, concentration of the prior; small is heterogeneous."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if len(labels) < clients:
            raise ValueError(f"BalancedDirichlet: {clients} clients need as many examples, got {len(labels)}")
        kinds, kind, stock = np.unique(labels, return_inverse=True, return_counts=True)
        shuffled = rng.permutation(len(labels))
        by_kind = shuffled[np.argsort(kind[shuffled], kind="stable")]
        following = np.cumsum(stock) - stock  # where each kind's examples that are left begin
        left = stock.copy()
        owner = np.empty(len(labels), dtype=np.int64)
        for place, device in enumerate(rng.permutation(clients)):
            size = len(labels) // clients + (place < len(labels) % clients)
            for label, count in enumerate(self._counts(size, left, rng, len(kinds))):
                owner[by_kind[following[label] : following[label] + count]] = device
                following[label] += count
                left[label] -= count
        return owner

    def _counts(self, size: int, left: NDArray[np.int64], rng: np.random.Generator, kinds: int) -> NDArray[np.int64]:
        """How many examples of each label a device gets. Labels are drawn all at once; those that the stock lacks are
        drawn again among the labels that are left, which has the distribution of drawing one by one."""
        prior = rng.dirichlet(np.full(kinds, self.alpha))
        counts = np.zeros(kinds, dtype=np.int64)
        while (missing := size - int(counts.sum())) > 0:
            open_ = counts < left
            weight = np.where(open_, prior, 0.0)
            if not weight.sum() > 0:  # a small alpha's prior is exactly zero for most labels
                weight = np.where(open_, left - counts, 0).astype(np.float64)
            counts = np.minimum(counts + rng.multinomial(missing, weight / weight.sum()), left)
        return counts


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Examples sorted by label and cut into shards, a few per device (McMahan et al. 2017, sec. 3)."""

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017",)

    per_client: int = hyper(2, "[1, 1e6]")
    """Shards of each device."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        shards = clients * self.per_client
        if shards > len(labels):
            raise ValueError(f"Shards: {shards} shards need as many examples, got {len(labels)}; lower per_client")
        by_label = rng.permutation(len(labels))
        by_label = by_label[np.argsort(labels[by_label], kind="stable")]
        owner_of_shard = rng.permutation(np.arange(shards) % clients)
        owner = np.empty(len(labels), dtype=np.int64)
        for shard, rows in enumerate(np.array_split(by_label, shards)):
            owner[rows] = owner_of_shard[shard]
        return owner


@dataclass(frozen=True, kw_only=True)
class LabelGroups(Partition):
    """Each group of devices holds a set of labels; sets of neighbouring groups overlap (device sessions, sec. VI).

    Of L labels and g groups a set has G = ⌊L / (g - (g - 1) o)⌋ labels, ⌊G o⌋ of which it shares with the next; two
    groups share a label's examples equally. Labels that no set reaches are nobody's. The groups are those of
    `AlternatingGroups`: devices in the order of their numbers.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = hyper(0.0, "[0, 1)")
    """o, share of a set's labels that the next one has too."""
    alpha: float | None = hyper(0.3, "(0, 1e12]")
    """Inside a group, the concentration of a `BalancedDirichlet`; null deals every label out evenly."""
    groups: int = hyper(2, "[2, 1e4]")
    """g, number of groups."""

    def sets(self, labels: int) -> list[range]:
        """The labels of each group, of 0 … labels - 1.

        Raises:
            ValueError: an overlap leaves a group without labels of its own.
        """
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
        inside = deal_evenly if self.alpha is None else BalancedDirichlet(alpha=self.alpha).assign
        for group, parts in enumerate(held):
            rows, devices = np.concatenate(parts), np.flatnonzero(group_of == group)
            owner[rows] = devices[inside(labels[rows], len(devices), rng)]
        return owner


@dataclass(frozen=True, kw_only=True)
class Half(LabelGroups):
    """One half of the devices shares one half of the labels, the other half the other, every label dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    alpha: float | None = hyper(None, "(0, 1e12]")


@dataclass(frozen=True, kw_only=True)
class PartialOverlap(LabelGroups):
    """Two sets of 60 % of the labels with 20 % in both, every label dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = hyper(1 / 3, "[0, 1)")
    alpha: float | None = hyper(None, "(0, 1e12]")


@dataclass(frozen=True, kw_only=True)
class TwoShard(Partition):
    """Labels are divided into as many batches as there are devices, each batch into two shards; every device holds
    one shard of two different batches."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for device, rows in enumerate(label_batches(labels, clients, rng, "TwoShard")):
            first, second = np.array_split(rows, 2)
            owner[first], owner[second] = device, (device + 1) % clients
        return owner


@dataclass(frozen=True, kw_only=True)
class Distinct(Partition):
    """Every device holds labels of its own, as many as the others."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for device, rows in enumerate(label_batches(labels, clients, rng, "Distinct")):
            owner[rows] = device
        return owner


def deal_evenly(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Owner [D] of each example, every label being dealt out evenly."""
    owner, begin = np.empty(len(labels), dtype=np.int64), 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owner[rows] = (begin + np.arange(len(rows))) % clients  # what is left over goes round, too
        begin += len(rows)
    return owner


def label_batches(
    labels: NDArray[np.int64], clients: int, rng: np.random.Generator, name: str
) -> list[NDArray[np.int64]]:
    """Shuffled rows of as many equal batches of neighbouring labels as there are devices."""
    kinds = np.unique(labels)
    if len(kinds) % clients:
        raise ValueError(f"{name}: clients must divide the number of labels ({len(kinds)}), got {clients}")
    return [rng.permutation(np.flatnonzero(np.isin(labels, part))) for part in np.array_split(kinds, clients)]
