"""The speed tables of the README and of docs/speed.md, from several runs of `flstudy bench --busy --json FILE`:
`python -m tests.benchmark.speed FILE [FILE ...]` keeps their rates in results/speed.csv and prints the tables' rows.
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from flstudy.benchmark.tables import three_digits

RATES = Path(__file__).parent / "results" / "speed.csv"
COLUMNS = ("date", "workload", "executor", "threads", "seeds", "seed_rounds_per_s", "compile_s", "busy")
IN_README = {
    "mlp": "MLP 60-64-10, 10 devices × 40 steps of 10, 1 thread",
    "synthetic": "Synthetic(0.5, 0.5), ragged, ≤ 8 epochs with early stopping, 1 thread",
    "cnn": "CNN 28×28, 10 devices × 10 steps of 20, 2 threads",
}
IN_DOCS = {
    "mlp": "MLP 60-64-10, 10 devices × 40 steps of 10",
    "mlp10": "the same, 10 seeds at once, 2 threads",
    "synthetic": "Synthetic(0.5, 0.5), ragged, ≤ 8 epochs with early stopping",
    "synthetic3": "the same, 3 seeds at once, 2 threads",
    "cnn": "CNN 28×28, 10 devices × 10 steps of 20, 2 threads",
    "lstm": "LSTM 8-32-90, length 20, 10 devices × 10 steps of 4",
}

Rates = dict[str, dict[str, list[float]]]
"""Rounds × seeds per second of an executor's best number of threads, by workload and executor, one of each run."""


def keep(files: Iterable[str]) -> None:
    """Write results/speed.csv from files of `flstudy bench --json`."""
    with RATES.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for name in files:
            run = json.loads(Path(name).read_text())
            for workload in run["workloads"]:
                rows = [{"date": run["date"], "workload": workload["name"], **row} for row in workload["rows"]]
                for row in rows:
                    figures = {name: f"{row[name]:.4g}" for name in ("seed_rounds_per_s", "compile_s")}
                    writer.writerow(row | figures)


def read() -> Rates:
    """Read results/speed.csv, runs in the order of their dates."""
    best: dict[tuple[str, str, str], float] = defaultdict(float)
    with RATES.open() as file:
        for row in csv.DictReader(file):
            key = row["workload"], row["executor"], row["date"]
            best[key] = max(best[key], float(row["seed_rounds_per_s"]))
    rates: Rates = defaultdict(lambda: defaultdict(list))
    for (workload, executor, _), rate in sorted(best.items()):
        rates[workload][executor].append(rate)
    return rates


def seconds_to_compile() -> tuple[float, float]:
    """Return the least and the largest seconds by which compiling lengthens the first rounds of the README's rows."""
    with RATES.open() as file:
        rows = [row for row in csv.DictReader(file) if row["executor"] == "compiled" and row["workload"] in IN_README]
    seconds = [float(row["compile_s"]) for row in rows]
    return min(seconds), max(seconds)


def ratios(rates: Rates, workload: str, executor: str) -> list[float]:
    """Return an executor's multiples of the plain loop, one of each run."""
    pairs = zip(rates[workload][executor], rates[workload]["plain"], strict=True)
    return [rate / plain for rate, plain in pairs]


def readme_row(rates: Rates, workload: str) -> str:
    """Return a row of the README: medians of the runs, and the range of their ratios."""
    plain, compiled = (three_digits(median(rates[workload][name])) for name in ("plain", "compiled"))
    multiples = ratios(rates, workload, "compiled")
    return f"| {IN_README[workload]} | {plain} | {compiled} | {min(multiples):.1f} to {max(multiples):.1f} |"


def docs_row(rates: Rates, workload: str) -> str:
    """Return a row of docs/speed.md: medians of the runs, and of their ratios."""
    cells = [three_digits(median(rates[workload]["plain"]))]
    for executor in ("vectorized", "compiled", "threads"):
        measured = executor in rates[workload]
        rate = three_digits(median(rates[workload][executor])) if measured else ""
        cells.append(f"{rate} ({median(ratios(rates, workload, executor)):.1f})" if measured else "")
    compiled = ratios(rates, workload, "compiled")
    cells.append(f"{min(compiled):.1f} to {max(compiled):.1f}")
    return " | ".join([f"| {IN_DOCS[workload]}", *cells]).replace("|  |", "| |") + " |"


if __name__ == "__main__":
    keep(sys.argv[1:])
    print(*(readme_row(read(), name) for name in IN_README), "", sep="\n")
    print(*(docs_row(read(), name) for name in IN_DOCS), sep="\n")
    print("compiling: {:.0f} to {:.0f} s".format(*seconds_to_compile()))
