"""Batch plans: which examples each job reads in which step, by row; a pure function of (seed, round, device)."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flstudy.population.streams import random_bits

HOST = ("steps", "epoch", "validated")  # the host plans a round by them


class Batches(NamedTuple):
    """What S × J jobs read in one round. Row -1 is padding. In a run `HOST` stay on the host."""

    rows: Tensor  # [S, J, T, B] rows of the stacked examples
    steps: Tensor  # [S, J] steps that are real, ≤ T and ≥ 1
    epoch: Tensor  # [S, J, T] number e ≥ 1 of the epoch which this step ends, 0 elsewhere
    valid: Tensor  # [S, J, V] rows of the device's validation examples
    validated: Tensor  # [S, J] how many of these are real
    concept: Tensor  # [S, J] concept under which the device lives


class BatchPlan(NamedTuple):
    """How long a device works in a round: ``epochs`` over its data, or exactly ``steps`` minibatches."""

    batch_size: int
    epochs: int
    steps: int | None = None

    def longest(self, examples: int) -> int:
        """Steps in a round of a device that holds so many examples."""
        return self.epochs * -(-examples // self.batch_size) if self.steps is None else self.steps

    def rows(
        self, seed: NDArray[np.int64], number: int, device: NDArray[np.int64], lists: list[NDArray[np.int64]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(rows [L, T, B], steps [L], epoch [L, T]) of L jobs.

        Every epoch is a fresh shuffle; its last batch may be smaller, as everywhere in the field.

        Args:
            seed: [L] seed of each job's replica.
            number: round.
            device: [L] device of each job.
            lists: L arrays, the rows of each device's training examples (at least one each).
        """
        sizes = np.array([len(rows) for rows in lists])
        assert sizes.min() >= 1
        per_epoch = -(-sizes // self.batch_size)
        epochs = np.full(len(lists), self.epochs) if self.steps is None else -(-self.steps // per_epoch)
        steps = per_epoch * self.epochs if self.steps is None else np.full(len(lists), self.steps)

        job = np.repeat(np.arange(len(lists)), epochs)  # one entry per (job, epoch), a "pass"
        nth = np.arange(len(job)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        length = sizes[job]
        start = np.cumsum(length) - length
        pass_of = np.repeat(np.arange(len(job)), length)  # one entry per example read
        position = np.arange(len(pass_of)) - start[pass_of]
        owner = job[pass_of]
        shuffle = random_bits(seed[owner], "batches", number, device[owner], nth[pass_of], position)
        # All shuffles in one sort: the pass in the high bits, 40 random bits below.
        order = np.argsort((pass_of.astype(np.uint64) << np.uint64(40)) | (shuffle >> np.uint64(24)), kind="stable")

        first = np.cumsum(sizes) - sizes
        read = np.concatenate(lists)[first[owner] + position[order]]
        step = nth[pass_of] * per_epoch[owner] + position // self.batch_size
        table = np.full((len(lists), int(steps.max()), self.batch_size), -1, dtype=np.int64)
        keep = step < steps[owner]
        table[owner[keep], step[keep], position[keep] % self.batch_size] = read[keep]

        ends = np.zeros(table.shape[:2], dtype=np.int64)
        last = (nth + 1) * per_epoch[job] - 1
        done = last < steps[job]
        ends[job[done], last[done]] = nth[done] + 1
        return torch.from_numpy(table), torch.from_numpy(steps), torch.from_numpy(ends)


def padded(lists: list[NDArray[np.int64]]) -> Tensor:
    """Ragged rows as one table [L, longest], padded with -1."""
    return pad_sequence([torch.from_numpy(rows) for rows in lists], batch_first=True, padding_value=-1)
