"""Drifts with a round for each device: drawn, or written down in a mapping or a file."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from flstudy.population import Event, ScheduledDrift, StaggeredDrift, SuddenDrift

TABLE = {"device": [0, 2, 0], "round": [5, 6, 9], "concept": [1, 2, 0]}
GIVEN = {0: [(5, 1), (9, 0)], 2: [(6, 2)]}


def test_staggered_rounds_are_uniform_and_each_device_changes_once():
    drift = StaggeredDrift(round=10, until=19)
    history = np.stack([drift.concept(3, number, 4000) for number in range(1, 25)])
    assert history[:9].sum() == 0
    assert history[18:].min() == 1
    steps = np.diff(history, axis=0)
    assert steps.min() == 0  # nobody returns
    starts = steps.sum(1)[8:18]
    assert starts.sum() == 4000
    assert abs(starts - 400).max() < 4 * np.sqrt(400)
    assert not np.array_equal(history[12], drift.concept(4, 13, 4000))
    assert drift.events() == [Event(10, "drift begins"), Event(19, "last devices drift")]
    assert StaggeredDrift(round=10, until=10).events() == [Event(10, "drift begins")]


def test_a_share_drifts_and_it_is_the_share_of_a_sudden_drift():
    some = StaggeredDrift(round=10, until=19, p_drift=0.25)
    assert np.array_equal(some.concept(0, 19, 40), SuddenDrift(round=10, p_drift=0.25).concept(0, 19, 40))
    assert some.concept(0, 19, 40).sum() == 10
    at_once = StaggeredDrift(round=10, until=10, p_drift=0.25)
    assert np.array_equal(at_once.concept(0, 10, 40), some.concept(0, 19, 40))


@pytest.fixture(params=["mapping", "csv", "parquet"])
def schedule(request, tmp_path):
    if request.param == "mapping":
        return GIVEN
    path = tmp_path / f"drift.{request.param}"
    if request.param == "csv":
        lines = ["device,round,concept", *(",".join(map(str, row)) for row in zip(*TABLE.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    else:
        parquet.write_table(pa.table(TABLE), path)
    return str(path)


def test_a_schedule_is_followed_wherever_it_is_written(schedule):
    drift = ScheduledDrift(schedule=schedule)
    drift.check(3, 9)
    assert drift.concepts == 3
    history = [drift.concept(seed, number, 4).tolist() for number in (1, 4, 5, 6, 8, 9, 99) for seed in (0, 1)]
    assert history[::2] == history[1::2]  # it is given, not drawn
    assert history[::2] == [[0] * 4, [0] * 4, [1, 0, 0, 0], [1, 0, 2, 0], [1, 0, 2, 0], [0, 0, 2, 0], [0, 0, 2, 0]]
    assert drift.events() == [Event(5, "1 drift"), Event(6, "1 drift"), Event(9, "1 drift")]


def test_devices_may_start_apart():
    drift = ScheduledDrift(schedule={0: [(1, 1)], 1: [(3, 1)]})
    assert drift.concept(0, 1, 2).tolist() == [1, 0]
    assert drift.events() == [Event(3, "1 drift")]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("device,round,concept\n0,5,1\n1,0,1\n", r"drift\.csv, row 2: round must be ≥ 1, got 0"),
        ("device,round,concept\n-1,5,1\n", r"row 1: device must be ≥ 0, got -1"),
        ("device,round,concept\n0,5,1.5\n", r"row 1: concept must be a whole number, got 1\.5"),
        ("device,round,concept\n0,5,1\n0,5,2\n", r"row 2: device 0 has a concept for round 5 already, in .*row 1"),
        ("device,when,concept\n0,5,1\n", "must have columns device, round, concept, got device, when, concept"),
        ("device,round,concept\n0,5\n", r"drift\.csv cannot be read: CSV parse error"),
        ("device,round,concept\n", "schedule must hold at least one entry"),
    ],
)
def test_files_are_judged_row_by_row(content, sentence, tmp_path):
    (tmp_path / "drift.csv").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        ScheduledDrift(schedule=str(tmp_path / "drift.csv"))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: StaggeredDrift(round=10, until=9), r"StaggeredDrift: until must be ≥ round \(10\), got 9"),
        (lambda: StaggeredDrift(round=1, until=9), r"round must lie in \[2, 1e6\], got 1"),
        (lambda: StaggeredDrift(round=2, until=9, p_drift=1.1), r"p_drift must lie in \[0, 1\], got 1\.1"),
        (lambda: StaggeredDrift(round=2, until=9).check(5, 8), r"drift\.until must be ≤ rounds \(8\), got 9"),
        (lambda: ScheduledDrift(schedule=GIVEN).check(2), r"device 2, entry 1: device must lie in 0 … 1, got 2"),
        (lambda: ScheduledDrift(schedule=GIVEN).check(9, 8), r"device 0, entry 2: round must be ≤ rounds \(8\), got 9"),
        (lambda: ScheduledDrift(schedule={0: [(1, 2, 3)]}), r"an entry is \[round, concept\], got \[1, 2, 3\]"),
        (lambda: ScheduledDrift(schedule={}), "schedule must hold at least one entry"),
        (lambda: ScheduledDrift(schedule="drift.txt"), r"must end in \.csv or \.parquet, got 'drift\.txt'"),
        (lambda: ScheduledDrift(schedule="absent.csv"), r"there is no file 'absent\.csv' with columns device, round"),
    ],
)
def test_bad_schedules_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
