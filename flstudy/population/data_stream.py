"""Training examples that come anew in every round, and are gone after it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.population.streams import generator


class DataStream(Configurable, ABC):
    """Training examples that a device holds in a round; its examples for validation and testing stay its own."""

    @property
    @abstractmethod
    def pooled(self) -> bool:
        """Return whether devices draw from all devices' training examples, and not from their own."""

    @abstractmethod
    def draw(self, seed: int, number: int, device: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [K]: the rows of ``pool`` [D], 1 ≤ K ≤ D, that a device trains on in round ``number`` (from 1)."""


@dataclass(frozen=True, kw_only=True)
class FreshDraws(DataStream):
    """Fresh training examples for every device in every round (Ganguly & Aggarwal 2024, sec. VI). Their number is drawn
    from a normal distribution and rounded, one at least; all are different. The paper: "sizes distributed as
    N(1000, 200) via random sampling without replacement from the core data-source".

    Two devices may draw the same example, and a device may meet it again in a later round. Sizes that exceed the pool
    are cut to it. What a device draws is a function of (seed, round, device) and of the pool alone.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    mean: float = hyper(1000.0, "(0, 1e12]")
    """Expected number of examples."""
    deviation: float = hyper(200.0, "[0, 1e12]")
    """Standard deviation of that number (so we read the paper's 200)."""
    source: Literal["everybody", "device"] = "everybody"
    """``everybody`` draws from the training examples of all devices, the paper's core data-source; ``device`` from the
    device's own."""

    @property
    def pooled(self) -> bool:
        return self.source == "everybody"

    def draw(self, seed: int, number: int, device: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        rng = generator(seed, "arrivals", number, device)
        size = int(np.clip(np.rint(rng.normal(self.mean, self.deviation)), 1, len(pool)))
        return pool[rng.choice(len(pool), size, replace=False)]
