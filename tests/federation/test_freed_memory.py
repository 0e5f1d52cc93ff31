"""Freed memory stays with the process while it trains and goes back afterwards, unless the environment has its own
word on it."""

import itertools
import os
import platform
import subprocess
import sys

import pytest

from flstudy.execution.freed_memory import OWN

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")

PAGES = 10 * 512 * 784 * 4 // 4096  # of a step's inputs, which are a new tensor each time
SCRIPT = """
import resource
import lightning as L
import torch
from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.population import InMemory
from flstudy.tasks import Logistic

class Pages(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        print("faults", resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    def on_train_end(self, trainer, pl_module):
        print("resident", resident())

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1])

torch.set_num_threads(1)
dataset = InMemory((torch.randn(20_000, 784), torch.randint(0, 10, (20_000,))))
population = Population(dataset, clients=10, participants=10, batch_size=512, steps=3)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
L.Trainer(max_epochs=6, accelerator="cpu", limit_val_batches=0, callbacks=[Pages()], **quiet).fit(
    Coordinator(Logistic((784,), 10), FedAvg(lr=0.1), RunSettings(compile=False)), datamodule=population
)
print("resident", resident())
"""


def pages(**environment: str) -> tuple[list[int], list[int]]:
    """Pages that each round but the first had to be given, and those resident before and after the end of the fit."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**inherited, **environment}, capture_output=True, text=True, check=True
    )
    figures = [line.split() for line in ran.stdout.splitlines() if line.startswith(("faults", "resident"))]
    faults = [int(number) for name, number in figures if name == "faults"]
    resident = [int(number) for name, number in figures if name == "resident"]
    return [after - before for before, after in itertools.pairwise(faults)], resident


@pytest.mark.slow
def test_a_round_needs_no_new_pages_and_they_are_given_back_at_the_end():
    rounds, (before, after) = pages()
    assert sorted(rounds)[len(rounds) // 2] < PAGES / 10
    assert before - after > PAGES / 2


@pytest.mark.slow
def test_what_the_environment_says_holds():
    rounds, _ = pages(MALLOC_MMAP_THRESHOLD_="131072")
    assert min(rounds) > 3 * PAGES  # the inputs of three steps
