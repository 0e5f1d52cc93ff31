"""Standard workloads of the benchmark."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import lightning as L
import torch
from torch import Tensor, nn

from flstudy.algorithms import Algorithm, FedAvg
from flstudy.benchmark.options import EXECUTORS
from flstudy.population import Population, Synthetic
from flstudy.tasks import Cnn, Lstm, Mlp

BRIEF = ("plain", "vectorized", "compiled")  # the other executors gain nothing on small models: one workload has them
CLIENTS, PARTICIPANTS = 30, 10
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Standard workload of the benchmark: task, population and algorithm.

    The first `window` rounds are repeated, each time from the initial model, so that all executors do the same work in
    every window, however many windows fit into a block: ragged cohorts and early stopping make rounds differ, and a
    faster executor would otherwise see other rounds.
    """

    name: str  # its name for ``--workloads``
    sentence: str  # title of its table, with all sizes
    task: Callable[[], L.LightningModule]  # with the same parameters in every process
    population: Callable[[], Population]
    algorithm: Callable[[], Algorithm]
    seeds: int = 1  # S, replicas trained at once; the plain loop always trains one
    executors: tuple[str, ...] = EXECUTORS  # those that make sense, in the table's order
    threads: Literal["one", "all", "both"] = "one"  # one where steps are so small that threads wait for each other
    plain_threads: Literal["one", "both"] = "one"  # threads of the plain loop, whose best row counts
    window: int = 1
    plain: Callable[[], nn.Module] | None = None  # the plain loop's module; None takes the task


def seeded(task: Callable[..., Module], *sizes: Any, **more: Any) -> Module:
    """Build a task with the same parameters in every process."""
    torch.manual_seed(0)
    return task(*sizes, **more)


class NextCharacter(nn.Module):
    """Model of `Lstm` with ``torch.nn.LSTM``, which runs all steps of a sequence in one fused call."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(90, 8), nn.Linear(32, 90)
        self.lstm = nn.LSTM(8, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


devices = partial(Population, clients=CLIENTS, participants=PARTICIPANTS)


def random_examples(shape: tuple[int, ...], classes: int, per_device: int, **batches: Any) -> Population:
    """Return the population whose devices hold ``per_device`` random examples, since their content does not change the
    speed."""
    source, count = torch.Generator().manual_seed(0), CLIENTS * per_device
    x = torch.randn(count, *shape, generator=source)
    return devices((x, torch.randint(classes, (count,), generator=source)), **batches)


def characters() -> Population:
    """Return the population whose devices hold 70 random lines of 20 characters, with the next characters as labels."""
    text = torch.randint(90, (CLIENTS * 70, 21), generator=torch.Generator().manual_seed(0))
    return devices((text[:, :-1].clone(), text[:, 1:].clone()), batch_size=4, steps=10)


_MLP = partial(seeded, Mlp, (60,), 10, hidden=64)  # FLASH's model for Synthetic
_ROWS = partial(random_examples, (60,), 10, 700, batch_size=10, steps=40)
_FEDAVG = partial(FedAvg, lr=0.05)
_SYNTHETIC = partial(devices, Synthetic(), batch_size=10, epochs=8)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="mlp",
            sentence="MLP 60-64-10, 10 of 30 clients × 40 steps of batch 10, FedAvg, 1 seed",
            task=_MLP,
            population=_ROWS,
            algorithm=_FEDAVG,
            plain_threads="both",
        ),
        Workload(
            name="mlp10",
            sentence="the same MLP with 10 seeds at once (plain loop: 1 seed)",
            task=_MLP,
            population=_ROWS,
            algorithm=_FEDAVG,
            seeds=10,
            threads="all",
            executors=BRIEF,  # the others take the seeds one after another
        ),
        Workload(
            name="synthetic",
            sentence="Synthetic(0.5, 0.5), ragged sizes, ≤ 8 epochs of batch 10, early stopping γ 0.05, MLP",
            task=_MLP,
            population=_SYNTHETIC,
            algorithm=partial(FedAvg, lr=0.05, gamma=0.05),
            executors=BRIEF,
            window=3,
        ),
        Workload(
            name="synthetic3",
            sentence="the same Synthetic rounds with 3 seeds at once (plain loop: 1 seed)",
            task=_MLP,
            population=_SYNTHETIC,
            algorithm=partial(FedAvg, lr=0.05, gamma=0.05),
            seeds=3,
            threads="all",
            executors=BRIEF,
            window=3,
        ),
        Workload(
            name="cnn",
            sentence="CNN 1×28×28, 62 classes, 10 of 30 clients × 10 steps of batch 20, FedAvg, 1 seed",
            task=partial(seeded, Cnn, (1, 28, 28), 62),  # the EMNIST model of Reddi et al. 2021 without its dropout
            population=partial(random_examples, (1, 28, 28), 62, 350, batch_size=20, steps=10),
            algorithm=_FEDAVG,
            executors=("plain", "threads", "vectorized", "compiled"),
            threads="all",
            plain_threads="both",
        ),
        Workload(
            name="lstm",
            sentence="next character, LSTM 8-32-90, length 20, 10 of 30 clients × 10 steps of batch 4",
            task=partial(seeded, Lstm, shape=(20,), classes=90, embedding=8, hidden=32),
            population=characters,
            algorithm=_FEDAVG,
            executors=BRIEF,
            plain=partial(seeded, NextCharacter),
        ),
    )
}
