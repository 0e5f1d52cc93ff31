"""Batch plans: which examples each job reads in which step, by row; a pure function of (seed, round, device)."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flstudy.population.streams import mixed, random_bits

PLACES = 2**24  # in the low bits of a sort key

HOST = ("steps", "epoch", "validated", "round")  # the host plans a round by them


class Batches(NamedTuple):
    """Examples that S × J jobs read in one round. Row -1 is padding. In a run the fields `HOST` stay on the host."""

    rows: Tensor  # [S, J, T, B] rows of the stacked examples
    steps: Tensor  # [S, J] steps that are real, ≤ T and ≥ 1
    epoch: Tensor  # [S, J, T] number e ≥ 1 of the epoch which this step ends, 0 elsewhere
    valid: Tensor  # [S, J, V] rows of the device's validation examples
    validated: Tensor  # [S, J] how many of these are real
    concept: Tensor  # [S, J] concept under which the device lives
    round: Tensor  # [S, J] number of the round, from 1


class BatchPlan(NamedTuple):
    """Local work of a device in a round: ``epochs`` over its data or ``max_steps`` minibatches, whichever ends
    first; or exactly ``steps`` minibatches."""

    batch_size: int
    epochs: int
    steps: int | None = None
    max_steps: int | None = None

    def steps_of(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of steps [L] in a round of devices that hold so many examples [L]."""
        if self.steps is not None:
            return np.full(len(examples), self.steps)
        steps = self.epochs * -(-examples // self.batch_size)
        return steps if self.max_steps is None else np.minimum(steps, self.max_steps)

    def longest(self, examples: int) -> int:
        """Return the number of steps in a round of a device that holds so many examples."""
        return int(self.steps_of(np.array([examples]))[0])

    def rows(
        self, seed: NDArray[np.int64], number: int, device: NDArray[np.int64], lists: list[NDArray[np.int64]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (rows [L, T, B], steps [L], epoch [L, T]) of L jobs.

        Every epoch is a fresh shuffle; its last batch may be smaller, as everywhere in the field.

        Args:
            seed: [L] seed of each job's replica.
            number: round, from 1; of a probe round another number, as `Population.cohort` makes it.
            device: [L] device of each job.
            lists: L arrays, the rows of each device's training examples (at least one each).
        """
        sizes = np.array([len(rows) for rows in lists])
        assert sizes.min() >= 1
        steps = self.steps_of(sizes)
        table = np.full((len(lists), int(steps.max()), self.batch_size), -1, dtype=np.int64)
        ends = np.zeros(table.shape[:2], dtype=np.int64)
        word = random_bits(seed, "batches", number, device)
        for size in np.unique(sizes):  # jobs of one size have as many epochs, each as long
            jobs = np.flatnonzero(sizes == size)
            per_epoch, count = -(-size // self.batch_size), steps[jobs[0]]
            epochs = -(-count // per_epoch)
            order = shuffled(word[jobs], epochs, size)
            read = np.stack([lists[job] for job in jobs])[np.arange(len(jobs))[:, None, None], order]
            batches = np.full((len(jobs), epochs, per_epoch * self.batch_size), -1, dtype=np.int64)
            batches[..., :size] = read
            table[jobs, :count] = batches.reshape(len(jobs), -1, self.batch_size)[:, :count]
            last = np.arange(per_epoch, count + 1, per_epoch)
            ends[jobs[:, None], last - 1] = np.arange(1, len(last) + 1)
        return torch.from_numpy(table), torch.from_numpy(steps), torch.from_numpy(ends)


def shuffled(word: NDArray[np.uint64], epochs: int, size: int) -> NDArray[np.int64]:
    """Return [L, E, D]: the order in which jobs read their D examples in each of E epochs, given their random words
    [L]: by 40 random bits, and by place where those are equal."""
    assert size <= PLACES, "more examples on one device than places in a key"
    word = mixed(word[:, None, None], np.arange(epochs)[:, None])
    key = mixed(word, np.arange(size))
    key &= ~np.uint64(PLACES - 1)
    key |= np.arange(size, dtype=np.uint64)
    key.sort(axis=-1)  # of numbers: several times as fast as a stable argsort of the bits
    key &= np.uint64(PLACES - 1)
    return key.view(np.int64)


def table(rows: NDArray[np.int64], counts: NDArray[np.int64], width: int | None = None) -> NDArray[np.int64]:
    """Return [L, width]: lines of the next counts [L] of the rows [Σ counts], padded with -1; by default as wide as the
    longest."""
    filled = np.full((len(counts), counts.max(initial=0) if width is None else width), -1, dtype=np.int64)
    filled[np.arange(filled.shape[1]) < counts[:, None]] = rows
    return filled


def padded(lists: list[NDArray[np.int64]]) -> Tensor:
    """Return ragged rows as one table [L, longest], padded with -1."""
    return pad_sequence([torch.from_numpy(rows) for rows in lists], batch_first=True, padding_value=-1)
