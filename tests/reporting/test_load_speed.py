"""A study's records are read at about a million rows a second."""

import time

import numpy as np

from flstudy.study.records import RecordWriter, curve, read_records
from tests.reporting.conftest import Record

ROUNDS, METRICS, SEEDS = 5000, 20, 10


def test_a_million_rows_load_in_about_a_second(tmp_path):
    values = np.random.default_rng(0).uniform(size=(METRICS, SEEDS)).tolist()
    with RecordWriter(tmp_path / "0.parquet", range(SEEDS), flush_every=1000) as writer:
        for number in range(1, ROUNDS + 1):
            writer.append(Record(number, {f"group/metric{m}": values[m] for m in range(METRICS)}))
    start = time.perf_counter()
    table = read_records(tmp_path / "0.parquet")
    rounds, found = curve(table, "group/metric7")
    seconds = time.perf_counter() - start
    assert table.num_rows == 1_000_000
    assert found.shape == (SEEDS, rounds.size) == (SEEDS, ROUNDS)
    assert seconds < 1.5
