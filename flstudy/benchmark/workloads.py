"""What is timed. Importing this module needs no torch, so that a misspelt name is told at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import lightning as L
    from torch import Tensor, nn

    from flstudy.algorithms import Algorithm
    from flstudy.population import Population

    PlainModel = tuple[nn.Module, Callable[[nn.Module, Tensor, Tensor], Tensor]]

EXECUTORS = ("plain", "trainer", "sequential", "threads", "vectorized", "compiled")
BRIEF = ("plain", "vectorized", "compiled")  # one workload shows the others, which gain nothing on small models
CLIENTS, PARTICIPANTS = 30, 10


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One standard workload.

    Attributes:
        name: what ``--workloads`` calls it.
        sentence: what it is, with all sizes; the table's title.
        task: builds the task; the same parameters in every process.
        population: builds the devices and their data.
        algorithm: builds the method.
        seeds: S, replicas trained at once. The plain loop always trains one.
        executors: those that make sense, in the table's order.
        threads: "one" where steps are so small that threads only wait for each other, "all" where they pay, "both"
            where that is to be seen.
        plain_threads: the same for the plain loop, whose best row counts.
        window: rounds after which the same rounds come again, from the initial model. All executors so do the same
            work in every window, however many of them fit into a block: ragged cohorts and early stopping make
            rounds differ, and a faster executor would otherwise see other ones.
        plain: the plain loop's module and its loss(module, x, y) -> []; None takes the task and its mean cross-entropy.
    """

    name: str
    sentence: str
    task: "Callable[[], L.LightningModule]"
    population: "Callable[[], Population]"
    algorithm: "Callable[[], Algorithm]"
    seeds: int = 1
    executors: tuple[str, ...] = EXECUTORS
    threads: Literal["one", "all", "both"] = "one"
    plain_threads: Literal["one", "both"] = "one"
    window: int = 1
    plain: "Callable[[], PlainModel] | None" = None


def seeded(name: str, *sizes: Any, **more: Any) -> "Callable[[], L.LightningModule]":
    """Builds a task of flstudy, with the same parameters in every process."""

    def build() -> "L.LightningModule":
        import torch

        from flstudy import tasks

        torch.manual_seed(0)
        task: L.LightningModule = getattr(tasks, name)(*sizes, **more)
        return task

    return build


def lstm_plain() -> "PlainModel":
    """The same model with ``torch.nn.LSTM``, whose steps over the sequence are one fused call."""
    import torch
    from torch import Tensor, nn

    class NextCharacter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(90, 8), nn.Linear(32, 90)
            self.lstm = nn.LSTM(8, 32, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(self.embedding(x))[0])

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    torch.manual_seed(0)
    return NextCharacter(), loss


def random_examples(
    shape: tuple[int, ...], classes: int, each: int, *, batch_size: int, steps: int
) -> "Callable[[], Population]":
    """Builds a population of devices that hold ``each`` random examples: their content does not change the speed."""

    def build() -> "Population":
        import torch

        from flstudy.population import Population

        source, count = torch.Generator().manual_seed(0), CLIENTS * each
        x = torch.randn(count, *shape, generator=source)
        y = torch.randint(classes, (count,), generator=source)
        return Population((x, y), clients=CLIENTS, participants=PARTICIPANTS, batch_size=batch_size, steps=steps)

    return build


def characters() -> "Population":
    """Devices that hold 70 random lines of 20 characters and their successors."""
    import torch

    from flstudy.population import Population

    text = torch.randint(90, (CLIENTS * 70, 21), generator=torch.Generator().manual_seed(0))
    lines = text[:, :-1].clone(), text[:, 1:].clone()
    return Population(lines, clients=CLIENTS, participants=PARTICIPANTS, batch_size=4, steps=10)


def synthetic() -> "Population":
    """Synthetic(0.5, 0.5) with its log-normal sizes."""
    from flstudy.population import Population, Synthetic

    return Population(Synthetic(), clients=CLIENTS, participants=PARTICIPANTS, batch_size=10, epochs=8)


def fedavg(**changes: Any) -> "Callable[[], Algorithm]":
    """Builds FedAvg with η_ℓ = 0.05."""

    def build() -> "Algorithm":
        from flstudy.algorithms import FedAvg

        return FedAvg(lr=0.05, **changes)

    return build


_MLP = seeded("Mlp", (60,), 10, hidden=64)  # FLASH's model for Synthetic
_ROWS = random_examples((60,), 10, 700, batch_size=10, steps=40)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="mlp",
            sentence="MLP 60-64-10, 10 of 30 clients × 40 steps of batch 10, FedAvg, 1 seed",
            task=_MLP,
            population=_ROWS,
            algorithm=fedavg(),
            plain_threads="both",
        ),
        Workload(
            name="mlp10",
            sentence="the same MLP with 10 seeds at once (plain loop: 1 seed)",
            task=_MLP,
            population=_ROWS,
            algorithm=fedavg(),
            seeds=10,
            threads="all",
            executors=BRIEF,  # the others take the seeds one after another
        ),
        Workload(
            name="synthetic",
            sentence="Synthetic(0.5, 0.5), ragged sizes, ≤ 8 epochs of batch 10, early stopping γ 0.05, MLP",
            task=_MLP,
            population=synthetic,
            algorithm=fedavg(gamma=0.05),
            executors=BRIEF,
            window=3,
        ),
        Workload(
            name="cnn",
            sentence="CNN 1×28×28, 62 classes, 10 of 30 clients × 10 steps of batch 20, FedAvg, 1 seed",
            task=seeded("Cnn", (1, 28, 28), 62),  # the EMNIST model of Reddi et al. 2021 without its dropout
            population=random_examples((1, 28, 28), 62, 350, batch_size=20, steps=10),
            algorithm=fedavg(),
            executors=("plain", "threads", "vectorized"),
            threads="all",
            plain_threads="both",
        ),
        Workload(
            name="lstm",
            sentence="next character, LSTM 8-32-90, length 20, 10 of 30 clients × 10 steps of batch 4",
            task=seeded("Lstm", shape=(20,), classes=90, embedding=8, hidden=32),
            population=characters,
            algorithm=fedavg(),
            executors=BRIEF,
            plain=lstm_plain,
        ),
    )
}
