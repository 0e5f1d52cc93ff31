"""350,000 clients and 30 million samples from Federated Parquet: `python tests/benchmark/scale.py FOLDER`.

The samples are drawn, 16 numbers and a label each, with log-normal sizes; they are written once, through the code that
prepares any data set, and kept in FOLDER. Then a fresh process for each number of clients opens the copy with three
replicas and reads cohorts of 10 and of 500: their plans (which rows) and their examples. Beside it what Parquet's own
row groups cost for such a cohort.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flstudy.hyper import hyper
from flstudy.population.datasets.base import Dataset, Examples, Originals, Piece
from flstudy.population.streams import generator

SEEDS, ROUNDS = (0, 44, 56), 5
MEAN_SIZE = 30_000_000 / 350_000


@dataclass(frozen=True, kw_only=True)
class Crowd(Dataset):
    """Clients whose examples are drawn one after another."""

    shape, classes = (16,), 10
    clients: int = hyper(350_000, "[1, 1e6]")

    def load(self, seed: int, clients: int) -> Examples:
        raise NotImplementedError("it is only ever prepared")

    def sizes(self) -> Any:
        """[N]: log-normal, of at most 5,000, MEAN_SIZE in the mean."""
        drawn = np.minimum(generator(0, "crowd sizes").lognormal(0.0, 1.2, self.clients), 30.0)
        return np.clip((drawn * MEAN_SIZE / drawn.mean()).astype(np.int64), 4, 5000)

    def originals(self, scratch: Path) -> Originals:
        sizes = self.sizes()

        def pieces(start: int) -> Iterator[Piece]:
            for client in range(start, self.clients):
                rng = np.random.Generator(np.random.PCG64(client))
                x = rng.standard_normal((sizes[client], 16), dtype=np.float32)
                yield Piece(x, x[:, :10].argmax(1), f"client {client:06d}")

        return Originals([Path(__file__)], self.clients, pieces)


def resident() -> float:
    """MiB of this process that are its own, mapped files not counted."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def opened(path: Path, clients: int) -> dict[str, Any]:
    """Seconds and memory of one process that opens the copy with so many devices, and reads cohorts."""
    import torch

    from flstudy import Population
    from flstudy.population import FederatedParquet

    before, begin = resident(), time.perf_counter()
    figures: dict[str, Any] = {"clients": clients}
    population = Population(FederatedParquet(path=str(path)), clients=clients, participants=10, batch_size=20)
    population.settle(SEEDS)
    figures["open_s"] = time.perf_counter() - begin
    for participants in (10, 500):
        population.participants = min(participants, clients)
        plans, reads, rows = [], [], 0
        for number in range(1, ROUNDS + 1):
            begin = time.perf_counter()
            cohort = population.cohort(participants * 1000 + number)
            plans.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            table = cohort.batches.rows
            x, _ = population.store.gather(table, cohort.batches.concept[..., None])
            reads.append(time.perf_counter() - begin)
            rows = int((table >= 0).sum())
            del x
        figures |= {
            f"plan_{participants}_s": float(np.median(plans)),
            f"read_{participants}_s": float(np.median(reads)),
        }
        figures[f"rows_{participants}"] = rows
    figures |= {"own_mib": resident() - before, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    assert torch.is_tensor(population.store.x)
    return figures


def row_groups(path: Path, participants: int = 500) -> dict[str, float]:
    """Seconds in which Parquet itself gives such a cohort: every row group that holds one of its clients is decoded."""
    from pyarrow import parquet

    from flstudy.population.datasets.federated_format import read_clients, read_metadata, sample_files

    metadata = read_metadata(path)
    ranges = read_clients(path, metadata).ranges
    chosen = np.sort(np.random.default_rng(0).choice(len(ranges.starts), participants, replace=False))
    begin, files = time.perf_counter(), [parquet.ParquetFile(file) for file in sample_files(path, metadata)]
    groups = [(file, number) for file in files for number in range(file.num_row_groups)]
    ends = np.cumsum([file.metadata.row_group(number).num_rows for file, number in groups])
    wanted = np.unique(np.searchsorted(ends, ranges.starts[chosen], side="right"))
    some = wanted[:40]
    for place in some.tolist():
        file, number = groups[place]
        file.read_row_group(number, columns=["x", "y"])
    took = time.perf_counter() - begin
    return {"groups": len(groups), "asked": len(wanted), "seconds": took / len(some) * len(wanted)}


def main() -> None:
    """Write the population where it is not there, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=350_000)
    parser.add_argument("--open", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.folder / f"crowd-{options.clients}"
    if options.open:
        print(json.dumps(opened(path, options.open)))
        return
    from flstudy.preparation.prepare import prepare

    begin = time.perf_counter()
    metadata, prepared = prepare(Crowd(clients=options.clients), path)
    took = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    columns = sum(entry["bytes"] for name, entry in metadata.files.items() if name.startswith("columns/"))
    whole = sum(entry["bytes"] for entry in metadata.files.values())
    print(f"{metadata.clients:,} clients, {metadata.examples:,} samples: {whole / 1e9:.2f} GB on disk,")
    how = f"{'prepared' if prepared else 'found'} in {took:.0f} s, peak {peak:.0f} MiB"
    print(f"{columns / 1e9:.2f} of them mapped columns; {how}\n")
    header = "clients | open, s | plan 10, ms | read 10, ms | plan 500, ms | read 500, ms | own memory, MiB | peak, MiB"
    print(f"| {header} |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for clients in (1000, 10_000, 100_000, 350_000):
        if clients > options.clients:
            continue
        command = [
            sys.executable,
            __file__,
            str(options.folder),
            "--clients",
            str(options.clients),
            "--open",
            str(clients),
        ]
        figures = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        )
        times = [f"{figures[key] * 1e3:.1f}" for key in ("plan_10_s", "read_10_s", "plan_500_s", "read_500_s")]
        own_memory, most = f"{figures['own_mib']:.0f}", f"{figures['peak_mib']:.0f}"
        print(f"| {clients:,} | {figures['open_s']:.2f} | {' | '.join(times)} | {own_memory} | {most} |", flush=True)
    groups = row_groups(path)
    print(f"\nA cohort of 500 (one replica) from Parquet itself: {groups['asked']:.0f} of {groups['groups']:.0f} row")
    print(f"groups, {groups['seconds']:.1f} s")


if __name__ == "__main__":
    main()
