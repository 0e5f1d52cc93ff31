"""Wall time of a study beside that of its rounds: `python tests/benchmark/study.py --json study.json > study.md`.

32 trials of 20 rounds on two workers: an MLP 60-64-10, 30 devices of 700 examples each, 10 of them per round with 40
steps of batch 10, FedAvg whose learning rate is searched, no scheduler, evaluation in every fifth round. The bound is

    wall <= 1.25 x (sum of round times / workers) + 0.5 s x trials / workers + 15 s

where a round's time is what its record says: `time/round_s`, and `time/evaluation_s` where there was an evaluation.
What is beyond the rounds of a trial is measured in the driver, from Ray's start of the trial to its last report.
"""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))
from ray import cloudpickle
from workload import made_by, quiet

from flstudy.config.config import load
from flstudy.study.records import read_records
from flstudy.tuning import driver, trial_table
from tests.tuning import noted
from tests.tuning.noted import Noted, read

WORKERS, FACTOR, TRIAL_S, START_S = 2, 1.25, 0.5, 15.0
CONFIG: dict[str, Any] = {
    "task": {"class_path": "Mlp", "init_args": {"hidden": 64}},
    "population": {
        "dataset": {"class_path": "Synthetic", "init_args": {"log_mean": 0.0, "log_std": 0.0, "extra": 699}},
        "clients": 30,
        "participants": 10,
        "batch_size": 10,
        "steps": 40,
    },
    "algorithm": {"class_path": "FedAvg", "init_args": {"lr": 0.05}},
    "evaluate_every": 5,
    "study": {
        "search": {"algorithm.lr": {"loguniform": [0.01, 0.2]}},
        "concurrent": WORKERS,
        "resources": {"cpu": 1},
    },
}


class Timed(trial_table.TrialTable):
    """Keeps when each trial began and ended, as the driver saw it."""

    began: dict[int, float]
    done: dict[int, float]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        type(self).began, type(self).done = {}, {}

    def ensure_started(self, proposal: Any, *, anew: bool = False) -> Any:
        """Stamped."""
        self.began.setdefault(proposal["number"], time.perf_counter())
        return super().ensure_started(proposal, anew=anew)

    def end(self, proposed: dict[str, Any], *arguments: Any, **named: Any) -> None:
        """Stamped."""
        self.done[proposed["number"]] = time.perf_counter()
        super().end(proposed, *arguments, **named)


def measure(compile: bool, trials: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One study in a new folder."""
    folder.mkdir()
    content = {**CONFIG, "rounds": rounds, "compile": compile, "store": f"sqlite:///{folder}/mlflow.db"}
    content["study"] = {**CONFIG["study"], "trials": trials, "folder": str(folder / "studies")}
    (folder / "bench.yaml").write_text(yaml.safe_dump(content))
    config = Noted.of(load(folder / "bench.yaml", command="tune"), folder / "notes")
    start = time.perf_counter()
    result = driver.carry_out(config, Console(file=io.StringIO()), report=False)
    wall = time.perf_counter() - start
    assert all(trial.status == "finished" for trial in result.trials), [trial.error for trial in result.trials]
    spent: dict[int, float] = {}
    for trial in result.trials:
        table = read_records(result.folder.path / "records" / f"{trial.number}.parquet")
        columns = zip(table["metric"].to_pylist(), table["value"].to_pylist(), strict=True)
        spent[trial.number] = sum(value for name, value in columns if name in ("time/round_s", "time/evaluation_s"))
    beyond = [Timed.done[number] - Timed.began[number] - spent[number] for number in spent]
    total = sum(spent.values())
    bound = FACTOR * total / WORKERS + TRIAL_S * trials / WORKERS + START_S
    workers = {note["pid"]: note for note in read(folder / "notes")}
    return {
        "compile": compile,
        "trials": trials,
        "wall_s": wall,
        "rounds_s": total,
        "trial_rounds_s": statistics.median(spent.values()),
        "beyond_s": statistics.median(beyond),
        "start_s": min(Timed.began.values()) - start,
        "end_s": start + wall - max(Timed.done.values()),
        "bound_s": bound,
        "met": wall <= bound,
        "programs": sorted(note["programs"] for note in workers.values()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compile", choices=["true", "false", "both"], default="both")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    quiet()
    cloudpickle.register_pickle_by_value(noted)  # workers cannot import from tests
    trial_table.TrialTable = Timed  # type: ignore[misc]
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for compile in {"true": [True], "false": [False], "both": [True, False]}[options.compile]:
            figures.append(measure(compile, options.trials, options.rounds, Path(folder) / str(compile)))
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")
    print(f"# A study of {options.trials} trials x {options.rounds} rounds on {WORKERS} workers\n")
    print(made_by("study.py", "torch", "ray", "mlflow", "lightning") + "\n")
    print("| figure | " + " | ".join(f"compile: {str(result['compile']).lower()}" for result in figures) + " |")
    print("|---|" + "---:|" * len(figures))
    for name, label in {
        "wall_s": "wall, s",
        "rounds_s": "sum of round times, s",
        "trial_rounds_s": "rounds of one trial (median), s",
        "beyond_s": "beyond the rounds of one trial (median), s",
        "start_s": "from the command to the first trial's start, s",
        "end_s": "from the last trial's end to the study's, s",
        "bound_s": "bound, s",
        "met": "met",
        "programs": "programs of each worker",
    }.items():
        cells = [result[name] for result in figures]
        texts = [
            f"{cell:.2f}" if isinstance(cell, float) else {True: "yes", False: "no"}[cell]
            if isinstance(cell, bool) else ", ".join(map(str, cell))
            for cell in cells
        ]  # fmt: skip
        print(f"| {label} | " + " | ".join(texts) + " |")
    print(f"\nBound: {FACTOR} x sum of round times / {WORKERS} + {TRIAL_S} s x trials / {WORKERS} + {START_S:g} s.")


if __name__ == "__main__":
    main()
