"""Metrics written straight into a SQLite store are those that MLflow would have written."""

import contextlib
import math
import sqlite3

import pytest

from flstudy.tracking import store as stores
from flstudy.tracking.store import MetricValue, insert_values, open_store, sqlite_file

VALUES = [
    MetricValue("train/loss", 0.5, 1000, 1),
    MetricValue("train/loss", math.nan, 2000, 2),
    MetricValue("valid/loss", math.inf, 2000, 2),
    MetricValue("valid/loss", -math.inf, 1000, 3),
    MetricValue("valid/loss", 1.0, 9000, 1),  # late, and not the latest
    MetricValue("seed44/valid/accuracy", 0.25, 1000, 1),
    MetricValue("seed44/valid/accuracy", 0.75, 1000, 1),  # of equal ones the larger
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


def table(store, name, run_id):
    columns = ", ".join(sorted(stores.COLUMNS - {"run_uuid"}))
    with contextlib.closing(sqlite3.connect(sqlite_file(store.uri))) as connection:
        return sorted(connection.execute(f"SELECT {columns} FROM {name} WHERE run_uuid = ?", (run_id,)).fetchall())


def new_run(store):
    return store.client.create_run(store.experiment_id).info.run_id


@pytest.mark.parametrize("parts", [[VALUES], [VALUES[:2], VALUES[2:4], VALUES[4:]], [VALUES, VALUES]])
def test_the_rows_are_mlflows(store, parts, monkeypatch):
    ours, theirs = new_run(store), new_run(store)
    for part in parts:
        assert insert_values(sqlite_file(store.uri), ours, part)
    monkeypatch.setattr("flstudy.tracking.store.insert_values", lambda *_: False)
    for part in parts:
        store.log_metrics(theirs, part)
    for name in ("metrics", "latest_metrics"):
        assert table(store, name, ours) == table(store, name, theirs)
    found = [store.client.get_run(run).data.metrics for run in (ours, theirs)]
    assert str(found[0]) == str(found[1])  # NaN is not equal to itself
    assert len(table(store, "metrics", ours)) == 7


def test_what_is_unknown_is_left_to_mlflow(store):
    file, run_id = sqlite_file(store.uri), new_run(store)
    assert not insert_values(file, "0" * 32, VALUES)
    assert not insert_values(file, run_id, [MetricValue("train/loss%", 1.0, 0, 1)])
    store.client.delete_run(run_id)
    assert not insert_values(file, run_id, VALUES)


def test_another_schema_is_left_to_mlflow(store, monkeypatch):
    monkeypatch.setattr(stores, "COLUMNS", stores.COLUMNS | {"unit"})
    run_id = new_run(store)
    assert not insert_values(sqlite_file(store.uri), run_id, VALUES)
    store.log_metrics(run_id, VALUES)
    assert store.client.get_run(run_id).data.metrics["seed44/valid/accuracy"] == 0.75


def test_no_file_is_made(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        insert_values(tmp_path / "absent.db", "0" * 32, VALUES)
    assert not (tmp_path / "absent.db").exists()
