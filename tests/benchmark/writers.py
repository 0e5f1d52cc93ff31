"""Trials that write to one store at once: `python tests/benchmark/writers.py > tests/benchmark/results/writers.md`.

Each of 8 processes tells rounds of a trial (25 metrics of three seeds, an evaluation in every fifth round) through
TrialRun, as many a second as a fast trial has. Counted are the rows told and the rows in the database afterwards, and
the attempts that the database refused because another process was writing.
"""

import argparse
import logging
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.federation import Record
from flstudy.tracking.content import round_values
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import Store, open_store, sqlite_file
from tests.processes import store_writers

WRITERS, RATE, SEEDS = 8, 20.0, [0, 44, 56]
ROUND = [f"server/metric{n}" for n in range(12)] + ["train/loss", "fit/steps", "traffic/up_bytes", "time/round_s"]
EVALUATION = [f"{split}/{name}" for split in ("valid", "test") for name in ("loss", "accuracy", "accuracy_spread")]
EVALUATION += ["test/personal_accuracy", "test/personal_accuracy_spread", "time/evaluation_s"]


class Written(NamedTuple):
    """What one process did."""

    rounds: int
    rows: int  # figures told
    delivered: bool
    failed: dict[str, int]  # attempts by what the store said
    slowest_ms: float  # of telling a round
    finish_s: float


class Noting(TrialRun):
    """Counts the attempts that failed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.failed: Counter[str] = Counter()

    def _try(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        def noted(*positional: Any, **options: Any) -> Any:
            try:
                return call(*positional, **options)
            except Exception as error:
                self.failed[f"{type(error).__name__}: {str(error).splitlines()[0]}"] += 1
                raise

        return super()._try(noted, *arguments, **named)


def record(r: int) -> Record:
    """A round that looks like a real one."""
    names = ROUND + (EVALUATION if r % 5 == 0 else [])
    return Record(r, {name: [r + 0.1 * s for s in range(len(SEEDS))] for name in names})


def write(store: Store, number: int, seconds: float, rate: float, together: Any, results: Any) -> None:
    """One trial, in a process of its own."""
    logging.basicConfig(level=logging.WARNING)
    run = Noting(store, name=f"{number} FedAvg", key={"flstudy.study_id": "writers", "flstudy.trial": str(number)})
    run.start(params={"algorithm": "FedAvg"}, tags={}, seeds=SEEDS, config={"number": number})
    while run.run_id is None:
        time.sleep(0.01)
    together.wait()
    start, rounds, rows, slowest = time.perf_counter(), 0, 0, 0.0
    while (now := time.perf_counter()) - start < seconds:
        rounds += 1
        round_record = record(rounds)
        rows += sum(1 for _ in round_values(round_record.metrics, SEEDS))
        before = time.perf_counter()
        run.log(round_record)
        slowest = max(slowest, time.perf_counter() - before)
        time.sleep(max(0.0, start + rounds / rate - now))
    before = time.perf_counter()
    delivered = run.finish(tags={"rounds": str(rounds)})
    finish_s = time.perf_counter() - before
    results.put((number, Written(rounds, rows, delivered, dict(run.failed), 1000 * slowest, finish_s)))


def measure(folder: Path, seconds: float, writers: int = WRITERS, rate: float = RATE) -> list[tuple[Written, int]]:
    """What each process told, and how many rows of it are in the database."""
    store = open_store(f"sqlite:///{folder}/mlflow.db")
    forked = store_writers()
    together, results = forked.Barrier(writers), forked.Queue()
    processes = [
        forked.Process(target=write, args=(store, number, seconds, rate, together, results))
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    outcomes = dict(results.get(timeout=seconds + 600) for _ in processes)
    for process in processes:
        process.join(30)
    counts = []
    file = sqlite_file(store.uri)
    assert file is not None
    with sqlite3.connect(file) as connection:
        for number in range(writers):
            run = store.find({"flstudy.study_id": "writers", "flstudy.trial": str(number)})
            assert run is not None
            (count,) = connection.execute(
                "SELECT COUNT(*) FROM metrics WHERE run_uuid = ?", (run.info.run_id,)
            ).fetchone()
            counts.append(count)
    return [(outcomes[number], counts[number]) for number in range(writers)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--rate", type=float, default=RATE, help="rounds per second of each")
    options = parser.parse_args()
    from workload import made_by  # torch, which the writers do without

    with tempfile.TemporaryDirectory() as folder:
        outcomes = measure(Path(folder), options.seconds, options.writers, options.rate)
        size = sum(path.stat().st_size for path in Path(folder).glob("mlflow.db*")) / 1e6
    print(f"# {options.writers} trials writing to one SQLite store for {options.seconds:g} s\n")
    print(made_by("writers.py", "mlflow") + "\n")
    print("| writer | rounds | rows told | rows in the store | failed attempts | slowest `log`, ms | `finish`, s |")
    print("|---|" + "---:|" * 6)
    for number, (outcome, count) in enumerate(outcomes):
        failed = sum(outcome.failed.values())
        print(
            f"| {number} | {outcome.rounds} | {outcome.rows} | {count} | {failed} | {outcome.slowest_ms:.2f} "
            f"| {outcome.finish_s:.2f} |"
        )
    rows, there = sum(outcome.rows for outcome, _ in outcomes), sum(count for _, count in outcomes)
    print(f"\n{there} of {rows} rows are there ({rows / options.seconds:.0f} a second, {size:.0f} MB).", end=" ")
    reasons: Counter[str] = sum((Counter(outcome.failed) for outcome, _ in outcomes), Counter())
    failures = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
    print(f"Attempts that failed and were made again: {failures or 'none'}.")


if __name__ == "__main__":
    main()
