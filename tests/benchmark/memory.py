"""Memory of a long run: `python tests/benchmark/memory.py > tests/benchmark/results/memory.md`.

Resident memory over 2,000 compiled rounds under an ordinary Trainer, with MLflow (SQLite in a temporary folder) and the
records of all rounds on, evaluation in every fifth round: once FedAvg on devices of one size, once Flash with early
stopping on devices of ragged sizes.
"""

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from workload import made_by, quiet, trained

from flstudy.algorithms import FedAvg, Flash
from flstudy.population import Synthetic
from flstudy.study.records import RecordWriter
from flstudy.tracking.callback import MlflowRounds


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Memory(L.Callback):
    """Writes records and notes resident memory after every tenth round."""

    def __init__(self, writer: RecordWriter) -> None:
        self.writer, self.notes = writer, dict[int, float]()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """After a round and its evaluation."""
        self.writer.append(pl_module.record)
        number = pl_module.record.round
        if number % 100 == 0:
            gc.collect()
        if number % 10 == 0:
            self.notes[number] = resident()


def slope(notes: dict[int, float], start: int) -> float:
    """KiB per round after ``start`` rounds, by least squares."""
    rounds = np.array([number for number in notes if number >= start])
    return float(1024 * np.polyfit(rounds, [notes[number] for number in rounds], 1)[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args()
    quiet()
    last = options.rounds
    shown = [last // 10, last // 4, last // 2, 3 * last // 4, last]
    cases: dict[str, dict[str, Any]] = {
        "FedAvg, one size": {"algorithm": FedAvg(lr=0.05)},
        "Flash, early stopping, ragged": {
            "algorithm": Flash(lr=0.05),
            "data": Synthetic(log_mean=3.0, log_std=1.0, extra=20, largest=200),
            "steps": None,
            "epochs": 5,
        },
    }
    print("# Memory over a long run\n")
    print(made_by("memory.py", "torch", "lightning", "mlflow", "pyarrow") + "\n")
    print("| resident MiB after | " + " | ".join(f"{n} rounds" for n in shown) + f" | KiB/round after {shown[1]} |")
    print("|---|" + "---:|" * (len(shown) + 1))
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, settings) in enumerate(cases.items()):
            with RecordWriter(Path(folder) / f"{index}.parquet", [0]) as writer:
                memory = Memory(writer)
                trained(last, [MlflowRounds(f"sqlite:///{folder}/mlflow.db"), memory], **settings)
            cells = [f"{memory.notes[n]:.1f}" for n in shown] + [f"{slope(memory.notes, shown[1]):.2f}"]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
