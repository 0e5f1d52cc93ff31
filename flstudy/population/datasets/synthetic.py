"""Data sets that are drawn, not read: each device's own distribution."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from flstudy.hyper import hyper
from flstudy.population.datasets.base import Dataset, Examples
from flstudy.population.streams import generator


@dataclass(frozen=True, kw_only=True)
class Synthetic(Dataset):
    """Data set Synthetic(α, β) of Li et al. 2020 (FedProx, App. C.1). FLASH (App. A) uses it with 30 devices and α = β
    = 0.5.

    Device k holds n_k = ⌊LogNormal(log_mean, log_std)⌋ + extra examples, and

        u_k ~ N(0, α), B_k ~ N(0, β);   W_k [classes, features] and b_k [classes] ~ N(u_k, 1)
        v_k,j ~ N(B_k, 1);   x ~ N(v_k, Σ), Σ_jj = j^-1.2;   y = argmax softmax(W_k x + b_k)

    α and β are standard deviations, as in the authors' generator. As published, α cannot change the data: u_k adds the
    same number, u_k (1 + Σ_j x_j), to every class's logit, and an argmax does not see that.
    """

    citations: ClassVar[tuple[str, ...]] = ("li2020fedprox",)
    seeded: ClassVar[bool] = True
    natural: ClassVar[bool] = True

    alpha: float = hyper(0.5, "[0, 1e12]")
    """α, how much local models differ."""
    beta: float = hyper(0.5, "[0, 1e12]")
    """β, how much local data differ."""
    features: int = hyper(60, "[1, 1e5]")
    """d, input dimension."""
    labels: int = hyper(10, "[1, 1e5]")
    """Number of classes."""
    log_mean: float = hyper(4.0, "[-20, 20]")
    """μ of the log-normal size."""
    log_std: float = hyper(2.0, "[0, 10]")
    """σ of the log-normal size."""
    extra: int = hyper(50, "[0, 1e6]")
    """Examples that every device has on top; the authors' generator adds 50."""
    largest: int | None = hyper(None, "[1, 1e6]")
    """Cap on a device's size (σ = 2 gives devices of over 10,000 examples); null leaves the tail alone."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    @cached_property
    def classes(self) -> int:
        return self.labels

    def load(self, seed: int, clients: int) -> Examples:
        rng = generator(seed, "synthetic")
        sizes = rng.lognormal(self.log_mean, self.log_std, clients).astype(np.int64) + self.extra
        if self.largest is not None:
            sizes = np.minimum(sizes, self.largest)
        u = rng.normal(0, self.alpha, clients)
        center = rng.normal(0, self.beta, clients)
        deviation = np.arange(1, self.features + 1) ** (-1.2 / 2)  # √Σ_jj
        xs, ys = [], []
        for k in range(clients):
            v = rng.normal(center[k], 1, self.features)
            weight = rng.normal(u[k], 1, (self.labels, self.features))
            bias = rng.normal(u[k], 1, self.labels)
            x = v + deviation * rng.standard_normal((sizes[k], self.features))
            xs.append(x)
            ys.append((x @ weight.T + bias).argmax(1))  # argmax of the softmax
        owner = np.repeat(np.arange(clients), sizes)
        x, y = np.concatenate(xs), np.concatenate(ys)
        return Examples(torch.from_numpy(x).float(), torch.from_numpy(y), torch.from_numpy(owner))


@dataclass(frozen=True, kw_only=True)
class HeavyTails(Dataset):
    """Heavy-tailed gradients of FedAda² (Lee et al. 2024, App. A): inputs are noise ξ for the task Quadratic, whose
    gradient at w is w + ξ. Labels say nothing.

    ``student``: device i = 1, 2, … draws from Student's t with i + 1 degrees of freedom, so that the first device's
    gradients have no variance (Propositions 2 and 9). ``cauchy``: the first device draws from Cauchy's distribution,
    which has no mean either, and all others from a normal one (Proposition 10).
    """

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)
    seeded: ClassVar[bool] = True
    first_task: ClassVar[str] = "Quadratic"
    natural: ClassVar[bool] = True
    classes = 1

    tails: Literal["student", "cauchy"] = "student"
    """The distributions of the noise."""
    dimension: int = hyper(1, "[1, 1e6]")
    """Dimension of w."""
    examples: int = hyper(5000, "[3, 1e8]")
    """Draws that each device holds; a round that takes one of many is one with fresh noise."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.dimension,)

    def load(self, seed: int, clients: int) -> Examples:
        rng, size = generator(seed, "heavy tails"), (self.examples, self.dimension)
        if self.tails == "student":
            noise = [rng.standard_t(device + 2, size) for device in range(clients)]
        else:
            noise = [rng.standard_cauchy(size), *(rng.standard_normal(size) for _ in range(clients - 1))]
        owner = torch.arange(clients).repeat_interleave(self.examples)
        return Examples(torch.from_numpy(np.concatenate(noise)).float(), torch.zeros_like(owner), owner)
