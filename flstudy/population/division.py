"""Who owns which example, and what an owner keeps for validation and for testing."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flstudy.population.datasets.base import Examples
from flstudy.population.partition import Iid, Partition
from flstudy.population.streams import generator, random_bits

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
Rows = NDArray[np.int64]  # of the stacked examples
Members = list[list[dict[Split, Rows]]]  # [S][N] rows of each split


def owners(examples: Examples, partition: Partition | None, clients: int, seed: int) -> NDArray[np.int64]:
    """[D]: the device of each example of a replica; without a partition the data set's own, or an Iid one's.

    Raises:
        ValueError: for fewer examples than devices, or what the partition refuses.
    """
    if partition is None and examples.owner is not None:
        natural: NDArray[np.int64] = examples.owner.numpy()
        return natural
    rng = generator(seed, "partition")
    if len(examples.y) < clients:
        raise ValueError(f"population: clients must be ≤ the number of examples ({len(examples.y)}), got {clients}")
    labels = examples.y.numpy() if examples.y.dim() == 1 else np.zeros(len(examples.y), dtype=np.int64)
    labels.setflags(write=False)  # they may be other processes' as well
    return (partition or Iid()).assign(labels, clients, rng)


def divided(owner: NDArray[np.int64], start: int, clients: int, seed: int, shares: dict[str, float]) -> Members:
    """[1][N]: the rows of each split of a replica's devices, the replica's first example being row ``start``."""
    order = np.argsort(owner, kind="stable")  # rows of device 0, of device 1, ..., each ascending
    ends = np.searchsorted(owner, np.arange(clients + 1), sorter=order)
    rows = start + order
    return [[splits(seed, k, rows[ends[k] : ends[k + 1]], shares) for k in range(clients)]]


def splits(seed: int, device: int, rows: Rows, shares: dict[str, float]) -> dict[Split, Rows]:
    """A device's rows by split.

    Raises:
        ValueError: for a device with fewer than three examples.
    """
    if len(rows) < 3:
        raise ValueError(
            f"population: device {device} of seed {seed} holds {len(rows)} examples, but needs 3 "
            f"(train, valid, test); lower clients or make the partition less extreme"
        )
    rows = rows[np.argsort(random_bits(seed, "split", device, np.arange(len(rows))), kind="stable")]
    valid, test = (max(1, round(shares[name] * len(rows))) for name in ("valid", "test"))
    while len(rows) - valid - test < 1:  # three or four examples: one for each at least
        valid, test = (valid - 1, test) if valid > test else (valid, test - 1)
    return {"valid": rows[:valid], "test": rows[valid : valid + test], "train": rows[valid + test :]}
