"""Examples of each device: those it owns, its shares for validation and testing, and those it holds in a round, which
are its own of the classes that there are, or what has just arrived."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.batches import padded, table
from flstudy.population.data_stream import DataStream
from flstudy.population.datasets.base import SPLITS, Examples, Split
from flstudy.population.drift import Drift
from flstudy.population.membership import (
    Membership,
    Ownership,
    Rows,
    fewer,
    natural_ownership,
    ownership,
    refuse_strangers,
)
from flstudy.population.partition import NOBODY, Iid, Partition, deal_evenly
from flstudy.population.streams import generator, random_bits
from flstudy.user_error import UserError

Classes = tuple[int, ...] | None


class EvaluationIndex(NamedTuple):
    """All examples of one split with their devices, for evaluation."""

    rows: Tensor  # [S, D] rows of the stacked examples, -1 is padding
    device: Tensor  # [S, D]


class ClassStage(NamedTuple):
    """Examples that the devices hold while the same classes are there."""

    members: Sequence[Membership]  # [S]
    pools: list[Rows]  # [S] training examples of all devices; empty where nobody asks
    most: int  # validation examples of the device that has the most
    able: NDArray[np.bool_]  # [S, N] whether a device has an example of each split


class DeviceData:
    """The devices' examples by round, a pure function of (seed, round, device).

    Only the current stage and the current round's draws are kept. Several threads may ask.

    Args:
        seeds: of the S replicas.
        members: [S] what devices own.
        labels: [D] of the stacked examples; [D, ...] where all classes are always there.
        drift: says which classes there are in a round.
        data_stream: what devices train on instead of all they own, or None.

    Raises:
        UserError: for several labels per example in a world whose classes come one after another.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        members: Sequence[Membership],
        labels: Tensor,
        drift: Drift | None,
        data_stream: DataStream | None,
    ) -> None:
        self.seeds, self.members, self.drift, self.data_stream = tuple(seeds), members, drift, data_stream
        self.labels = labels.numpy()
        if self.classes(0) is not None and labels.dim() != 1:
            raise UserError(f"population: {type(drift).__name__} needs one label for each example, got several")
        self._stage: tuple[Classes, ClassStage] | None = None
        self._arrived: tuple[int, dict[tuple[int, int], Rows]] = -1, {}

    def held(self, replica: int, device: int, split: Split, round: int) -> Rows:
        """Return the rows of a split that a device holds in a round (from 1), none of them twice."""
        return self.lists(replica, np.array([device]), split, round)[0]

    def lists(self, replica: int, devices: NDArray[np.int64], split: Split, round: int) -> list[Rows]:
        """Return the rows of a split that each of devices [L] holds in a round (from 1), none of them twice."""
        stage = self.stage(round)
        if split != "train" or self.data_stream is None:
            rows, counts = stage.members[replica].rows(devices, split)
            return np.split(rows, np.cumsum(counts)[:-1])
        number, arrived = self._arrived
        if number != round:
            self._arrived = round, (arrived := {})
        missing = [device for device in devices.tolist() if (replica, device) not in arrived]
        if self.data_stream.pooled:
            pools = [stage.pools[replica]] * len(missing)
        else:
            rows, counts = stage.members[replica].rows(np.array(missing, dtype=np.int64), split)
            pools = np.split(rows, np.cumsum(counts)[:-1])
        for device, pool in zip(missing, pools, strict=False):
            drawn = self.data_stream.draw(self.seeds[replica], round, device, pool) if len(pool) else pool
            arrived[replica, device] = drawn
        return [arrived[replica, device] for device in devices.tolist()]

    def flat(
        self, replica: int, devices: NDArray[np.int64] | None, split: Split, round: int, most: int | None = None
    ) -> tuple[Rows, NDArray[np.int64]]:
        """Return the rows of a split that devices [L] (None: all) hold in a round (from 1), one device's after
        another's, and how many each has [L]. A device with more than ``most`` gives a random choice of them, which
        stays the same as long as it holds the same rows."""
        rows, counts = self._flat(replica, devices, split, round)
        if most is None or counts.max(initial=0) <= most:
            return rows, counts
        number = np.arange(len(counts)) if devices is None else devices
        return fewer(rows, counts, random_bits(self.seeds[replica], "asked", np.repeat(number, counts), rows), most)

    def _flat(
        self, replica: int, devices: NDArray[np.int64] | None, split: Split, round: int
    ) -> tuple[Rows, NDArray[np.int64]]:
        if split == "train" and self.data_stream is not None:
            everybody = np.arange(len(self.members[replica]))
            lists = self.lists(replica, everybody if devices is None else devices, split, round)
            return np.concatenate(lists), np.array([len(rows) for rows in lists])
        members = self.stage(round).members[replica]
        return members.every(split) if devices is None else members.rows(devices, split)

    def moment(self, split: Split, round: int) -> Hashable:
        """Return the key that is equal for rounds (from 1) in which all devices hold the same examples of a split."""
        return self.classes(round), round if split == "train" and self.data_stream is not None else -1

    def evaluation_index(
        self, split: Split, round: int, clients: Tensor | None = None, most: int | None = None
    ) -> EvaluationIndex:
        """Return all examples of a split in a round (from 1), or ``most`` of each device, of all devices or of the
        devices clients [S, J], which are then numbered 0 … J-1."""
        held = [
            self.flat(replica, None if clients is None else clients[replica].numpy(), split, round, most)
            for replica in range(len(self.members))
        ]
        return EvaluationIndex(
            padded([rows for rows, _ in held]),
            padded([np.repeat(np.arange(len(counts)), counts) for _, counts in held]),
        )

    def examples_of(
        self, split: Split, clients: Tensor, round: int, width: int | None = None, most: int | None = None
    ) -> Tensor:
        """Return [S, J, V]: rows of a split, or ``most`` of each device, of the devices clients [S, J] in a round (from
        1), padded with -1 to the longest of them, or to a width."""
        held = [self.flat(replica, line.numpy(), split, round, most) for replica, line in enumerate(clients)]
        rows, counts = (np.concatenate(parts) for parts in zip(*held, strict=True))
        return torch.from_numpy(table(rows, counts, width)).view(*clients.shape, -1)

    def stage(self, round: int) -> ClassStage:
        """Return the stage of a round (from 1): all that is the same in every round with the same classes."""
        classes = self.classes(round)
        stage = self._stage
        if stage is None or stage[0] != classes:
            stage = self._stage = classes, self._made(classes)
        return stage[1]

    def classes(self, round: int) -> Classes:
        """Return the classes of which there are examples in a round (from 1); None: all."""
        return None if self.drift is None else self.drift.classes(round)

    def _made(self, classes: Classes) -> ClassStage:
        members = self.members
        if classes is not None:
            there = np.isin(self.labels, classes)
            members = [member.among(there) for member in members]
        pooled = self.data_stream is not None and self.data_stream.pooled
        pools = [member.every("train")[0] for member in members] if pooled else []
        needed = slice(1 if pooled else 0, len(SPLITS))
        able = np.stack([(member.counts[:, needed] > 0).all(1) for member in members])
        if pooled:
            able &= np.array([[len(pool) > 0] for pool in pools])
        place = SPLITS.index("valid")
        return ClassStage(members, pools, max(int(member.counts[:, place].max()) for member in members), able)


def refuse_empty(device_data: DeviceData, there: NDArray[np.bool_], round: int) -> None:
    """Raise UserError if in a round (from 1) none of the devices there [N] has an example of each split."""
    for seed, line in zip(device_data.seeds, device_data.stage(round).able & there, strict=True):
        if not line.any():
            classes = ", ".join(map(str, device_data.classes(round) or ()))
            raise UserError(
                f"population: in round {round} no device of seed {seed} holds an example for training, one for "
                f"validation and one for testing of the classes that there are ({classes}): introduce more classes "
                "earlier, or lower clients"
            )


def blocks_of(examples: Examples, partition: Partition | None, clients: int, seed: int) -> Ownership:
    """Return the blocks of rows of a replica's devices.

    Raises:
        UserError: as `owners` does.
    """
    if partition is None and examples.ranges is not None:
        return natural_ownership(examples.ranges)
    split = own_split(examples)
    if partition is None and examples.owner is not None:
        natural, last = examples.owner.numpy(), int(examples.owner.max())
        if natural.min() < 0 or last >= len(natural):
            raise UserError(
                f"population: the owners that the data set names must be numbered from 0, got {natural.min()} to {last}"
            )
        return ownership(natural, last + 1, split)
    return ownership(owners(examples, split, partition, clients, seed), clients, split)


def own_split(examples: Examples) -> NDArray[np.int64] | None:
    """Return [D]: the user's own split of each example, as places in `SPLITS`; None where shares have to say."""
    if examples.ranges is not None:
        return examples.ranges.split(len(examples.y))
    return None if examples.split is None else examples.split.numpy()


def owners(
    examples: Examples, split: NDArray[np.int64] | None, partition: Partition | None, clients: int, seed: int
) -> NDArray[np.int64]:
    """Return [D]: the device of each example of a replica that a partition gives it to, or `NOBODY`; without one those
    of `Iid`. ``split`` [D] is the user's own.

    Raises:
        UserError: for fewer examples than devices, owners that are no devices, or what the partition refuses.
    """
    rng = generator(seed, "partition")
    if len(examples.y) < clients:
        raise UserError(f"population: clients must be ≤ the number of examples ({len(examples.y)}), got {clients}")
    labels = examples.y.numpy() if examples.coding is None else examples.y.numpy().astype(np.int64)
    partition = partition or Iid()
    labels = partition.kinds(labels)
    labels.setflags(write=False)  # they may be other processes' as well
    if not partition.training_only or split is None:
        owner = partition.assign(labels, clients, rng)
    else:
        owner = np.empty(len(labels), dtype=np.int64)
        for place in range(len(SPLITS)):
            rows = np.flatnonzero(split == place)
            owner[rows] = (deal_evenly if place else partition.assign)(labels[rows], clients, rng)
    name = type(partition).__name__
    if not isinstance(owner, np.ndarray) or owner.shape != labels.shape or owner.dtype.kind not in "iu":
        got = f"{owner.dtype} {list(owner.shape)}" if isinstance(owner, np.ndarray) else type(owner).__name__
        raise UserError(f"{name}: assign must return an array of {len(labels)} integers, got {got}")
    refuse_strangers(name, owner, clients, NOBODY)
    return owner
