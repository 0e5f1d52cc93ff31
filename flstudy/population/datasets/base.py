"""Data sets: examples in memory, and who owns them where the data set says so."""

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from flstudy.population.streams import generator


class Examples(NamedTuple):
    """All examples of a data set."""

    x: Tensor  # [D, ...]
    y: Tensor  # [D], or [D, ...] for several labels per example; labels below 0 are padding
    owner: Tensor | None  # [D] natural device of each example; None where a partition has to say


class Dataset(ABC):
    """A source of examples. ``shape`` and ``classes`` are known before loading, so that a task can be built."""

    citations: ClassVar[tuple[str, ...]] = ()
    """BibTeX keys of the works that its users cite; empty where there is nobody to cite."""

    shape: tuple[int, ...]
    """Shape of one example's input."""
    classes: int
    """Number of labels."""
    tokens: int = 0
    """Numbers of which texts are made, padding 0 included; 0 where inputs are no texts."""
    seeded: ClassVar[bool] = False
    """Whether the examples themselves differ between seeds."""

    @abstractmethod
    def load(self, seed: int, clients: int) -> Examples:
        """The examples for one replica of ``clients`` devices."""


@dataclass
class Digits(Dataset):
    """scikit-learn's 1,797 handwritten digits (Alpaydin & Kaynak 1998): 8×8 grey images in [0, 1], ten classes."""

    citations: ClassVar[tuple[str, ...]] = ("alpaydin1998",)

    def __post_init__(self) -> None:
        self.shape, self.classes = (1, 8, 8), 10

    def load(self, seed: int, clients: int) -> Examples:
        from sklearn.datasets import load_digits  # a study dependency; the engine runs without it

        digits = load_digits()
        x = torch.from_numpy(digits.images / 16.0).to(torch.float32)[:, None]
        return Examples(x, torch.from_numpy(digits.target).to(torch.int64), None)


@dataclass
class Synthetic(Dataset):
    """Synthetic(α, β) of Li et al. 2020 (FedProx, App. C.1), used by FLASH (App. A) with 30 devices and α = β = 0.5.

    Device k holds n_k = ⌊LogNormal(log_mean, log_std)⌋ + extra examples, and

        u_k ~ N(0, α), B_k ~ N(0, β);   W_k [classes, features] and b_k [classes] ~ N(u_k, 1)
        v_k,j ~ N(B_k, 1);   x ~ N(v_k, Σ), Σ_jj = j^-1.2;   y = argmax softmax(W_k x + b_k)

    α and β are standard deviations, as in the authors' generator. As published, α cannot change the data: u_k adds the
    same number, u_k (1 + Σ_j x_j), to every class's logit, and an argmax does not see that.

    Args:
        alpha: how much local models differ, ≥ 0.
        beta: how much local data differ, ≥ 0.
        features: d, input dimension.
        labels: number of classes.
        log_mean: μ of the log-normal size.
        log_std: σ of the log-normal size.
        extra: examples that every device has on top; the authors' generator adds 50.
        largest: cap on a device's size (σ = 2 gives devices of over 10,000 examples); null leaves the tail alone.
    """

    citations: ClassVar[tuple[str, ...]] = ("li2020fedprox",)

    alpha: float = 0.5
    beta: float = 0.5
    features: int = 60
    labels: int = 10
    log_mean: float = 4.0
    log_std: float = 2.0
    extra: int = 50
    largest: int | None = None

    seeded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "log_std", "extra"):
            if getattr(self, name) < 0:
                raise ValueError(f"Synthetic: {name} must be ≥ 0, got {getattr(self, name)}")
        for name in ("features", "labels", "largest"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"Synthetic: {name} must be ≥ 1, got {getattr(self, name)}")
        self.shape, self.classes = (self.features,), self.labels

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


class InMemory(Dataset):
    """A user's own data: a map-style ``torch.utils.data.Dataset`` of (x, y) pairs, or a tuple of two tensors."""

    def __init__(self, data: Any) -> None:
        batch = data
        mapped = hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str)
        if mapped and not is_pair(data) and len(data) > 0:
            batch = next(iter(DataLoader(data, batch_size=len(data))))
        if not is_pair(batch):
            raise ValueError(
                f"dataset must be a flstudy dataset, a map-style torch dataset of (x, y) or a tuple of two tensors, "
                f"got {type(data).__name__}"
            )
        x, y = batch
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"dataset must hold as many inputs as labels, at least one, got {len(x)} and {len(y)}")
        self.examples = Examples(x, torch.as_tensor(y), None)
        self.shape = tuple(x.shape[1:])
        integral = not torch.is_floating_point(self.examples.y)
        self.classes = int(self.examples.y.max()) + 1 if integral else 0

    def load(self, seed: int, clients: int) -> Examples:
        return self.examples


def is_pair(value: Any) -> bool:
    """Whether this is a pair of tensors (x, y)."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(part, Tensor) for part in value)


def registry() -> dict[str, type[Dataset]]:
    """Every data set that a config can name."""
    found = [cls for cls in descendants(Dataset) if not inspect.isabstract(cls) and cls is not InMemory]
    return {cls.__name__: cls for cls in sorted(found, key=lambda cls: cls.__name__)}


def descendants(cls: type) -> list[type[Any]]:
    """All classes that inherit from this one."""
    children: list[type[Any]] = cls.__subclasses__()
    return [found for child in children for found in (child, *descendants(child))]
