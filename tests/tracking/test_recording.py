"""What a run records of rounds that are not finite, and whether it goes on after them."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from flstudy.config import load
from flstudy.run import DivergedError, run_once
from flstudy.study.records import curve, read_records

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
BROKEN = {"rounds": 4, "population.drift": None, "seeds": [0], "algorithm.lr": 1e12, "algorithm.gamma": None}


def diverging(folder, **changes):
    """A run whose loss overflows in an early round."""
    run = {"run.folder": str(folder), "run.track": False}
    return load(QUICK, {**BROKEN, "population.participants": 3, **run, **changes})


@pytest.mark.slow
def test_a_run_ends_at_the_first_round_that_is_not_finite(tmp_path):
    with pytest.raises(DivergedError, match=r"diverged in round \d .*: lower algorithm.lr; records and"):
        run_once(diverging(tmp_path), Console(file=io.StringIO()))
    rounds, losses = curve(read_records(tmp_path / "quick" / "records.parquet"), "train/loss")
    assert rounds.max() < 4
    assert not math.isfinite(losses[0, -1])


@pytest.mark.slow
def test_it_goes_on_where_it_is_told_to(tmp_path):
    output = io.StringIO()
    run_once(diverging(tmp_path, **{"run.check_finite": False}), Console(file=output, width=200))
    rounds, losses = curve(read_records(tmp_path / "quick" / "records.parquet"), "train/loss")
    assert rounds.tolist() == [1, 2, 3, 4]
    assert not math.isfinite(losses[0, -1])
    assert "It went on, though it diverged in round" in output.getvalue()
