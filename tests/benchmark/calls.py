"""What a round of Synthetic with early stopping calls: `python -m tests.benchmark.calls > calls.md`.

The workload is that of `flstudy bench --workloads synthetic synthetic3`, whose remarks tell the same. Nothing is timed
and nothing is compiled: the loops of the programs run operation by operation, and what is counted is the same.
"""

import platform
from typing import Any
from unittest import mock

import lightning as L
import torch

from flstudy import Coordinator, RunSettings
from flstudy.benchmark.workloads import WORKLOADS
from flstudy.execution import loops, programs

from ..laws.conftest import interpreted

ROUNDS = 3
BEFORE = "3 seeds, a program for each width, before loops were compiled to C++"


class PerRound(L.Callback):
    """Keeps what each round called."""

    def __init__(self) -> None:
        self.so_far, self.rounds = (0, 0, 0), list[list[float]]()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A round is over."""
        assert isinstance(pl_module, Coordinator)
        assert pl_module.record is not None
        executor: Any = pl_module.executor
        now = executor.programs.calls, executor.programs.validations, executor.programs.sequential_steps
        useful = pl_module.record.metrics["fit/lane_utilization"][0]
        self.rounds.append([*(after - before for after, before in zip(now, self.so_far, strict=True)), useful])
        self.so_far = now


def counted(name: str, threads: int) -> list[list[float]]:
    """Calls, validations, sequential steps, and the share of lane steps that train, of every round."""
    workload, counting = WORKLOADS[name], PerRound()
    torch.set_num_threads(threads)
    with (
        mock.patch.object(loops, "loaded", interpreted),
        mock.patch.object(programs, "has_compiler", return_value=True),
    ):
        coordinator = Coordinator(
            workload.task(), workload.algorithm(), RunSettings(seeds=range(workload.seeds), compile=True)
        )
        trainer = L.Trainer(
            max_epochs=ROUNDS,
            accelerator="cpu",
            devices=1,
            logger=False,
            callbacks=[counting],
            limit_val_batches=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(coordinator, datamodule=workload.population())
    return counting.rounds


def main() -> None:
    """Print the table."""
    print("# Calls of a round of Synthetic with early stopping\n")
    print(f"`python -m tests.benchmark.calls`; Python {platform.python_version()}, torch {torch.__version__}.\n")
    print(f"{WORKLOADS['synthetic'].sentence}; 10 of 30 devices a round; the least and the most of {ROUNDS} rounds.\n")
    print(
        "A call is one of a compiled program that trains; a validation is one of a program that measures the losses by "
        "which devices stop; sequential steps are those that no lane shares with another. On two threads some of them "
        "run at the same time.\n"
    )
    print("| setting | program calls | validations | sequential steps | useful lane steps |")
    print("|---|--:|--:|--:|--:|")
    print(f"| {BEFORE} | 50 | 40 | 965 to 1050 | |")
    for name, seeds in (("synthetic", "1 seed"), ("synthetic3", "3 seeds")):
        for threads in (1, 2):
            columns = list(zip(*counted(name, threads), strict=True))
            spans = [f"{min(column):.0f} to {max(column):.0f}" for column in columns[:3]]
            useful = " to ".join(f"{100 * share:.0f} %" for share in (min(columns[3]), max(columns[3])))
            print(f"| {seeds}, {threads} thread{'s' * (threads > 1)} | {' | '.join(spans)} | {useful} |")


if __name__ == "__main__":
    main()
