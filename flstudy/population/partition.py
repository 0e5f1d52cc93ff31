"""Who gets which example: partitions of a pooled data set over devices."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Partition(ABC):
    """Assigns every example to a device."""

    @abstractmethod
    def assign(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Owner [D] in 0 … clients-1 of each example, given its label."""


@dataclass
class Iid(Partition):
    """Every device gets an equal random share."""

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
class Shards(Partition):
    """Examples sorted by label and cut into shards, a few per device (McMahan et al. 2017, sec. 3).

    Args:
        per_client: shards of each device, ≥ 1.
    """

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
