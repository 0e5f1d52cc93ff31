"""Rounds per second of modules of one's own:
`python -m tests.benchmark.foreign_modules > tests/benchmark/results/foreign_modules.md`.

The same networks and work as `flstudy bench` has, written as people write LightningModules: mapped over devices as they
are, one device after another, and with the declaration of a plain mean, eager and compiled; medians of five
interleaved blocks.
"""

import os
import platform
import statistics
import time
import warnings
from collections.abc import Iterator

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional

from flstudy import FederatedRun, Population, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.execution.torch_threads import one_thread

BLOCKS, BLOCK_S = 5, 3.0
DEVICES = 10


class MyMlp(L.LightningModule):
    """60-64-10."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1])


class MyLstm(MyMlp):
    """8-32-90, which predicts the last word of twenty."""

    kind: type[nn.RNNBase] = nn.LSTM

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Embedding(90, 8)
        self.recurrent = self.kind(8, 32, batch_first=True)
        self.head = nn.Linear(32, 90)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(self.net(x))[0][:, -1])


class MyGru(MyLstm):
    """The same of GRU."""

    kind = nn.GRU


def world(module: type[MyMlp]) -> Population:
    """Ten devices, all of which take part: 40 steps of 10, and of sequences 10 steps of 4."""
    torch.manual_seed(0)
    if issubclass(module, MyLstm):
        x = torch.randint(90, (400, 20))
        return Population((x, x[:, 0]), clients=DEVICES, participants=DEVICES, batch_size=4, steps=10)
    x = torch.randn(4000, 60)
    return Population((x, x[:, :10].argmax(1)), clients=DEVICES, participants=DEVICES, batch_size=10, steps=40)


def played(module: type[MyMlp], executor: str, compile: bool) -> Iterator[float]:
    """Rounds per second of one block after another; the first round is not among them."""
    federated = FederatedRun(module(), FedAvg(lr=0.1), RunSettings(executor=executor, compile=compile))
    federated.start(world(module), rounds=10**6)
    federated.play_round()
    while True:
        rounds, began = 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < BLOCK_S:
            federated.play_round()
            rounds += 1
        yield rounds / seconds


def rows_of(module: type[MyMlp]) -> dict[str, float]:
    """Median rounds per second, by how the module is trained."""
    declared = type(f"{module.__name__}Declared", (module,), {"mean_over_examples": True})
    ways = {
        "mapped": played(module, "vectorized", False),
        "one by one": played(module, "sequential", False),
        "declared": played(declared, "vectorized", False),
        "declared, compiled": played(declared, "vectorized", True),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(BLOCKS):
        for name, way in ways.items():
            rates[name].append(next(way))
    return {name: statistics.median(blocks) for name, blocks in rates.items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("# Modules of one's own\n")
    print(
        f"`python -m tests.benchmark.foreign_modules`; Python {platform.python_version()}, torch {torch.__version__}, "
        f"{os.cpu_count()} shared cores, of which one is used.\n"
    )
    print(
        f"FedAvg on {DEVICES} devices, all of which take part: 40 steps of batches of 10 of the MLP, 10 steps of "
        f"batches of 4 sequences; medians of {BLOCKS} blocks of {BLOCK_S:g} s, interleaved. *declared*: with "
        "`mean_over_examples = True`.\n"
    )
    print("| rounds per second (× one by one) | mapped | one by one | declared | declared, compiled |")
    print("|---|--:|--:|--:|--:|")
    with one_thread():
        for each_module in (MyMlp, MyLstm, MyGru):
            rates_of = rows_of(each_module)
            cells = [f"{rate:.3g} ({rate / rates_of['one by one']:.1f})" for rate in rates_of.values()]
            print(f"| {each_module.__name__} | {' | '.join(cells)} |", flush=True)
