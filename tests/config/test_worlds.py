"""Worlds whose classes and examples come over time, as configs name them."""

import re
from pathlib import Path

import pytest

from flstudy.cli import main
from flstudy.config.composition import quick_check
from flstudy.config.config import load
from flstudy.config.errors import ConfigError
from flstudy.population import ComposedSwaps, Event, FreshDraws

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
GROUPS = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [9]]
DRIFT = {"class_path": "ClassIntroduction", "init_args": {"rounds": [10, 20], "groups": GROUPS}}
FRESH = {"class_path": "FreshDraws", "init_args": {"mean": 50, "deviation": 10, "source": "everybody"}}


def test_a_world_is_named_and_named_again():
    options = {"population.drift": DRIFT, "population.data_stream": FRESH, "task": "Logistic", "task.l1": 2e-4}
    config = load(QUICK, options)
    assert config.events() == [Event(10, "classes 7, 8 appear"), Event(20, "class 9 appears")]
    assert config.drift_rounds() == [10, 20]
    assert config.flat()["population.data_stream.deviation"] == 10
    coordinator, population, *_ = config.build()
    assert population.data_stream == FreshDraws(mean=50, deviation=10)
    assert coordinator.task.regulariser == (2e-4, 0.0)
    again = load(
        QUICK, {**options, "population.data_stream.source": "device", "population.drift.change": "ComposedSwaps"}
    )
    assert again.build()[1].data_stream.source == "device"
    assert again.build()[1].drift.change == ComposedSwaps()
    quick_check(
        QUICK, ["--population.data_stream", "FreshDraws", "--population.data_stream.mean", "1e3", "--task.l2", "0.1"]
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"population.drift": DRIFT, "rounds": 15}, "population.drift.rounds must be ≤ rounds (15), got 20"),
        ({"population.drift": DRIFT, "population.drift.groups": [[0], [1], [2]]}, "groups leave out [3, 4, 5, 6, 7"),
        ({"population.drift": DRIFT, "population.drift.groups": [[0], [11], [2]]}, "classes in 0 … 9, got 11"),
        ({"population.drift": "ClassIntroduction", "population.drift.rounds": [5]}, "one for each of 1 rounds, got 7"),
        (
            {"population.data_stream": "FreshDraw"},
            "unknown population.data_stream 'FreshDraw': did you mean 'FreshDraws'?",
        ),
        (
            {"population.data_stream": "FreshDraws", "population.data_stream.mean": 0},
            "mean must lie in (0, 1e12], got 0",
        ),
        ({"population.selection": "BySizes"}, "unknown population.selection 'BySizes': did you mean 'BySize'?"),
        (
            {"population.selection": "PowerOfChoice", "population.selection.d": 4},
            "d must lie between participants (10) and clients (20), got 4",
        ),
        (
            {"population.selection": "PowerOfChoice", "population.selection.d": 12, "algorithm": "HypCluster"},
            "asks devices for the loss of the server's model, but HypCluster trains several models",
        ),
        ({"task.l1": -1}, "task.l1 must lie in [0, 1e12], got -1"),
    ],
)
def test_a_world_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(QUICK, options)


def test_what_there_is_is_listed(capsys):
    for kind, names in {
        "data-streams": ["FreshDraws"],
        "drifts": ["ClassIntroduction"],
        "changes": ["ComposedSwaps"],
        "selections": ["BySize", "ByWeight", "PowerOfChoice"],
    }.items():
        assert main(["list", kind]) == 0
        assert set(names) <= set(capsys.readouterr().out.split())
