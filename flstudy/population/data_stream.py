"""Training examples that come anew in every round, and are gone after it."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flstudy.population.streams import generator


class DataStream(ABC):
    """What a device trains on in a round. Its examples for validation and testing stay its own."""

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    @property
    @abstractmethod
    def pooled(self) -> bool:
        """Whether devices draw from all devices' training examples, and not from their own."""

    @abstractmethod
    def draw(self, seed: int, number: int, device: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of ``pool``, at least one of its ≥ 1, that a device trains on in round ``number`` (from 1)."""


@dataclass(kw_only=True)
class FreshDraws(DataStream):
    """In every round every device draws its training examples anew: so many as a normal distribution says, rounded and
    at least one, all different (Ganguly & Aggarwal 2024, sec. VI: "sizes distributed as N(1000, 200) via random
    sampling without replacement from the core data-source").

    Two devices may draw the same example, and a device may meet it again in a later round. Sizes that exceed the pool
    are cut to it. What a device draws is a function of (seed, round, device) and of the pool alone.

    Args:
        mean: expected number of examples, > 0.
        deviation: its standard deviation (so we read the paper's 200), ≥ 0.
        source: ``everybody`` draws from the training examples of all devices, the paper's core data-source; ``device``
            from the device's own.
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    mean: float = 1000.0
    deviation: float = 200.0
    source: Literal["everybody", "device"] = "everybody"

    def __post_init__(self) -> None:
        if not (self.mean > 0 and math.isfinite(self.mean)):
            raise ValueError(f"FreshDraws: mean must be > 0, got {self.mean}")
        if not (self.deviation >= 0 and math.isfinite(self.deviation)):
            raise ValueError(f"FreshDraws: deviation must be ≥ 0, got {self.deviation}")
        if self.source not in ("everybody", "device"):
            raise ValueError(f"FreshDraws: source must be everybody or device, got {self.source!r}")

    @property
    def pooled(self) -> bool:
        return self.source == "everybody"

    def draw(self, seed: int, number: int, device: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        rng = generator(seed, "arrivals", number, device)
        size = int(np.clip(np.rint(rng.normal(self.mean, self.deviation)), 1, len(pool)))
        return pool[rng.choice(len(pool), size, replace=False)]
