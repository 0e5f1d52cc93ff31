"""The accelerators on which the tests run: the pretended one, and a GPU where there is one."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from flstudy import Coordinator
from flstudy.execution import ClientBank, PerJobTrainer, Sequential, Vectorized
from flstudy.federation.evaluation import Evaluation

from . import pretended
from .waits import Wait

# The parts of a round; of those within each other the innermost counts.
PHASES: Mapping[Callable[..., Any], str] = {
    Vectorized.fit: "fit",
    Sequential.fit: "fit",
    PerJobTrainer.fit: "fit",
    Evaluation.ask: "survey",
    ClientBank.gather: "rows",
    ClientBank.scatter: "rows",
    Coordinator.training_step: "server",
    Evaluation.__call__: "evaluation",
}


class Device(NamedTuple):
    """An accelerator as tests use it."""

    name: str
    tolerance: float  # of results in double precision, against the host's
    hidden: int  # width of a network whose lanes can fill the memory
    trainer: Callable[[], dict[str, Any]]  # arguments of a Trainer
    there: Callable[[], AbstractContextManager[Any]]
    peak: Callable[[Callable[[], Any]], tuple[Any, int]]  # of a call: its result, and the bytes that it needed
    limited: Callable[[int], AbstractContextManager[None]]  # to so many bytes more than are held now


def peak_of_gpu(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the bytes that it needs beside those held before, when it is made once more: the first
    time libraries take work space that they keep."""
    call()
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    done = call()
    return done, torch.cuda.max_memory_allocated() - before


@contextmanager
def limited_gpu(count: int) -> Iterator[None]:
    """So many bytes more than are held now."""
    gc.collect()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    # Not those reserved: the allocator may hold as much free room in its segments as the bound leaves out.
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + count) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def gpu_there() -> Iterator[None]:
    """Nothing has to be made."""
    yield


PRETENDED = Device(
    pretended.NAME,
    0.0,
    8,
    lambda: {
        "accelerator": "auto",
        "strategy": SingleDeviceStrategy(pretended.DEVICE, accelerator=pretended.PretendedAccelerator()),
    },
    pretended.pretending,
    pretended.peak,
    pretended.limited,
)
GPU = Device("cuda", 1e-9, 100_000, lambda: {"accelerator": "gpu", "devices": 1}, gpu_there, peak_of_gpu, limited_gpu)


class WaitsByRound(L.Callback):
    """Sorts waits, which ``watching`` collects, by rounds."""

    def __init__(self, waits: list[Wait]) -> None:
        self.waits, self.rounds = waits, list[list[Wait]]()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.first = len(self.waits)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.rounds.append(self.waits[self.first :])


def of_phase(waits: list[Wait], phase: str) -> list[Wait]:
    """Those of a part of a round."""
    return [wait for wait in waits if wait.phase == phase]
