"""Devices whose gradients have heavy tails (FedAda², Lee et al. 2024, App. A)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from flstudy.population.datasets.base import Dataset, Examples
from flstudy.population.streams import generator


@dataclass
class HeavyTails(Dataset):
    """Noise ξ for the task Quadratic, whose gradient at w is w + ξ. Labels say nothing.

    ``student``: device i = 1, 2, … draws from Student's t with i + 1 degrees of freedom, so that the first device's
    gradients have no variance (Propositions 2 and 9). ``cauchy``: the first device draws from Cauchy's distribution,
    which has no mean either, and all others from a normal one (Proposition 10).

    Args:
        tails: student or cauchy.
        dimension: of w, ≥ 1.
        examples: draws that each device holds, ≥ 3; a round that takes one of many is one with fresh noise.
    """

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    tails: Literal["student", "cauchy"] = "student"
    dimension: int = 1
    examples: int = 5000

    seeded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tails not in ("student", "cauchy"):
            raise ValueError(f"HeavyTails: tails must be student or cauchy, got {self.tails!r}")
        for name, least in (("dimension", 1), ("examples", 3)):
            if getattr(self, name) < least:
                raise ValueError(f"HeavyTails: {name} must be ≥ {least}, got {getattr(self, name)}")
        self.shape, self.classes = (self.dimension,), 1

    def load(self, seed: int, clients: int) -> Examples:
        rng, size = generator(seed, "heavy tails"), (self.examples, self.dimension)
        if self.tails == "student":
            noise = [rng.standard_t(device + 2, size) for device in range(clients)]
        else:
            noise = [rng.standard_cauchy(size), *(rng.standard_normal(size) for _ in range(clients - 1))]
        owner = torch.arange(clients).repeat_interleave(self.examples)
        return Examples(torch.from_numpy(np.concatenate(noise)).float(), torch.zeros_like(owner), owner)
