"""Rounds as Lightning's loop asks for them: one item per epoch."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, Sampler

from flstudy.population.streams import generator


def cohort_size(sampling: str, number: int, there: int, participants: int, clients: int) -> int:
    """How many of the devices that are there take part in round ``number`` (from 1).

    fixed: ``participants``, or all. poisson: a binomial number, with probability participants / clients. It is the same
    for all seeds, whose rounds are one program; each seed by itself draws as if every device tossed its own coin.
    """
    if sampling == "fixed":
        return min(participants, there)
    return int(generator(0, "participants", number).binomial(there, participants / clients))


class Rounds(Dataset[Any]):
    """Cohorts by round."""

    def __init__(self, cohort: Callable[[int], Any]) -> None:
        self.cohort = cohort

    def __getitem__(self, round: int) -> Any:
        return self.cohort(round)


class RoundSampler(Sampler[int]):
    """Yields the round (from 1) of the current epoch; Lightning calls ``set_epoch``, also after a resume, so that no
    cohort is ever replayed."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning's loop before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield (
            self.epoch + 1
        )  # read when the round begins: on a resume the iterator is made before ``set_epoch`` is called

    def __len__(self) -> int:
        return 1
