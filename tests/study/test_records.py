"""Records survive a kill, a resumed run replaces what it redoes, and a curve comes back as it went in."""

import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flstudy.study.records import RecordWriter, curve, read_records, record_schema

SEEDS = [0, 44, 56]


class Record(NamedTuple):
    round: int
    metrics: dict[str, list[float]]


def loss(round_, attempt=0):
    """A record whose values say which round, replica and attempt they came from."""
    return Record(round_, {"train/loss": [attempt * 1000 + round_ + replica / 10 for replica in range(3)]})


def append(path, rounds, attempt=0, **options):
    with RecordWriter(path, SEEDS, **options) as writer:
        for round_ in rounds:
            writer.append(loss(round_, attempt))


def test_rows_have_the_documented_columns_and_values(tmp_path):
    path = tmp_path / "records" / "7.parquet"
    with RecordWriter(path, SEEDS) as writer:
        writer.append(Record(1, {"train/loss": [0.5, 0.25, float("nan")]}))
        writer.append(Record(2, {"train/loss": [0.1, 0.2, 0.3], "test/accuracy": [0.7, 0.8, 0.9]}))
    table = read_records(path)
    assert table.schema.equals(record_schema(SEEDS), check_metadata=False)
    assert table.schema.metadata[b"flstudy.records.version"] == b"1"
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows[:2] == [(0, 0, 1, "train/loss", 0.5), (1, 44, 1, "train/loss", 0.25)]
    assert (2, 56, 2, "test/accuracy", 0.9) in rows
    assert len(rows) == 9


def test_a_curve_has_the_rounds_of_its_own_metric(tmp_path):
    with RecordWriter(tmp_path / "t", SEEDS) as writer:
        for round_ in range(1, 7):
            evaluated = {"test/accuracy": [round_ / 10, round_ / 20, round_ / 40]} if round_ % 3 == 0 else {}
            writer.append(Record(round_, loss(round_).metrics | evaluated))
    rounds, values = curve(read_records(tmp_path / "t"), "test/accuracy")
    assert rounds.tolist() == [3, 6]
    assert values.tolist() == [[0.3, 0.6], [0.15, 0.3], [0.075, 0.15]]
    rounds, values = curve(read_records(tmp_path / "t"), "train/loss")
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert values[2].tolist() == [1.2, 2.2, 3.2, 4.2, 5.2, 6.2]


def test_flushed_rounds_are_readable_while_the_writer_is_at_work(tmp_path):
    writer = RecordWriter(tmp_path / "t", SEEDS, flush_every=3)
    assert read_records(tmp_path / "t").num_rows == 0
    for round_ in range(1, 6):
        writer.append(loss(round_))
    assert curve(read_records(tmp_path / "t"), "train/loss")[0].tolist() == [1, 2, 3]
    writer.flush()
    assert curve(read_records(tmp_path / "t"), "train/loss")[0].tolist() == [1, 2, 3, 4, 5]


def test_closing_merges_the_parts_into_one_that_other_tools_read(tmp_path):
    append(tmp_path / "t", range(1, 51), flush_every=4)
    assert len(list((tmp_path / "t").iterdir())) == 1
    assert pq.read_table(tmp_path / "t").num_rows == 150


def test_a_kill_during_the_merge_neither_loses_nor_doubles_rows(tmp_path):
    writer = RecordWriter(tmp_path / "t", SEEDS, flush_every=4)
    for round_ in range(1, 9):
        writer.append(loss(round_))
    before = read_records(tmp_path / "t")
    writer.write(before, 1)  # what close() does first; the old parts are still there
    assert read_records(tmp_path / "t").equals(before)


def test_a_resumed_run_replaces_its_rounds_and_all_later_ones(tmp_path):
    append(tmp_path / "t", range(1, 11))
    append(tmp_path / "t", range(6, 9), attempt=1)  # resumed after round 5, killed or pruned at round 8
    rounds, values = curve(read_records(tmp_path / "t"), "train/loss")
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert values[0].tolist() == [1, 2, 3, 4, 5, 1006, 1007, 1008]
    append(tmp_path / "t", range(9, 11), attempt=2)
    assert curve(read_records(tmp_path / "t"), "train/loss")[1][0].tolist() == [
        1,
        2,
        3,
        4,
        5,
        1006,
        1007,
        1008,
        2009,
        2010,
    ]


def test_replacement_holds_across_unmerged_parts_of_three_attempts(tmp_path):
    for attempt, rounds in enumerate([range(1, 21), range(11, 21), range(8, 13)]):
        writer = RecordWriter(tmp_path / "t", SEEDS, flush_every=3)
        for round_ in rounds:
            writer.append(loss(round_, attempt))
        writer.flush()  # and dropped without close, as by a kill
    rounds, values = curve(read_records(tmp_path / "t"), "train/loss")
    assert rounds.tolist() == list(range(1, 13))
    assert values[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 2008, 2009, 2010, 2011, 2012]


def test_going_back_with_the_same_writer_is_a_resume_too(tmp_path):
    with RecordWriter(tmp_path / "t", SEEDS, flush_every=2) as writer:
        for round_, attempt in [(1, 0), (2, 0), (3, 0), (4, 0), (3, 1)]:
            writer.append(loss(round_, attempt))
    assert curve(read_records(tmp_path / "t"), "train/loss")[1][0].tolist() == [1, 2, 1003]


def test_the_last_value_of_a_round_appended_twice_wins_metric_by_metric(tmp_path):
    for flush_every in (1, 10):
        path = tmp_path / str(flush_every)
        with RecordWriter(path, [0], flush_every=flush_every) as writer:
            writer.append(Record(1, {"b": [1.0], "a": [2.0]}))
            writer.append(Record(1, {"b": [3.0], "c": [4.0]}))
        rows = [(row["metric"], row["value"]) for row in read_records(path).to_pylist()]
        assert sorted(rows) == [("a", 2.0), ("b", 3.0), ("c", 4.0)]


WRITER = """
import sys
from collections import namedtuple
from flstudy.study.records import RecordWriter
Record = namedtuple("Record", "round metrics")
writer = RecordWriter(sys.argv[1], [0, 44, 56], flush_every=5)
for round_ in range(1, 10**7):
    writer.append(Record(round_, {"train/loss": [round_, round_ + 0.1, round_ + 0.2], "fit/steps": [40.0] * 3}))
    if round_ % 5 == 0:
        print(round_, flush=True)
"""


@pytest.mark.slow
def test_kill_9_leaves_the_rounds_up_to_the_last_flush(tmp_path):
    path = tmp_path / "t"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        last_round = int(process.stdout.readline())
        time.sleep(0.2)  # somewhere in the middle of writing
        os.kill(process.pid, signal.SIGKILL)
        last_round = max([last_round, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    assert process.returncode == -signal.SIGKILL
    rounds, values = curve(read_records(path), "train/loss")
    assert rounds.tolist() == list(range(1, len(rounds) + 1))
    assert len(rounds) >= last_round >= 5
    np.testing.assert_array_equal(values[1], rounds + 0.1)
    # ... and the resumed run goes on from there, leftovers of the kill included.
    append(path, range(last_round + 1, last_round + 4), attempt=1)
    assert curve(read_records(path), "train/loss")[0].tolist() == list(range(1, last_round + 4))
    assert [part.name.startswith(".") for part in path.iterdir()] == [False]


def test_bad_input_names_the_value_and_the_domain(tmp_path):
    path = tmp_path / "t"
    with pytest.raises(ValueError, match="seeds must name at least one replica"):
        RecordWriter(path, [])
    with pytest.raises(ValueError, match="flush_every must be >= 1 rounds, got 0"):
        RecordWriter(path, [0], flush_every=0)
    with pytest.raises(ValueError, match=r"no records at .*t: a trial writes them"):
        read_records(path)
    append(path, [1])
    with pytest.raises(ValueError, match=r"hold seeds \[0, 44, 56\], got \[1\]"):
        RecordWriter(path, [1])
    writer = RecordWriter(path, SEEDS)
    with pytest.raises(ValueError, match=r"metric 'a' must have 3 values, one per seed, got \(2,\)"):
        writer.append(Record(2, {"a": [1.0, 2.0]}))
    with pytest.raises(ValueError, match="round must be >= 1, got 0"):
        writer.append(loss(0))
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="are closed"):
        writer.append(loss(2))
    with pytest.raises(ValueError, match="no metric 'train/los' in these records: did you mean 'train/loss'"):
        curve(read_records(path), "train/los")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file must be a writable directory"):
        RecordWriter(tmp_path / "file", SEEDS)


def test_records_of_another_version_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    newer = record_schema(SEEDS).with_metadata({b"flstudy.records.version": b"2"})
    pq.write_table(pa.table([[], [], [], [], []], schema=newer), tmp_path / "t" / "000000-from-1.parquet")
    with pytest.raises(ValueError, match="have version 2, this flstudy reads version 1"):
        read_records(tmp_path / "t")
