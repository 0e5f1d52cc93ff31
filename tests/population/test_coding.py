"""Examples that are kept narrow, side by side, give the bits of those that are spelled out."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import Flash
from flstudy.population import Dataset, Examples
from flstudy.population.datasets.base import Coding, Ranges
from flstudy.population.drift import SuddenDrift
from flstudy.tasks import Logistic, Lstm

from ..worlds import difference, run, state

SIZES = np.array([[9, 3, 4], [5, 2, 2], [14, 4, 3]])
MEAN, DEVIATION = torch.tensor([[[0.3]], [[0.5]]]), torch.tensor([[[0.2]], [[0.7]]])


@dataclass(frozen=True, kw_only=True)
class Kept(Dataset):
    """Pixels or tokens of three devices, with a gap that is nobody's between them."""

    narrow: bool
    text: bool = False
    own_splits: bool = True
    classes = 11

    @property
    def shape(self):
        return (6,) if self.text else (2, 3, 3)

    @property
    def tokens(self):
        return 11 if self.text else 0

    @cached_property
    def ranges(self):
        counts = SIZES if self.own_splits else np.stack([SIZES.sum(1), 0 * SIZES[:, 0], 0 * SIZES[:, 0]], 1)
        sizes = counts.sum(1)
        return Ranges(1 + sizes.cumsum() - sizes, counts)

    def load(self, seed, clients):
        rng, size = np.random.default_rng(0), 1 + SIZES.sum()
        if self.text:
            x, y = (torch.from_numpy(rng.integers(0, 11, (size, 6)).astype(np.int16)) for _ in range(2))
            coding = Coding(torch.empty(0), torch.empty(0))
        else:
            x = torch.from_numpy(rng.integers(0, 256, (size, 2, 3, 3)).astype(np.uint8))
            y, coding = torch.from_numpy(rng.integers(0, 11, size).astype(np.uint8)), Coding(MEAN, DEVIATION)
        if self.narrow:
            return Examples(x, y, None, None, self.ranges, coding)
        owner, split = self.ranges.owner(size)[1:], self.ranges.split(size)
        split = None if split is None else torch.from_numpy(split[1:])
        return Examples(coding.inputs(x)[1:], y[1:].to(torch.int64), torch.from_numpy(owner), split)


@pytest.mark.parametrize("text", [False, True], ids=["pixels", "tokens"])
@pytest.mark.parametrize("own_splits", [True, False], ids=["own splits", "shares"])
def test_narrow_examples_side_by_side_give_the_same_bits(own_splits, text):
    ends = []
    for narrow in (True, False):
        population = Population(
            Kept(narrow=narrow, text=text, own_splits=own_splits),
            clients=3,
            participants=2,
            batch_size=4,
            drift=SuddenDrift(round=2),
        )
        kind = Lstm if text else Logistic
        torch.manual_seed(3)
        module = run(
            Flash(lr=0.1), 2, seeds=(0, 44), population=population, task=kind(population.dataset.shape, 11),
            executor="vectorized", evaluate=True,
        )  # fmt: skip
        cohort = population.cohort(2)
        ends.append(
            (state(module), module.record.metrics, population.store.gather(cohort.batches.rows, cohort.batches.concept))
        )
    assert difference(ends[0][0], ends[1][0]) == 0
    assert ends[0][1]["valid/loss"] == ends[1][1]["valid/loss"]
    for tensor, other in zip(ends[0][2], ends[1][2], strict=True):
        assert tensor.dtype == other.dtype
    real = cohort.batches.rows >= 0
    assert all(torch.equal(tensor[real], other[real]) for tensor, other in zip(ends[0][2], ends[1][2], strict=True))
