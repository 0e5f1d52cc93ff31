"""What MLflow costs a round: `python tests/benchmark/tracking.py > tests/benchmark/results/tracking.md`.

Blocks of rounds with the callback MlflowRounds (SQLite in a temporary folder) and without it take turns in one process,
evaluation in every fifth round. Times are from the first round's start to the last one's end: opening and closing the
run are not in them, the deliveries in between are. CPU time is that of the whole process, the delivering thread's too.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import lightning as L
from workload import made_by, quiet, trained

from flstudy.tracking.callback import MlflowRounds


class Clock(L.Callback):
    """Wall and CPU seconds between the ends of the first and of the last round."""

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Read both clocks."""
        now = time.perf_counter(), time.process_time()
        if trainer.current_epoch == 0:
            self.first = now
        self.last = now

    def milliseconds(self, rounds: int) -> tuple[float, float]:
        """Wall and CPU time of a round."""
        wall, cpu = (1000 * (b - a) / (rounds - 1) for a, b in zip(self.first, self.last, strict=True))
        return wall, cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="rounds with and without, in all")
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    quiet()
    size = options.rounds // options.blocks
    times: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mlflow.db"

        def block(how: str, rounds: int) -> tuple[float, float]:
            clock = Clock()
            callbacks: list[Any] = [MlflowRounds(store)] if how == "on" else []
            trained(rounds, [*callbacks, clock])
            return clock.milliseconds(rounds)

        for how in times:  # compiles, imports MLflow and makes its tables
            block(how, 5)
        for index in range(options.blocks):
            for how in ("off", "on") if index % 2 else ("on", "off"):
                times[how].append(block(how, size))
    medians = {how: [statistics.median(kind) for kind in zip(*blocks, strict=True)] for how, blocks in times.items()}
    print("# Rounds with MLflow and without\n")
    print(made_by("tracking.py", "torch", "lightning", "mlflow") + "\n")
    print("| ms per round | " + " | ".join(f"block {n + 1}" for n in range(options.blocks)) + " | median |")
    print("|---|" + "---:|" * (options.blocks + 1))
    for how, blocks in times.items():
        for kind, name in enumerate(("wall", "CPU")):
            cells = [f"{milliseconds[kind]:.2f}" for milliseconds in blocks]
            print(f"| {name}, MLflow {how} | " + " | ".join([*cells, f"{medians[how][kind]:.2f}"]) + " |")
    wall, cpu = (100 * (on / off - 1) for on, off in zip(medians["on"], medians["off"], strict=True))
    print(f"\nWith MLflow a round takes {wall:+.1f} % wall and {cpu:+.1f} % CPU time.", end=" ")
    print(f"Target: at most +5 % wall, {'met' if wall <= 5 else 'not met'}. Every block is {size} rounds.")


if __name__ == "__main__":
    main()
