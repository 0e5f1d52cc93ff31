"""A run whose privacy budget ends before its rounds do."""

import io
from pathlib import Path

from rich.console import Console

from flstudy.config import load
from flstudy.run import run_once

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"


def test_the_terminal_tells_where_a_run_ended_and_what_it_spent(tmp_path):
    changes = {"run.folder": str(tmp_path), "run.track": False, "rounds": 4, "population.drift": None, "seeds": [0]}
    world = {"population.participants": 20, "population.epochs": 1, "algorithm.weighting": "uniform"}
    private = {"clip": 0.5, "noise": 4.0, "delta": 0.01, "orders": [2.0, 8.0], "target_epsilon": 3.0}
    config = load(QUICK, {**changes, **world, **{f"privacy.{key}": value for key, value in private.items()}})
    output = io.StringIO()
    run_once(config, Console(file=output, width=120))
    assert "Flash after 2 rounds" in output.getvalue()
    assert "privacy/epsilon" in output.getvalue()
    assert "Round 3 of 4 would exceed privacy.target_epsilon." in output.getvalue()
