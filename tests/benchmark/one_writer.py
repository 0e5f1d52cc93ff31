"""What a study's writer and its bucket cost: `python tests/benchmark/one_writer.py > results/one_writer.md`.

The writer's costs of a value, a message, a megabyte and a trial are measured one by one; with them and a study's
trials, rounds, metrics, seeds, parameters and snapshots the model says what three studies cost, beside what they cost.
Studies are messages as workers send them (`flstudy.tuning.outbox`), answered by the real writer, with MLflow on SQLite,
and kept in a folder by URI. Counted are seconds of the processor, which other work on the machine hardly changes, and
bytes, which it does not change at all.
"""

import argparse
import os
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.mirror import BucketMirror
from flstudy.study.records import RecordedRound, RoundBuffer
from flstudy.study.working_copy import WorkingCopy
from flstudy.tracking.store import open_store
from flstudy.tuning.outbox import PART
from flstudy.tuning.writer import Writer

IDENTITY = {"study": "costs", "study_id": "costs", "parent": "0", "tags": {}, "environment": {}}
ROUNDS_IN_A_MESSAGE = 25


class Size(NamedTuple):
    """Of a study."""

    trials: int
    rounds: int
    metrics: int
    seeds: int
    parameters: int
    snapshots: int  # of each trial

    @property
    def values(self) -> int:
        """Of all trials."""
        return self.trials * self.rounds * self.metrics * self.seeds

    @property
    def messages(self) -> int:
        """With rounds."""
        return self.trials * -(-self.rounds // ROUNDS_IN_A_MESSAGE)

    @property
    def megabytes(self) -> float:
        """Of snapshots and models: one model of 32 bits for each seed, and one that is kept."""
        return self.trials * (self.snapshots * self.seeds + 1) * self.parameters * 4 / 1e6


class Costs(NamedTuple):
    """Of the writer, in seconds of the processor, and of the store, in bytes."""

    value_s: float
    message_s: float
    megabyte_s: float
    trial_s: float
    value_sent: float  # from worker to writer
    value_kept: float  # in Parquet
    line: float  # of the list of trials

    def predicted(self, size: Size) -> dict[str, float]:
        """What a study costs: a value goes to the bucket in its part and, when the trial ends, in the merged file; the
        list of trials goes whole each time that a trial begins or ends."""
        writer = size.values * self.value_s + size.messages * self.message_s
        writer += size.megabytes * self.megabyte_s + size.trials * self.trial_s
        lists = self.line * sum(range(1, 2 * size.trials + 1)) / 1e6
        parts = 2.0 if size.snapshots else 1.0
        return {
            "writer, s of a core": writer,
            "worker to writer, MB": size.values * self.value_sent / 1e6 + size.megabytes,
            "to the bucket, MB": parts * size.values * self.value_kept / 1e6 + size.megabytes + lists,
        }


SIZES = {
    "small": Size(trials=12, rounds=60, metrics=20, seeds=3, parameters=5_000, snapshots=1),
    "middle": Size(trials=8, rounds=200, metrics=30, seeds=5, parameters=100_000, snapshots=3),
    "large": Size(trials=3, rounds=400, metrics=40, seeds=10, parameters=1_000_000, snapshots=4),
}


class Messages(RoundBuffer):
    """Rounds as a worker sends them."""

    def __init__(self, seeds: list[int]) -> None:
        super().__init__(seeds, flush_every=ROUNDS_IN_A_MESSAGE)
        self.sent: list[tuple[pa.Buffer, int | None, list[float]]] = []

    def write(self, table: pa.Table, replaces: int | None) -> None:
        """Keep the message."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self.sent.append((sink.getvalue(), replaces, [time.time()] * len(self._pending)))


class Bench:
    """A writer in a place of its own, and what it was told."""

    def __init__(self, place: Path) -> None:
        os.environ["XDG_CACHE_HOME"] = str(place / "cache")
        (place / "bucket").mkdir()
        copy = WorkingCopy.of(f"file://{place}/bucket/studies/costs")
        for part in ("records", "snapshots", "models"):
            (copy.path / part).mkdir(parents=True)
        copy.note(token=None)
        self.folder = StudyFolder(copy.path)
        self.folder.config.write_text("rounds: 1\n")
        self.writer = Writer(self.folder, open_store(f"sqlite:///{place}/mlflow.db"), {}, IDENTITY, ["valid/accuracy"])
        self.sent = 0
        self.numbers = iter(range(1_000_000))
        self.rng = np.random.default_rng(0)

    def trial(self, size: Size) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The messages of a trial; they are made before they are counted."""
        names, seeds = [f"server/metric{n}" for n in range(size.metrics)], list(range(size.seeds))
        rounds = Messages(seeds)
        for round in range(1, size.rounds + 1):
            values = self.rng.normal(size=(size.metrics, size.seeds)).tolist()
            rounds.append(RecordedRound(round, dict(zip(names, values, strict=True))))
        rounds.flush()
        yield "start", ({"algorithm": "FedAvg"}, {}, seeds, None)
        yield "begin", (seeds,)
        after = {-(-len(rounds.sent) * (n + 1) // (size.snapshots + 1)) for n in range(size.snapshots)}
        for number, message in enumerate(rounds.sent, start=1):
            yield "write", message
            if number in after:
                yield "snapshot", (self.rng.bytes(size.seeds * size.parameters * 4),)
        yield "merge", ()
        yield "model", (self.rng.bytes(size.parameters * 4),)

    def run(self, size: Size, mirror: BucketMirror | None = None) -> float:
        """Seconds of the processor that a study took of the writer."""
        spent = 0.0
        for _ in range(size.trials):
            number, attempt = next(self.numbers), uuid.uuid4().hex
            trial = Trial(number=number, algorithm="FedAvg", overrides={"algorithm.lr": 0.1})
            self.folder.write_trial(trial)
            self.writer.open(trial.to_json(), attempt, "", "")
            for what, arguments in list(self.trial(size)):
                since = time.process_time()
                if what in ("snapshot", "model"):
                    name = f"snapshots/{number}.ckpt" if what == "snapshot" else f"models/{number}.pt"
                    self.put(number, attempt, name, arguments[0])
                else:
                    self.writer.tell(number, attempt, what, *arguments)
                    self.sent += arguments[0].size if what == "write" else 0
                spent += time.process_time() - since
                if what == "snapshot" and mirror is not None:
                    mirror.send()
            trial.status, trial.rounds = Status.FINISHED, size.rounds
            since = time.process_time()
            self.writer.tell(number, attempt, "finish", trial.to_json(), False)
            while self.writer.tell(number, attempt, "delivery")[0][1]:
                time.sleep(0.02)
            spent += time.process_time() - since
            self.folder.write_trial(trial)
            self.folder.drop_snapshot(number)
            if mirror is not None:
                mirror.send()
        return spent

    def put(self, number: int, attempt: str, name: str, content: bytes) -> None:
        """A file in parts."""
        checksum = 0
        for start in range(0, len(content), PART):
            part = content[start : start + PART]
            checksum, last = zlib.crc32(part, checksum), start + PART >= len(content)
            self.writer.tell(number, attempt, "put", name, part, checksum if last else None)
            self.sent += len(part)


def calibrated(place: Path) -> Costs:
    """Each cost by the difference of two studies that differ in it alone."""
    bench = Bench(place)
    bench.run(Size(1, 25, 2, 1, 1, 0))  # imports, tables
    few = Size(trials=4, rounds=200, metrics=2, seeds=1, parameters=1, snapshots=0)
    many = few._replace(metrics=40, seeds=5)
    short = few._replace(rounds=25)
    large = few._replace(rounds=25, parameters=10_000_000)
    spent = {size: bench.run(size) for size in (few, short, large)}
    bench.sent = 0
    spent[many] = bench.run(many)
    value_s = (spent[many] - spent[few]) / (many.values - few.values)
    message_s = (spent[few] - spent[short] - value_s * (few.values - short.values)) / (few.messages - short.messages)
    record_bytes = sum(path.stat().st_size for path in bench.folder.records(next(bench.numbers) - 1).iterdir())
    return Costs(
        value_s,
        message_s,
        (spent[large] - spent[short]) / (large.megabytes - short.megabytes),
        spent[short] / short.trials - message_s - value_s * short.values / short.trials,
        bench.sent / many.values,
        record_bytes * many.trials / many.values,
        bench.folder.trials.stat().st_size / (2 * (1 + 4 * few.trials)),
    )


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    from workload import made_by

    with tempfile.TemporaryDirectory() as folder:
        costs = calibrated(Path(folder))
    print(f"# What a study's writer and its bucket cost\n\n{made_by('one_writer.py', 'ray', 'mlflow', 'pyarrow')}\n")
    print("| cost | |\n|---|---:|")
    print(f"| a value, on disk and its mean in MLflow | {costs.value_s * 1e6:.2f} µs |")
    print(f"| a message of {ROUNDS_IN_A_MESSAGE} rounds | {costs.message_s * 1e3:.2f} ms |")
    print(f"| a megabyte of snapshots and models | {costs.megabyte_s * 1e3:.2f} ms |")
    print(f"| a trial: its run, its merged records | {costs.trial_s * 1e3:.0f} ms |")
    print(f"| a value on its way to the writer, in Parquet | {costs.value_sent:.1f}, {costs.value_kept:.1f} bytes |")
    print(f"| a line of the list of trials | {costs.line:.0f} bytes |\n")
    print("| study | | predicted | measured |\n|---|---|---:|---:|")
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder))
            with bench.folder.claim():
                mirror = BucketMirror(bench.folder)
                spent = bench.run(size, mirror)
            measured = [spent, bench.sent / 1e6, mirror.sent_bytes / 1e6]
        shape = f"{name}: {size.trials} trials × {size.rounds} rounds × {size.metrics} metrics × {size.seeds} seeds"
        shape += f", {size.parameters:,} parameters, {size.snapshots} snapshots"
        for (what, predicted), seen in zip(costs.predicted(size).items(), measured, strict=True):
            print(f"| {shape} | {what} | {predicted:.2f} | {seen:.2f} |")
            shape = ""
    print(f"\nOne core carries {1 / costs.value_s:,.0f} values a second, or {1 / costs.megabyte_s:,.0f} MB a second.")


if __name__ == "__main__":
    main()
