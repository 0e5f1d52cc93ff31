"""The laws' world: a federation on which every law is tried: six ragged devices, four classes, twelve features."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils import _pytree as pytree

from flstudy import Coordinator, FederatedRun, Population, Record, RunSettings
from flstudy.algorithms import Algorithm, Layout
from flstudy.federation.initial import BuildTask, InitialModels
from flstudy.population import InMemory, Partition, SuddenDrift
from flstudy.registry import named
from flstudy.tasks import Logistic, Mlp, TaskFunction
from flstudy.tasks.findings import trained_parameters

FEATURES, CLASSES, DEVICES = 12, 4, 6
SIZES = (
    9,
    12,
    17,
    22,
    27,
    33,
)  # examples; 5, 8, 11, 14, 17 and 19 of them for training: last batches of 1, 4, 3, 2, 1, 3
SEEDS = (0, 44, 56)

for _name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Ragged(Partition):
    """Devices of given sizes, by position."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.sizes = sizes

    def assign(self, labels, clients, rng):
        return rng.permutation(np.repeat(np.arange(clients), self.sizes))


class Records(L.Callback):
    """Keeps what every round measured, and what the server was after it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.servers: list[Any] = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.records.append(pl_module.record)
        self.servers.append(pytree.tree_map(torch.clone, pl_module.server))


class Choices(L.Callback):
    """Keeps which device trained which model in every round."""

    def __init__(self):
        self.rounds = []

    def on_train_epoch_end(self, trainer, pl_module):
        jobs = pl_module.last.cohort.jobs
        self.rounds.append(dict(zip(jobs.client[0].tolist(), jobs.model[0].tolist(), strict=True)))


def examples(shape: Sequence[int] = (FEATURES,), count: int = sum(SIZES)) -> InMemory:
    """Labels that a noisy linear model of the inputs gives, so that there is something to learn."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, *shape))
    logits = x.reshape(count, -1) @ rng.normal(size=(int(np.prod(shape)), CLASSES)) + rng.normal(size=(count, CLASSES))
    y = logits.argmax(1)
    y[:CLASSES] = np.arange(CLASSES)  # all classes occur
    return InMemory((torch.from_numpy(x), torch.from_numpy(y)))


def flat_parameters(task: L.LightningModule, layout: Layout) -> torch.Tensor:
    """The trained parameters [n] of a task."""
    return layout.flat(trained_parameters(task))


def drawn_model(task: L.LightningModule | BuildTask, seed: int) -> torch.Tensor:
    """The initial model [n] of a seed."""
    models = InitialModels(task, RunSettings(seeds=[seed], initial="seeded"))
    return models.first(TaskFunction(models.task), 1)[0]


def world(**changes: Any) -> Population:
    """The federation; all devices take part unless told otherwise."""
    usual = {"clients": DEVICES, "participants": DEVICES, "partition": Ragged(), "batch_size": 4, "epochs": 2}
    return Population(**{"dataset": examples(), **usual, **changes})


def drifting(**changes: Any) -> Population:
    """The same, four of the devices drawn per round, with a drift of half of the devices at round 2."""
    return world(**{"drift": SuddenDrift(round=2, p_drift=0.5), "participants": 4, **changes})


def wide(**changes: Any) -> Population:
    """Ten of thirty ragged devices per round, fifteen of which drift at round 2."""
    sizes = [9 + (7 * k) % 23 for k in range(30)]
    usual = {"dataset": examples(count=sum(sizes)), "clients": 30, "participants": 10, "partition": Ragged(sizes)}
    return drifting(**{**usual, **changes})


def mlp() -> Mlp:
    """A fresh small network, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Mlp((FEATURES,), CLASSES, hidden=5)


def logistic() -> Logistic:
    """Fresh logistic regression, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return Logistic((FEATURES,), CLASSES)


def trainer(rounds: int, precision: str = "64-true", **changes: Any) -> L.Trainer:
    """A quiet Trainer on the CPU."""
    usual = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return L.Trainer(**{"max_epochs": rounds, "precision": precision, **usual, **quiet, **changes})  # type: ignore


def arguments(**values: Any) -> dict[str, Any]:
    """Arguments of a run or a coordinator, of which fields of the settings are given by their own names."""
    names = [field.name for field in fields(RunSettings) if field.name in values]
    return {"settings": RunSettings(**{name: values.pop(name) for name in names}), **values}


def run(
    algorithm: Algorithm,
    rounds: int = 3,
    *,
    population: Population | None = None,
    task: L.LightningModule | None = None,
    evaluate: bool = False,
    precision: str = "64-true",
    callbacks: Sequence[L.Callback] = (),
    ckpt_path: str | None = None,
    fit: dict[str, Any] | None = None,
    trained: bool = False,
    **coordinator: Any,
) -> Coordinator:
    """The coordinator after some rounds, with ``records`` and ``servers``, one for each of them. A Trainer plays them
    where ``trained``, and where callbacks, flags or a checkpoint are a Trainer's."""
    # On a busy machine `auto` may compile a test's few rounds, and one run's digits would not be the other's.
    chosen = {} if coordinator.get("executor") == "auto" else {"compile": False}
    module = Coordinator(task or mlp(), algorithm, **arguments(**chosen | coordinator))
    recorder = Records()
    changes = {"callbacks": [*callbacks, recorder], **({} if evaluate else {"limit_val_batches": 0}), **(fit or {})}
    with warnings.catch_warnings():
        # Few workers, few batches: known and meant. What waits for a GPU is counted by the warnings that CUDA gives.
        warnings.filterwarnings("ignore", message="(?!.*synchronizing CUDA operation)")
        if not trained and not callbacks and not fit and ckpt_path is None:
            module.run.start(population or world(), rounds, precision=precision)
            module.records, module.servers = played(module.run, evaluate)
            return module
        trainer(rounds, precision, **changes).fit(
            module, datamodule=population or world(), ckpt_path=ckpt_path, weights_only=True if ckpt_path else None
        )
    module.records, module.servers = recorder.records, recorder.servers
    return module


def play(
    algorithm: Algorithm,
    rounds: int = 3,
    *,
    population: Population | None = None,
    task: L.LightningModule | None = None,
    evaluate: bool = False,
    precision: str = "64-true",
    resume: Path | None = None,
    **settings: Any,
) -> FederatedRun:
    """The run after some rounds without a Trainer, with ``records`` and ``servers``, one for each of them."""
    federated = FederatedRun(task or mlp(), algorithm, **arguments(**{"compile": False} | settings))
    begin = federated.start if resume is None else partial(federated.resume, resume)
    begin(population or world(), rounds, precision=precision)
    federated.records, federated.servers = played(federated, evaluate)
    return federated


def played(federated: FederatedRun, evaluate: bool) -> tuple[list[Record], list[Any]]:
    """Play all rounds of a run that was started; returns each round's record, and the server after it."""
    records, servers = [], []
    while federated.goes_on:
        federated.play_round(evaluated=evaluate)
        if evaluate:
            federated.evaluate()
        records.append(federated.state.record)
        servers.append(pytree.tree_map(torch.clone, federated.state.server))
    federated.finish()
    return records, servers


def difference(tree: Any, other: Any) -> float:
    """The largest difference between two trees of tensors, arrays or numbers, each relative to the size of the two
    values where that is above one; equal infinities do not differ, and what is not a number is below no bound.

    A processor adds in the order of its vectors' width, and each sum is rounded: by 2.2e-16 of its size a term in
    double precision. An absolute bound would be a bound on the size of what is summed, and hold on one processor only;
    the number of terms stands in the tests' bounds: 1e-14 for some 50 of them, 1e-13 for 500, 1e-12 for 5,000. What
    stands beside larger values in one tensor, as losses beside bytes, is bound by its own size.
    """
    pairs = list(zip(pytree.tree_leaves(tree), pytree.tree_leaves(other), strict=True))
    doubles = [[torch.as_tensor(leaf, dtype=torch.float64).detach() for leaf in pair] for pair in pairs]
    assert all(a.shape == b.shape for a, b in doubles)
    relative = [(a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp(min=1.0) for a, b in doubles]
    differences = [torch.where(a == b, 0.0, r).flatten() for (a, b), r in zip(doubles, relative, strict=True)]
    return float(torch.cat([torch.zeros(1), *differences]).max())  # torch's: Python's loses a NaN that is not the first


def state(module: Coordinator | FederatedRun) -> Any:
    """All tensors of a run: server, and the bank's rows in the order of devices."""
    held = module.state if isinstance(module, FederatedRun) else module.run.state
    slot = held.bank.slot
    return held.server, slot >= 0, [rows[slot[slot >= 0]] for rows in held.bank.rows]


def measured(module: Coordinator, *names: str) -> torch.Tensor:
    """Metrics [rounds, names, S]."""
    return torch.tensor([[record.metrics[name] for name in names] for record in module.records], dtype=torch.float64)


def taken(cls: type[Algorithm], values: dict[str, Any]) -> dict[str, Any]:
    """The values that a method has a field for that can be given: FedOpt's server has no learning rate of its own."""
    return {name: values[name] for name in values if name in {field.name for field in fields(cls) if field.init}}


def shipped() -> dict[str, type[Algorithm]]:
    """The methods of the package, without those that tests define."""
    return {name: cls for name, cls in named(Algorithm).items() if cls.__module__.startswith("flstudy.")}
