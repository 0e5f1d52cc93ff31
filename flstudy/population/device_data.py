"""Which device owns which example, what it keeps for validation and testing, and what it holds in a round: its own of
the classes that there are, or what has just arrived."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.batches import padded
from flstudy.population.data_stream import DataStream
from flstudy.population.datasets.base import SPLITS, Examples, Split
from flstudy.population.drift import Drift
from flstudy.population.partition import NOBODY, Iid, Partition, deal_evenly
from flstudy.population.streams import generator, random_bits

Rows = NDArray[np.int64]  # of the stacked examples
Members = list[list[dict[Split, Rows]]]  # [S][N] rows of each split
Classes = tuple[int, ...] | None


class EvaluationIndex(NamedTuple):
    """All examples of one split with their devices, for evaluation."""

    rows: Tensor  # [S, D] rows of the stacked examples, -1 is padding
    device: Tensor  # [S, D]


class ClassStage(NamedTuple):
    """What the devices hold while the same classes are there."""

    members: Members
    pools: list[Rows]  # [S] training examples of all devices; empty where nobody asks
    valid: Tensor  # [S, N, V] rows of validation examples, -1 is padding
    able: NDArray[np.bool_]  # [S, N] whether a device has an example of each split


class DeviceData:
    """The devices' examples by round, a pure function of (seed, round, device).

    Only what the last question was about is kept: the current stage, and the current round's draws. Several threads may
    ask.

    Args:
        seeds: of the S replicas.
        members: [S][N] rows of each split that devices own.
        labels: [D] of the stacked examples; [D, ...] where all classes are always there.
        drift: says which classes there are in a round.
        data_stream: what devices train on instead of all they own, or None.

    Raises:
        ValueError: for several labels per example in a world whose classes come one after another.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        members: Members,
        labels: Tensor,
        drift: Drift | None,
        data_stream: DataStream | None,
    ) -> None:
        self.seeds, self.members, self.drift, self.data_stream = tuple(seeds), members, drift, data_stream
        self.labels = labels.numpy()
        if self.classes(0) is not None and labels.dim() != 1:
            raise ValueError(f"population: {type(drift).__name__} needs one label for each example, got several")
        self._stage: tuple[Classes, ClassStage] | None = None
        self._arrived: tuple[int, dict[tuple[int, int], Rows]] = -1, {}

    def held(self, replica: int, device: int, split: Split, round: int) -> Rows:
        """The rows of a split that a device holds in a round (from 1), none of them twice."""
        stage = self.stage(round)
        own = stage.members[replica][device][split]
        if split != "train" or self.data_stream is None:
            return own
        number, arrived = self._arrived
        if number != round:
            self._arrived = round, (arrived := {})
        if (replica, device) not in arrived:
            pool = stage.pools[replica] if self.data_stream.pooled else own
            drawn = self.data_stream.draw(self.seeds[replica], round, device, pool) if len(pool) else pool
            arrived[replica, device] = drawn
        return arrived[replica, device]

    def moment(self, split: Split, round: int) -> Hashable:
        """Equal for rounds (from 0) in which all devices hold the same examples of a split."""
        return self.classes(round), round if split == "train" and self.data_stream is not None else -1

    def evaluation_index(self, split: Split, round: int, clients: Tensor | None = None) -> EvaluationIndex:
        """All examples of a split in a round (from 1), of all devices or of the devices clients [S, J], which
        are then numbered 0 … J-1."""
        devices = [range(len(line)) for line in self.members] if clients is None else clients.tolist()
        held = [[self.held(s, k, split, round) for k in line] for s, line in enumerate(devices)]
        rows = padded([np.concatenate(lists) for lists in held])
        return EvaluationIndex(
            rows, padded([np.repeat(np.arange(len(lists)), [len(r) for r in lists]) for lists in held])
        )

    def examples_of(self, split: Split, clients: Tensor, round: int) -> Tensor:
        """[S, J, V]: rows of a split of the devices clients [S, J] in a round (from 1), padded with -1."""
        lists = [self.held(s, k, split, round) for s, line in enumerate(clients.tolist()) for k in line]
        rows = padded(lists)
        return rows.view(*clients.shape, rows.shape[1])

    def stage(self, round: int) -> ClassStage:
        """What is the same in all rounds with the classes of a round (from 1)."""
        classes = self.classes(round)
        stage = self._stage
        if stage is None or stage[0] != classes:
            stage = self._stage = classes, self._made(classes)
        return stage[1]

    def classes(self, round: int) -> Classes:
        """Those that there are in a round (from 1); None: all."""
        return None if self.drift is None else self.drift.classes(round)

    def _made(self, classes: Classes) -> ClassStage:
        members = self.members
        if classes is not None:
            there = np.isin(self.labels, classes)
            members = [
                [{split: rows[there[rows]] for split, rows in device.items()} for device in line] for line in members
            ]
        pooled = self.data_stream is not None and self.data_stream.pooled
        pools = [np.concatenate([device["train"] for device in line]) for line in members] if pooled else []
        own: tuple[Split, ...] = ("valid", "test") if pooled else SPLITS
        able = np.array([[all(len(device[split]) for split in own) for device in line] for line in members])
        if pooled:
            able &= np.array([[len(pool) > 0] for pool in pools])
        valid = padded([device["valid"] for line in members for device in line])
        return ClassStage(members, pools, valid.view(len(members), len(members[0]), valid.shape[1]), able)


def refuse_empty(device_data: DeviceData, there: NDArray[np.bool_], round: int) -> None:
    """Raise ValueError if in a round (from 1) none of the devices there [N] has an example of each split."""
    for seed, line in zip(device_data.seeds, device_data.stage(round).able & there, strict=True):
        if not line.any():
            classes = ", ".join(map(str, device_data.classes(round) or ()))
            raise ValueError(
                f"population: in round {round} no device of seed {seed} holds an example for training, one for "
                f"validation and one for testing of the classes that there are ({classes}): introduce more classes "
                "earlier, or lower clients"
            )


def owners(examples: Examples, partition: Partition | None, clients: int, seed: int) -> NDArray[np.int64]:
    """[D]: the device of each example of a replica, or `NOBODY`; without a partition the data set's own, or an Iid
    one's.

    Raises:
        ValueError: for fewer examples than devices, owners that are no devices, or what the partition refuses.
    """
    if partition is None and examples.ranges is not None:
        return examples.ranges.owner(len(examples.y))
    if partition is None and examples.owner is not None:
        natural: NDArray[np.int64] = examples.owner.numpy()
        _refuse_strangers("the data set", natural, clients, 0)
        return natural
    rng = generator(seed, "partition")
    if len(examples.y) < clients:
        raise ValueError(f"population: clients must be ≤ the number of examples ({len(examples.y)}), got {clients}")
    labels = np.array(examples.y, dtype=np.int64) if examples.coding is not None else examples.y.numpy()
    labels = labels if examples.y.dim() == 1 else np.zeros(len(examples.y), dtype=np.int64)
    labels.setflags(write=False)  # they may be other processes' as well
    partition = partition or Iid()
    if not partition.training_only or examples.split is None:
        found = partition.assign(labels, clients, rng)
    else:
        found = np.empty(len(labels), dtype=np.int64)
        for place in range(len(SPLITS)):
            rows = np.flatnonzero(examples.split.numpy() == place)
            found[rows] = (deal_evenly if place else partition.assign)(labels[rows], clients, rng)
    name = type(partition).__name__
    if not isinstance(found, np.ndarray) or found.shape != labels.shape or found.dtype.kind not in "iu":
        said = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ValueError(f"{name}: assign must return an array of {len(labels)} integers, got {said}")
    _refuse_strangers(name, found, clients, NOBODY)
    return found


def _refuse_strangers(source: str, owner: NDArray[np.int64], clients: int, least: int) -> None:
    """Raise ValueError for owners that are no devices."""
    for strange in (owner.max(), owner.min()):
        if not least <= strange < clients:
            more = f": set clients: {strange + 1}" if strange > 0 else ""
            raise ValueError(f"population: owners must lie in 0 … {clients - 1}, but {source} names {strange}{more}")


def divided(
    owner: NDArray[np.int64],
    start: int,
    clients: int,
    seed: int,
    shares: dict[str, float],
    split: NDArray[np.int64] | None = None,
) -> Members:
    """[1][N]: the rows of each split of a replica's devices, the replica's first example being row ``start``.

    Args:
        owner: [D] the device of each example.
        start: of the replica among all examples.
        clients: N.
        seed: of the replica.
        shares: of a device's training examples that are kept for validation and testing.
        split: [D] the user's own, as places in `SPLITS`, which are kept; only what no example has is taken from the
            training examples by its share.

    Raises:
        ValueError: for a device without an example for training, one for validation and one for testing.
    """
    order = np.argsort(owner, kind="stable")  # rows of device 0, of device 1, ..., each ascending
    ends = np.searchsorted(owner, np.arange(clients + 1), sorter=order)
    own = [order[ends[k] : ends[k + 1]] for k in range(clients)]
    if split is None:
        return [[splits(seed, k, start + rows, shares) for k, rows in enumerate(own)]]
    kept = [name for place, name in enumerate(SPLITS) if place and (split == place).any()]
    left = {name: share for name, share in shares.items() if name not in kept}
    members = []
    for device, rows in enumerate(own):
        parts: dict[Split, Rows] = {name: start + rows[split[rows] == SPLITS.index(name)] for name in kept}
        for name, part in parts.items():
            if not len(part):
                raise ValueError(
                    f"population: device {device} of seed {seed} has no example in the {name} split of its own: give "
                    "it one, or leave that split out, so that it is taken from the training examples"
                )
        members.append(parts | splits(seed, device, start + rows[split[rows] == 0], left))
    return [members]


def splits(seed: int, device: int, rows: Rows, shares: dict[str, float]) -> dict[Split, Rows]:
    """A device's rows for training, and those that shares of them are taken for.

    Raises:
        ValueError: for a device with fewer examples than that.
    """
    names: list[Split] = [name for name in SPLITS if name in shares]
    if len(rows) < 1 + len(names):
        what = ", ".join(("train", *names))
        raise ValueError(
            f"population: device {device} of seed {seed} holds {len(rows)} examples, but needs {1 + len(names)} "
            f"({what}); lower clients or make the partition less extreme"
        )
    rows = rows[np.argsort(random_bits(seed, "split", device, np.arange(len(rows))), kind="stable")]
    sizes = {name: max(1, round(shares[name] * len(rows))) for name in names}
    while len(rows) - sum(sizes.values()) < 1:  # three or four examples: one for each at least
        sizes[max(reversed(names), key=sizes.__getitem__)] -= 1
    parts: dict[Split, Rows] = {}
    for name, size in sizes.items():
        parts[name], rows = rows[:size], rows[size:]
    return {**parts, "train": rows}
