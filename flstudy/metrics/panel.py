"""Panel of devices that evaluations ask where asking all takes too long: the same ones in every round; and how each of
them counts."""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.streams import random_bits
from flstudy.user_error import UserError

STRATA = 10


@dataclass(frozen=True, kw_only=True)
class Panel(Configurable):
    """Panel of devices that stand for all. They are drawn once per seed and stay, so that curves are comparable. The
    available ones are sorted by their numbers of examples and divided into ten strata; equal shares of each are drawn
    at random. Only where devices come and go others take the places of those that are away.

    A metric's mean over the panel estimates that over all devices; ``NAME_se`` is its standard error, by the formula
    for devices that are drawn without strata, which is rather too large than too small.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    clients: int | None = hyper(500, "[2, 1e6]")
    """Devices that are asked; null: all."""
    examples: int | None = hyper(None, "[1, 1e6]")
    """Most examples of a device that it is asked about, drawn at random and the same in every round; null: all."""
    full_every: int | None = hyper(None, "[1, 1e6]")
    """Rounds after which everybody is asked about everything, a multiple of evaluate_every; null: never."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """How devices count in means and deviations of loss and accuracy: alike (FLASH's eq. 1), or by their examples, as
    if these were one test set."""

    def check(self, devices: int, every: int = 1) -> None:
        """Raise UserError for settings that do not suit ``devices`` devices, evaluated after every ``every`` rounds."""
        if self.clients is None and self.full_every is not None:
            raise UserError("evaluation.full_every must be left out where evaluation.clients is null: all are asked")
        if self.clients is not None and self.weighting == "examples":
            raise UserError(
                f"evaluation.weighting examples needs evaluation.clients null, got {self.clients}: the standard errors "
                "of a panel are those of devices that count alike"
            )
        if self.clients is not None and self.clients > devices:
            raise UserError(
                f"evaluation.clients must be ≤ population.clients ({devices}), got {self.clients}: lower it, or leave "
                "evaluation out, which asks everybody"
            )
        if self.full_every is not None and self.full_every % every:
            raise UserError(
                f"evaluation.full_every must be a multiple of evaluate_every ({every}), got {self.full_every}"
            )

    def asks_everybody(self, round: int) -> bool:
        """Return whether all devices are asked in a round (from 1)."""
        return self.full_every is not None and round % self.full_every == 0

    def draw(self, seed: int, sizes: NDArray[np.int64], available: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """Return [count]: the devices of a replica that are asked, ascending.

        Args:
            seed: of the replica.
            sizes: [N] the devices' numbers of examples.
            available: [N] who can be asked, ``count`` devices at least.
            count: how many are.
        """
        devices = np.flatnonzero(available)
        devices = devices[np.argsort(sizes[devices], kind="stable")]
        word, drawn = random_bits(seed, "panel", devices), []
        bounds = np.arange(STRATA + 1) * count // STRATA
        for begin, end in itertools.pairwise(bounds):
            stratum = slice(begin * len(devices) // count, end * len(devices) // count)
            drawn.append(devices[stratum][np.argsort(word[stratum], kind="stable")[: end - begin]])
        return np.sort(np.concatenate(drawn))

    def error(self, count: int, devices: int) -> float:
        """Return the standard error of a mean over ``count`` of ``devices`` devices, in standard deviations over
        those."""
        share = 0.0 if self.examples is not None else count / devices
        return math.sqrt((1 - share) / max(1, count - 1))
