"""Eight trials at once into one SQLite store: nothing is refused, nothing is lost."""

import pytest

from tests.benchmark.writers import measure


@pytest.mark.slow
def test_eight_writers_lose_nothing(tmp_path):
    results = measure(tmp_path, seconds=8)
    assert len(results) == 8
    for report, rows in results:
        assert report.delivered
        assert report.rounds > 80  # at 20 a second, on a machine that has other things to do
        assert rows == report.rows
        assert report.failed == {}
