"""Runs in several threads of a process give the bits that they give one after another."""

from concurrent.futures import ThreadPoolExecutor

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flstudy import FederatedRun, RunSettings
from flstudy.algorithms import FedAvg, Flash
from flstudy.population import InMemory
from tests.worlds import CLASSES, FEATURES, drifting, examples, logistic, mlp


class Drops(L.LightningModule):
    """A classifier with dropout and noise on its inputs, also where it is measured, all of them drawn from torch's
    generator of the process."""

    def __init__(self, shape=(FEATURES,), classes=CLASSES):
        super().__init__()
        self.save_hyperparameters()
        features = torch.Size(shape).numel()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return cross_entropy(self(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("noisy", cross_entropy(self(batch[0] + 0.1 * torch.randn_like(batch[0])), batch[1]))


class Shuffled(torch.utils.data.Sampler):
    """A sampler that draws from the process's generator."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(torch.randperm(self.length).tolist())

    def __len__(self):
        return self.length


def outcome(number, executor):
    """The last model of a run, whose kind goes with its number, and its last metrics."""
    task = (Drops, mlp, logistic)[number % 3]
    precision = ("32-true", "64-true")[number % 2]
    algorithm = (FedAvg(lr=0.1), Flash(lr=0.1))[number % 2]
    run = FederatedRun(task, algorithm, RunSettings(seeds=[number, number + 44], compile=False, executor=executor))
    pairs = list(zip(*(getattr(examples().examples, name) for name in "xy"), strict=True))
    InMemory(torch.utils.data.DataLoader(pairs, sampler=Shuffled(len(pairs)), batch_size=8))  # draws beside the others
    run.start(drifting(), 4, precision=precision)
    for record in run.play():  # noqa: B007
        pass
    metrics = {name: values for name, values in record.metrics.items() if not name.startswith("time/")}
    return run.state.server.x, metrics


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vectorized", "sequential", "trainer"])
def test_threads_give_the_bits_of_one_after_another(executor):
    alone = [outcome(number, executor) for number in range(6)]
    torch.randn(5)
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda number: outcome(number, executor), range(6)))
    for (x, metrics), (other_x, other_metrics) in zip(alone, together, strict=True):
        assert torch.equal(x, other_x)
        assert metrics == other_metrics
    assert "noisy" in alone[0][1]


def test_what_a_module_draws_where_it_is_measured_is_the_run_s_own_also_beside_other_seeds():
    first, again = outcome(0, "vectorized"), outcome(0, "vectorized")
    assert first[1] == again[1]
    measured = []
    for seeds in ([0, 44], [44]):
        settings = RunSettings(seeds=seeds, compile=False, executor="vectorized", initial="seeded")
        run = FederatedRun(Drops, FedAvg(lr=0.1), settings)
        run.start(drifting(), 4, precision="32-true")
        (*_, record) = run.play()
        measured.append([record.metrics[name][-1] for name in ("noisy", "valid/loss", "test/loss")])
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
