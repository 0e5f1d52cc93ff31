"""kill -9 at random moments of `prepare`: `python tests/benchmark/killed.py [--times 10] [--seed 0]`.

A data set of 200 clients is prepared by a process that is killed again and again, after a random time within what a
whole preparation takes, writing of columns included; one that was faster does not count, and begins anew. After each
kill the copy of before or the new one must open and be whole; at the end the same command completes, and gives the
files of an undisturbed preparation, byte for byte.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flstudy.population import FederatedParquet
from flstudy.population.datasets.base import Dataset, Examples, Originals, Piece
from flstudy.population.datasets.federated_format import read_metadata, verify
from flstudy.preparation.prepare import prepare


@dataclass(frozen=True, kw_only=True)
class Steady(Dataset):
    """Clients of twenty examples, each some milliseconds late."""

    shape, classes = (64,), 4
    draw: int = 0

    def load(self, seed: int, clients: int) -> Examples:
        raise NotImplementedError("it is only ever prepared")

    def originals(self, scratch: Path) -> Originals:
        def pieces(start: int):
            for number in range(start, 200):
                rng = np.random.default_rng((self.draw, number))
                time.sleep(0.002)
                yield Piece(rng.normal(size=(20, 64)).astype(np.float32), rng.integers(0, 4, 20), f"c{number:03d}")

        return Originals([Path(__file__)], 200, pieces)


def prepared(dataset: Dataset, path: Path) -> None:
    """A preparation in small parts."""
    prepare(dataset, path, part_bytes=30_000)


def digests(path: Path) -> dict[str, str]:
    """The checksums of all files, which are held against their bytes first."""
    metadata = read_metadata(path)
    verify(path, metadata)
    FederatedParquet(path=str(path)).load(0, 200)
    return {name: entry["sha256"] for name, entry in metadata.files.items()}


def main() -> None:
    """Kill, look, kill again, complete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, fork = np.random.default_rng(options.seed), multiprocessing.get_context("fork")
    folder = Path(tempfile.mkdtemp())
    try:
        begin = time.perf_counter()
        prepared(Steady(draw=1), folder / "alone")
        whole = time.perf_counter() - begin
        wanted = digests(folder / "alone")
        path = folder / "copy"
        prepared(Steady(draw=0), path)
        before, hit = digests(path), 0
        while hit < options.times:
            process = fork.Process(target=prepared, args=(replace(Steady(), draw=1), path))
            process.start()
            after = float(rng.uniform(0.0, whole))
            time.sleep(after)
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            hit += process.exitcode == -signal.SIGKILL
            checksums = digests(path)
            assert checksums in (before, wanted), "a copy that is neither of them"
            notes = len(list(folder.glob(".copy.preparing/part-*.json")))
            state = "the new copy" if checksums == wanted else f"the copy of before, {notes} parts wait"
            if process.exitcode == 0:
                prepared(Steady(draw=0), path)
                continue
            print(f"{hit}: killed after {after:.2f} s: {state}")
            if checksums == wanted:  # it had just taken its place
                prepared(Steady(draw=0), path)
        prepared(Steady(draw=1), path)
        assert digests(path) == wanted
        print(
            f"{hit} of {options.times} were killed at work; completed, "
            f"byte for byte the undisturbed copy ({whole:.1f} s)"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
