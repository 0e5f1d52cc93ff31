"""Who gets which example: partitions of a pooled data set over devices."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


class Partition(ABC):
    """Assigns every example to a device."""

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    @abstractmethod
    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Owner [D] in 0 … clients-1 of each example, given its label."""


@dataclass
class Iid(Partition):
    """Every device gets an equal random share."""

    citations: ClassVar[tuple[str, ...]] = ()

    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        owner = np.arange(len(labels)) % clients
        return rng.permutation(owner)


@dataclass
class Dirichlet(Partition):
    """Each label is divided over the devices in proportions drawn from Dirichlet(α) (Hsu et al. 2019; drawn per
    label, and again until everybody has ``min_size`` examples, as in Li et al. 2022, NIID-Bench).

    Args:
        alpha: concentration, > 0; small is heterogeneous.
        min_size: examples that every device has at least.
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "li2022niid")

    alpha: float = 0.3
    min_size: int = 10

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"Dirichlet: alpha must be > 0, got {self.alpha}")
        if self.min_size < 1:
            raise ValueError(f"Dirichlet: min_size must be ≥ 1, got {self.min_size}")

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


@dataclass
class BalancedDirichlet(Partition):
    """Every device gets equally many examples, of labels drawn from its own prior q ~ Dirichlet(α) (Hsu et al. 2019;
    Reddi et al. 2021, App. F). Examples are drawn without replacement; when a label is used up, q is renormalised
    over the others. Where sizes cannot be equal, they differ by one; every example has an owner.

    Late devices get what is left, so that they are more alike than the prior says; which devices are late is random.

    Args:
        alpha: concentration of the prior, > 0; small is heterogeneous.
    """

    citations: ClassVar[tuple[str, ...]] = ("hsu2019", "reddi2021")

    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ValueError(f"BalancedDirichlet: alpha must be > 0, got {self.alpha}")

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


@dataclass
class Shards(Partition):
    """Examples sorted by label and cut into shards, a few per device (McMahan et al. 2017, sec. 3).

    Args:
        per_client: shards of each device, ≥ 1.
    """

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017",)

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"Shards: per_client must be ≥ 1, got {self.per_client}")

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
