"""What the platform costs: `python tests/benchmark/overhead.py > tests/benchmark/results/overhead.md`.

2,000 trials that train nothing (two rounds, three replicas, three algorithms) go through all of it: TPE, Ray Tune on
two workers, records, an MLflow run each in SQLite. Told every so many trials: seconds per trial, and the driver's
resident memory.
"""

import argparse
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from ray import cloudpickle
from rich.console import Console
from workload import made_by, quiet

from flstudy.config import Budget
from flstudy.tuning import driver, trial_table
from tests.tuning import stand_in
from tests.tuning.stand_in import StandIn, study

SPACE = {
    "algorithm": {"choice": ["FedAvg", "FedYogi", "Flash"]},
    "algorithm.lr": {"loguniform": [1e-3, 1]},
    "algorithm.tau": {"loguniform": [1e-5, 0.1]},
}


def resident_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Sampled(trial_table.TrialTable):
    """Notes time and memory whenever a trial ends."""

    samples: list[tuple[float, float]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        type(self).samples = [(time.perf_counter(), resident_mib())]

    def end(self, *arguments: Any, **named: Any) -> None:
        """Noted."""
        super().end(*arguments, **named)
        self.samples.append((time.perf_counter(), resident_mib()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args()
    quiet()
    cloudpickle.register_pickle_by_value(stand_in)  # workers cannot import from tests
    trial_table.TrialTable = Sampled  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        settings = study(trials=options.trials, name="overhead", folder=f"{folder}/studies", search=SPACE)
        settings.budget = Budget()
        config = StandIn(study=settings, rounds=2, store=f"sqlite:///{folder}/mlflow.db")
        start = time.perf_counter()
        result = driver.carry_out(config, Console(file=io.StringIO()), report=False)  # type: ignore[arg-type]
        wall = time.perf_counter() - start
        assert [trial.status for trial in result.trials] == ["finished"] * options.trials
        journal = (result.folder.path / "optuna.journal").stat().st_size / 2**20
    print("# Overhead of trials that train nothing\n")
    print(made_by("overhead.py", "ray", "optuna", "mlflow") + "\n")
    print("| trials | seconds per trial | memory of the driver, MiB |\n|---:|---:|---:|")
    marks = sorted({min(mark, options.trials) for mark in (50, 100, 250, 500, 1000, 1500, 2000, options.trials)})
    for before, mark in zip([0, *marks], marks, strict=False):
        (began, _), (ended, memory) = Sampled.samples[before], Sampled.samples[mark]
        print(f"| {before + 1} to {mark} | {(ended - began) / (mark - before):.3f} | {memory:.0f} |")
    print(f"\n{wall:.0f} s in all, two trials at once; Optuna's journal {journal:.1f} MiB.")


if __name__ == "__main__":
    main()
