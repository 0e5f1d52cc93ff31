"""Selection of a round's cohort: which of the devices that are there take part, some more often than others.

A cohort of J devices is a weighted sample without replacement: one after another is drawn, each time in proportion to
the weights of those left (Efraimidis & Spirakis 2006). Equal weights draw the cohort that is drawn without a selection.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.user_error import UserError


class Selection(Configurable, ABC):
    """Selection of the devices of a round."""

    @property
    def candidates(self) -> int | None:
        """Number of devices that are drawn and asked for their loss, of which the J with the largest losses train; None
        asks nobody."""
        return None

    @abstractmethod
    def weights(self, sizes: NDArray[np.int64], number: int) -> NDArray[np.float64]:
        """Return [N]: the devices' weights > 0 in round ``number`` (from 1), given the training examples that they own,
        ``sizes`` [N]."""

    def check(self, clients: int, participants: int) -> None:
        """Raise UserError where this does not suit so many devices, or so many of them in a round."""
        return


@dataclass(frozen=True, kw_only=True)
class BySize(Selection):
    """Selection of devices in proportion to the training examples that they own. Beside it ``weighting: uniform`` does
    not count these twice."""

    citations: ClassVar[tuple[str, ...]] = ("efraimidis2006",)

    def weights(self, sizes: NDArray[np.int64], number: int) -> NDArray[np.float64]:
        return sizes.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class ByWeight(Selection):
    """Selection of devices by weights of one's own."""

    citations: ClassVar[tuple[str, ...]] = ("efraimidis2006",)

    shares: tuple[float, ...] = hyper(domain="(0, 1e12]")
    """A weight for each device, in the order of their numbers; they need not sum to one."""

    def check(self, clients: int, participants: int) -> None:
        if len(self.shares) != clients:
            raise UserError(
                f"ByWeight: shares must hold a number for each of {clients} devices, got {len(self.shares)}"
            )

    def weights(self, sizes: NDArray[np.int64], number: int) -> NDArray[np.float64]:
        return np.array(self.shares)


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(BySize):
    """Power-of-Choice (Cho et al. 2022, π_pow-d): of candidates drawn by size, those with the largest losses train.

    Every candidate is sent the model and sends its loss on all its training examples. The paper's mean is ``weighting:
    uniform``.
    """

    citations: ClassVar[tuple[str, ...]] = ("cho2022",)

    d: int = hyper(domain="[1, 1e6]", at_most="population.clients")
    """Number of candidates, from J to the number of devices."""

    @property
    def candidates(self) -> int:
        return self.d

    def check(self, clients: int, participants: int) -> None:
        if not participants <= self.d <= clients:
            raise UserError(
                f"PowerOfChoice: d must lie between participants ({participants}) and clients ({clients}), got {self.d}"
            )


def weighted_sample(words: NDArray[np.uint64], weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return [S, count]: devices drawn by weights [S, N], ascending, given random words of 63 bits [S, N].

    The key -log(1 - u) / w of a device is exponential with rate w; the lowest keys are the sample.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # of devices that are away
        keys = np.where(weights > 0, -np.log1p(-(words * 2.0**-63)) / weights, np.inf)
    return np.sort(np.argpartition(keys, count - 1, axis=1)[:, :count], axis=1)
