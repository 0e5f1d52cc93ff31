"""Metrics written straight into a SQLite store are those that MLflow would have written."""

import contextlib
import math
import sqlite3

import pytest

from flstudy.tracking import rows
from flstudy.tracking.rows import Figure
from flstudy.tracking.store import open_store, sqlite_file

FIGURES = [
    Figure("train/loss", 0.5, 1000, 1),
    Figure("train/loss", math.nan, 2000, 2),
    Figure("valid/loss", math.inf, 2000, 2),
    Figure("valid/loss", -math.inf, 1000, 3),
    Figure("valid/loss", 1.0, 9000, 1),  # late, and not the latest
    Figure("seed44/valid/accuracy", 0.25, 1000, 1),
    Figure("seed44/valid/accuracy", 0.75, 1000, 1),  # of equal ones the larger
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


def table(store, name, run_id):
    columns = ", ".join(sorted(rows.COLUMNS - {"run_uuid"}))
    with contextlib.closing(sqlite3.connect(sqlite_file(store.uri))) as connection:
        return sorted(connection.execute(f"SELECT {columns} FROM {name} WHERE run_uuid = ?", (run_id,)).fetchall())


def new_run(store):
    return store.client.create_run(store.experiment_id).info.run_id


@pytest.mark.parametrize("parts", [[FIGURES], [FIGURES[:2], FIGURES[2:4], FIGURES[4:]], [FIGURES, FIGURES]])
def test_the_rows_are_mlflows(store, parts, monkeypatch):
    ours, theirs = new_run(store), new_run(store)
    for part in parts:
        assert rows.write(sqlite_file(store.uri), ours, part)
    monkeypatch.setattr("flstudy.tracking.store.write", lambda *_: False)
    for part in parts:
        store.log_metrics(theirs, part)
    for name in ("metrics", "latest_metrics"):
        assert table(store, name, ours) == table(store, name, theirs)
    found = [store.client.get_run(run).data.metrics for run in (ours, theirs)]
    assert str(found[0]) == str(found[1])  # NaN is not equal to itself
    assert len(table(store, "metrics", ours)) == 7


def test_what_is_unknown_is_left_to_mlflow(store):
    file, run_id = sqlite_file(store.uri), new_run(store)
    assert not rows.write(file, "0" * 32, FIGURES)
    assert not rows.write(file, run_id, [Figure("train/loss%", 1.0, 0, 1)])
    store.client.delete_run(run_id)
    assert not rows.write(file, run_id, FIGURES)


def test_another_schema_is_left_to_mlflow(store, monkeypatch):
    monkeypatch.setattr(rows, "COLUMNS", rows.COLUMNS | {"unit"})
    run_id = new_run(store)
    assert not rows.write(sqlite_file(store.uri), run_id, FIGURES)
    store.log_metrics(run_id, FIGURES)
    assert store.client.get_run(run_id).data.metrics["seed44/valid/accuracy"] == 0.75


def test_no_file_is_made(tmp_path):
    with pytest.raises(sqlite3.OperationalError):
        rows.write(tmp_path / "absent.db", "0" * 32, FIGURES)
    assert not (tmp_path / "absent.db").exists()
