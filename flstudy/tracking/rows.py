"""Metrics straight into the tables of a SQLite store, as MLflow writes them.

MLflow's own way builds an object of SQLAlchemy for every figure, 0.1 ms of Python each: a tenth of a fast round, taken
from the training thread by the lock of the interpreter. The two statements here leave the same rows in an eighth of
that. Whatever looks other than expected is left to MLflow: another server, another schema, a name it may refuse.
"""

import contextlib
import math
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

COLUMNS = {"key", "value", "timestamp", "step", "is_nan", "run_uuid"}  # of both tables
LARGEST = 1.7976931348623157e308  # stands for infinity
_NAME = re.compile(r"\w[\w .:-]*(/\w[\w .:-]*)*", re.ASCII)  # less than MLflow allows
_WAIT_S = 5.0  # for another writer

_INSERT = "INSERT OR IGNORE INTO metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
_LATEST = """
    INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (key, run_uuid) DO UPDATE
    SET value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan
    WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)
"""


class Figure(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    stamp: int  # ms since 1970
    step: int


def write(file: Path, run_id: str, figures: Sequence[Figure]) -> bool:
    """Add figures to a run, all or none; those that it has already are left alone.

    Returns:
        False where that is MLflow's business.

    Raises:
        sqlite3.OperationalError: where the file cannot be written now.
    """
    if not all(_NAME.fullmatch(name) and len(name) <= 250 for name in {figure.name for figure in figures}):
        return False
    rows = []
    newest: dict[str, tuple[str, float, int, int, int, str]] = {}
    for name, given, stamp, step in figures:
        value, is_nan = told(given)
        row = (name, value, stamp, step, is_nan, run_id)
        rows.append(row)
        before = newest.get(name)
        if before is None or (step, stamp, value) > (before[3], before[2], before[1]):
            newest[name] = row
    with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", timeout=_WAIT_S, uri=True)) as connection:
        if not known(connection, run_id):
            return False
        with connection:  # one transaction
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, rows)
            connection.executemany(_LATEST, newest.values())
    return True


def told(value: float) -> tuple[float, int]:
    """A value and whether it is NaN, as MLflow keeps them."""
    if math.isnan(value):
        return 0.0, 1
    return (math.copysign(LARGEST, value) if math.isinf(value) else value), 0


def known(connection: sqlite3.Connection, run_id: str) -> bool:
    """Whether the tables are those that we know, and the run one that can be written to."""
    for table in ("metrics", "latest_metrics"):
        if {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} != COLUMNS:
            return False
    found = connection.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
    return found == ("active",)
