"""Time and memory of large populations: `python tests/benchmark/population.py > tests/benchmark/results/population.md`.

Generated populations of 10³ to 3.5 · 10⁵ devices with three replicas: 8 × 8 grey pixels of one byte in a memory-mapped
file, 10 labels, log-normal sizes of 5 to 5,000 examples (median 40), no split of their own. Each is opened by a process
of its own, which trains a network of 4,810 parameters for some rounds of 10 and of 500 devices, without compiling, and
evaluates a panel of 500 devices, 200 examples of each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from workload import quiet

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.metrics.panel import Panel
from flstudy.population.datasets.base import Coding, Dataset, Examples, Ranges
from flstudy.tasks import Mlp

SEEDS, SHAPE = (0, 44, 56), (1, 8, 8)
ROUNDS = 4


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Generated(Dataset):
    """Files that ``generate`` wrote, mapped."""

    shape, classes, mapped = SHAPE, 10, True

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def load(self, seed: int, clients: int) -> Examples:
        counts = np.load(self.folder / "counts.npy")
        x, y = (torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c")) for name in "xy")
        ranges, unit = Ranges(counts.sum(1).cumsum() - counts.sum(1), counts), torch.ones(1, 1, 1)
        return Examples(x, y, None, ranges=ranges, coding=Coding(0.5 * unit, 0.3 * unit))


def generate(folder: Path, clients: int) -> None:
    """Write such files."""
    rng = np.random.default_rng(0)
    counts = np.zeros((clients, 3), dtype=np.int64)
    counts[:, 0] = np.clip(rng.lognormal(np.log(40), 1.2, clients), 5, 5000)
    examples = int(counts.sum())
    np.save(folder / "counts.npy", counts)
    np.save(folder / "y.npy", rng.integers(0, 10, examples, dtype=np.uint8))
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=(examples, *SHAPE))
    for begin in range(0, examples, 2**20):
        part = x[begin : begin + 2**20]
        part[:] = np.frombuffer(rng.bytes(part.size), dtype=np.uint8).reshape(part.shape)
    x.flush()


class Watch(L.Callback):
    """Notes what rounds and evaluations took."""

    def __init__(self) -> None:
        self.round, self.evaluation = list[float](), list[float]()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """After a round and its evaluation."""
        self.round.append(pl_module.record.metrics["time/round_s"][0])
        self.evaluation.append(pl_module.record.metrics["time/evaluation_s"][0])


def measure(folder: str, clients: int) -> dict[str, float]:
    """All figures of one population."""
    quiet()
    base, figures = resident(), {"disk": sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6}
    for participants in (10, 500):
        population = Population(Generated(folder), clients=clients, participants=participants)
        start = time.perf_counter()
        population.settle(SEEDS)
        figures.setdefault("opens", time.perf_counter() - start)
        figures.setdefault("open_mib", resident() - base)
        figures["examples"] = len(population.store.x)
        panel, watch, cohorts = Panel(clients=500, examples=200), Watch(), []
        task = Mlp(SHAPE, 10, hidden=64)
        coordinator = Coordinator(task, FedAvg(lr=0.05), RunSettings(seeds=SEEDS, compile=False), panel=panel)
        trainer = L.Trainer(
            max_epochs=ROUNDS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[watch],
        )
        trainer.fit(coordinator, datamodule=population)
        for round in range(1, 6):
            start = time.perf_counter()
            population.cohort(round)
            cohorts.append(time.perf_counter() - start)
        figures[f"cohort_{participants}"] = statistics.median(cohorts)
        figures[f"round_{participants}"] = statistics.median(watch.round)
        figures["first_panel"], figures["panel"] = watch.evaluation[0], statistics.median(watch.evaluation[1:])
    return {**figures, "mib": resident() - base}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[1_000, 10_000, 100_000, 350_000])
    parser.add_argument("--folder", help="of the files; by default a temporary one")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.folder, options.child)))
        return
    print(
        "| devices | examples | on disk MB | opens s | MiB then | cohort of 10 ms | of its round | cohort of 500 ms | "
        "of its round | first panel s | next s | MiB at the end |\n|" + "---|" * 12
    )
    for clients in options.clients:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(options.folder or temporary) / str(clients)
            if not folder.exists():
                folder.mkdir(parents=True)
                generate(folder, clients)
            command = [sys.executable, __file__, "--child", str(clients), "--folder", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        shares = [figures[f"cohort_{j}"] / (figures[f"cohort_{j}"] + figures[f"round_{j}"]) for j in (10, 500)]
        print(
            f"| {clients:,} | {figures['examples']:,.0f} | {figures['disk']:,.0f} | {figures['opens']:.2f} "
            f"| {figures['open_mib']:.0f} | {1000 * figures['cohort_10']:.0f} | {shares[0]:.0%} | "
            f"{1000 * figures['cohort_500']:.0f} | {shares[1]:.0%} | "
            f"{figures['first_panel']:.2f} | {figures['panel']:.2f} | {figures['mib']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
