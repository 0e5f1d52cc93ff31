"""Partitions of a pooled data set over devices, those by label among them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.availability import groups_of
from flstudy.user_error import UserError

NOBODY = -1
QUANTILES = 10


class Partition(Configurable, ABC):
    """Partition of a pooled data set: assigns every example to a device."""

    training_only: ClassVar[bool] = False
    """Whether this assigns training examples only, where the data set has splits of its own: those for validation and
    testing are dealt out evenly."""

    def kinds(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers [D] by which examples are divided, of their labels [D], or [D, ...] where an example has
        several: one label as it is, 0 for several."""
        return labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)

    @abstractmethod
    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the owner [D] in 0 … clients-1 of each example, given labels [D], or the numbers that `kinds` gives.

        Raises:
            UserError: the examples cannot be divided so among so many clients.
        """


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Independent and identically distributed data: every device gets an equal random share."""

    citations: ClassVar[tuple[str, ...]] = ()
    training_only: ClassVar[bool] = True

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.arange(len(labels)) % clients
        return rng.permutation(owner)


@dataclass(frozen=True, kw_only=True)
class ClientLists(Partition):
    """Partition by the user's lists of the numbers of each device's examples; an example in no list is nobody's. Where
    the data set has splits of its own they number its training examples."""

    citations: ClassVar[tuple[str, ...]] = ()
    training_only: ClassVar[bool] = True

    lists: list[list[int]] = hyper(domain="[0, 1e12]")
    """Positions in the data set from 0, one list for each device."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if len(self.lists) != clients:
            raise UserError(
                f"ClientLists: there must be one list for each of {clients} clients, got {len(self.lists)}: set "
                f"clients: {len(self.lists)}"
            )
        rows = np.concatenate([np.asarray(numbers, dtype=np.int64) for numbers in self.lists])
        device = np.repeat(np.arange(clients), [len(numbers) for numbers in self.lists])
        if len(rows) and (rows.max() >= len(labels) or rows.min() < 0):
            wrong = int(rows[(rows >= len(labels)) | (rows < 0)][0])
            raise UserError(f"ClientLists: examples are numbered 0 … {len(labels) - 1}, got {wrong}")
        kinds, times = np.unique(rows, return_counts=True)
        if times.max(initial=1) > 1:
            twice = int(kinds[times > 1][0])
            whose = ", ".join(map(str, device[rows == twice]))
            raise UserError(f"ClientLists: an example has one owner, but {twice} stands in the lists of {whose}")
        owner = np.full(len(labels), NOBODY, dtype=np.int64)
        owner[rows] = device
        return owner


@dataclass(frozen=True, kw_only=True)
class LabelPartition(Partition):
    """Partition by label."""

    by: Literal["label", "quantile", "pattern"] = "label"
    """Kind of label. label: an integer. quantile: the tenth of all examples to which a real number belongs by
    its size. pattern: all labels of an example that has several."""

    def kinds(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers [D] of the labels [D], or [D, ...] where an example has several, from 0.

        Raises:
            UserError: for labels that ``by`` does not suit.
        """
        suits = "pattern" if labels.ndim > 1 else "quantile" if labels.dtype.kind == "f" else "label"
        if self.by != suits:
            what = {"label": "integers", "quantile": "real numbers", "pattern": "several for each example"}[suits]
            raise UserError(
                f"{type(self).__name__}: by must be {suits} where labels are {what}, got {self.by}: set partition.by"
            )
        if suits == "pattern":
            return np.unique(labels.reshape(len(labels), -1), axis=0, return_inverse=True)[1].reshape(-1)
        if suits == "quantile":
            bounds = np.quantile(labels, np.arange(1, QUANTILES) / QUANTILES)
            return np.searchsorted(bounds, labels, side="right")
        return labels


@dataclass(frozen=True, kw_only=True)
class Dirichlet(LabelPartition):
    """Dirichlet partition (Hsu et al. 2019): each label is divided over the devices in proportions drawn from
    Dirichlet(α). All is drawn again until every device has ``min_size`` examples.

    NIID-Bench (Li et al. 2022) prints that, and its code also balances: a device that has its share of all examples
    gets none of the labels that are still to be divided.
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "li2022niid")

    alpha: float = hyper(0.3, "(0, 1e12]")
    """α, concentration; small is heterogeneous."""
    min_size: int = hyper(10, "[1, 1e6]")
    """Examples that every device has at least."""
    balance: bool = False
    """Give no further label to a device that has its share, 1/n, of all examples, as NIID-Bench's code does."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for _ in range(2000):
            sizes = np.zeros(clients, dtype=np.int64)
            for label in np.unique(labels):
                rows = rng.permutation(np.flatnonzero(labels == label))
                shares = rng.dirichlet(np.full(clients, self.alpha))
                if self.balance:
                    shares = shares * (sizes < len(labels) / clients)
                    shares = shares / max(shares.sum(), np.finfo(float).tiny)
                cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
                owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
                sizes += np.bincount(owner[rows], minlength=clients)
            if sizes.min() >= self.min_size:
                return owner
        raise UserError(
            f"Dirichlet: no draw gave each of {clients} clients min_size {self.min_size} of {len(labels)} examples "
            f"at alpha {self.alpha}; lower min_size or the number of clients, or raise alpha"
        )


@dataclass(frozen=True, kw_only=True)
class BalancedDirichlet(LabelPartition):
    """Balanced Dirichlet partition (Hsu et al. 2019; Reddi et al. 2021, App. F). Every device gets equally many
    examples, of labels drawn from its own prior q ~ Dirichlet(α). Examples are drawn without replacement; when a label
    is used up, q is renormalised over the others. Sizes differ by one at most; every example has an owner.

    Late devices get what is left, so that they are more alike than the prior says; which devices are late is random.
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "reddi2021")

    alpha: float = hyper(0.1, "(0, 1e12]")
    """α, concentration of the prior; small is heterogeneous."""

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if len(labels) < clients:
            raise UserError(f"BalancedDirichlet: {clients} clients need as many examples, got {len(labels)}")
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
        """Return the examples of each label that a device gets [kinds]. Labels are drawn all at once; those that the
        stock lacks are drawn again among the labels that are left, which has the distribution of drawing one by one."""
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
class Shards(LabelPartition):
    """Shards (McMahan et al. 2017, sec. 3): examples are sorted by label and cut into shards, a few per device."""

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017",)

    per_client: int = hyper(2, "[1, 1e6]")
    """Shards of each device."""

    def kinds(self, labels: NDArray[Any]) -> NDArray[Any]:
        real = labels.ndim == 1 and labels.dtype.kind == "f" and self.by == "label"
        return labels if real else super().kinds(labels)  # numbers can be sorted as they are

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        shards = clients * self.per_client
        if shards > len(labels):
            raise UserError(f"Shards: {shards} shards need as many examples, got {len(labels)}; lower per_client")
        by_label = rng.permutation(len(labels))
        by_label = by_label[np.argsort(labels[by_label], kind="stable")]
        owner_of_shard = rng.permutation(np.arange(shards) % clients)
        owner = np.empty(len(labels), dtype=np.int64)
        for shard, rows in enumerate(np.array_split(by_label, shards)):
            owner[rows] = owner_of_shard[shard]
        return owner


@dataclass(frozen=True, kw_only=True)
class LabelGroups(LabelPartition):
    """Label groups (Chang et al. 2025, sec. VI): a group of devices holds a set of labels; neighbouring sets overlap.

    Of L labels and g groups a set has G = ⌊L / (g - (g - 1) o)⌋ labels, ⌊G o⌋ of which it shares with the next; two
    groups share a label's examples equally. Labels that no set reaches are nobody's. The groups are those of
    `AlternatingGroups`: devices in the order of their numbers.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = hyper(0.0, "[0, 1)")
    """o, share of a set's labels that the next one has too."""
    alpha: float | None = hyper(0.3, "(0, 1e12]")
    """Concentration of a `BalancedDirichlet` inside a group; null deals every label out evenly."""
    groups: int = hyper(2, "[2, 1e4]")
    """g, number of groups."""

    def sets(self, labels: int) -> list[range]:
        """Return the labels of each group, of 0 … labels - 1.

        Raises:
            UserError: an overlap leaves a group without labels of its own.
        """
        size = int(labels / (self.groups - (self.groups - 1) * self.overlap) + 1e-9)
        step = size - int(size * self.overlap + 1e-9)
        if size < 1 or step < 1:
            raise UserError(
                f"{type(self).__name__}: an overlap of {self.overlap} between {self.groups} groups leaves a session "
                f"without labels of its own: {labels} labels are too few; lower overlap or groups"
            )
        return [range(group * step, group * step + size) for group in range(self.groups)]

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if clients < self.groups:
            raise UserError(f"{type(self).__name__}: {self.groups} groups need as many clients, got {clients}")
        sets = self.sets(int(labels.max()) + 1)
        held: list[list[NDArray[np.int64]]] = [[] for _ in sets]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            wanted = [group for group, group_labels in enumerate(sets) if label in group_labels]
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
    """Half (Chang et al. 2025): each half of the devices shares its half of the labels, each dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    alpha: float | None = hyper(None, "(0, 1e12]")


@dataclass(frozen=True, kw_only=True)
class PartialOverlap(LabelGroups):
    """Partial overlap (Chang et al. 2025): two sets of 60 % of the labels with 20 % in both, each dealt out evenly."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    overlap: float = hyper(1 / 3, "[0, 1)")
    alpha: float | None = hyper(None, "(0, 1e12]")


@dataclass(frozen=True, kw_only=True)
class TwoShard(LabelPartition):
    """Two-shard (Chang et al. 2025): labels are divided into as many batches as there are devices, each batch into two
    shards. Every device holds one shard of each of two batches, which are drawn at random."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if clients < 2:
            raise UserError(f"TwoShard: clients must be 2 or more, since a batch has two devices, got {clients}")
        owner = np.empty(len(labels), dtype=np.int64)
        firsts, seconds = rng.permutation(clients), rng.permutation(clients)
        while (firsts == seconds).any():  # nobody gets both shards of a batch
            seconds = rng.permutation(clients)
        for batch, rows in enumerate(label_batches(labels, clients, rng, "TwoShard")):
            first, second = np.array_split(rows, 2)
            owner[first], owner[second] = firsts[batch], seconds[batch]
        return owner


@dataclass(frozen=True, kw_only=True)
class Distinct(LabelPartition):
    """Distinct (Chang et al. 2025): every device holds labels of its own, as many as the others."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.empty(len(labels), dtype=np.int64)
        for device, rows in enumerate(label_batches(labels, clients, rng, "Distinct")):
            owner[rows] = device
        return owner


def deal_evenly(labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the owner [D] of each example, every one of the labels [D] being dealt out evenly."""
    owner, begin = np.empty(len(labels), dtype=np.int64), 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owner[rows] = (begin + np.arange(len(rows))) % clients  # what is left over goes round, too
        begin += len(rows)
    return owner


def label_batches(
    labels: NDArray[np.int64], clients: int, rng: np.random.Generator, name: str
) -> list[NDArray[np.int64]]:
    """Return the shuffled rows of each device's batch, an equal number of neighbouring ones of the labels [D].

    Raises:
        UserError: for a number of labels that ``clients`` does not divide; ``name`` is the partition's.
    """
    kinds = np.unique(labels)
    if len(kinds) % clients:
        raise UserError(f"{name}: clients must divide the number of labels ({len(kinds)}), got {clients}")
    return [rng.permutation(np.flatnonzero(np.isin(labels, part))) for part in np.array_split(kinds, clients)]
