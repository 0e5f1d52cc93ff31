"""What the benchmarks of studies share: an MLP 60-64-10 on 30 devices, 10 per round, 40 steps of batch 10, FedAvg."""

import logging
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import lightning as L
import torch

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import Algorithm, FedAvg
from flstudy.population import Synthetic
from flstudy.tasks import Mlp


def trained(
    rounds: int,
    callbacks: Sequence[L.Callback],
    *,
    algorithm: Algorithm | None = None,
    data: Synthetic | None = None,
    evaluate_every: int = 5,
    **population: Any,
) -> Coordinator:
    """A coordinator after so many compiled rounds under an ordinary Trainer."""
    data = data or Synthetic(log_mean=0.0, log_std=0.0, extra=699)
    torch.manual_seed(0)
    coordinator = Coordinator(
        Mlp(data.shape, data.classes, hidden=64), algorithm or FedAvg(lr=0.05), RunSettings(compile=True)
    )
    world = Population(data, **{"clients": 30, "participants": 10, "batch_size": 10, "steps": 40, **population})
    trainer = L.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=list(callbacks),
        check_val_every_n_epoch=evaluate_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(coordinator, datamodule=world)
    return coordinator


def quiet() -> None:
    """One thread, as a trial has, and no chatter."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def made_by(script: str, *packages: str) -> str:
    """The command, the machine and the versions, as a line of Markdown."""
    command = " ".join([f"tests/benchmark/{script}", *sys.argv[1:]])
    machine = f"2 shared cores ({platform.machine().replace('_', '-')}), Python {platform.python_version()}"
    return f"`python {command}`; {machine}, " + ", ".join(f"{name} {version(name)}" for name in packages) + load()


def load() -> str:
    """How busy the machine is besides: figures taken beside other work say less."""
    return f"; load average {os.getloadavg()[1]:.1f}."
