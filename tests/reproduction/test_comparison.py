"""Tables of a comparison, with its columns *Preset* and *Tuned*, and of an ablation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flstudy.reproduction.measured import measured_trials
from flstudy.reproduction.pages import ablation_parts, comparison_parts, world_page
from flstudy.reproduction.plan import Paper, PublishedValue, World
from flstudy.study import load_study

from ..reporting.conftest import make_confirmation, make_study, make_trial

NEW = (101, 102, 103)


def curve(value, seeds):
    return {"test/accuracy": [[value] * 10] * seeds}


@pytest.fixture
def done(tmp_path):
    """Studies of one algorithm, whose preset is the best on the seeds of the search: 90 % there, 70 % on new ones."""
    preset, drawn = make_trial("0", "FedAvg", 0.9), make_trial("1", "FedAvg", 0.8)
    again = make_confirmation("2", 0, "FedAvg", 0.7, seeds=NEW)
    curves = {"0": curve(0.9, 2), "1": curve(0.8, 2), "2": curve(0.7, len(NEW))}
    return {
        "preset": load_study(make_study(tmp_path / "preset", [preset], curves={"0": curves["0"]})),
        "tuned": load_study(make_study(tmp_path / "tuned", [preset, drawn, again], curves=curves)),
    }


WORLD = World(name="w", title="A world", config=Path(__file__))


def test_what_is_tuned_is_shown_on_the_seeds_that_chose_nothing(done, tmp_path):
    """Also where the preset had a higher value, which is of the seeds that chose it."""
    plan = Paper(name="p", folder=tmp_path, title="P", worlds=(WORLD,), published={})
    parts = comparison_parts(plan, WORLD, done)
    (row,) = [line for line in parts[0].splitlines() if line.startswith("| FedAvg")]
    assert row == "| FedAvg | 90.00 ± 0.00 | 70.00 ± 0.00 | – / 1 / 1 |"
    assert "Presets are of the seeds 0, 44." in parts
    assert any(f"the new seeds {', '.join(map(str, NEW))}, which chose nothing" in part for part in parts)


def test_a_row_that_never_recovers_is_ranked_last_and_not_left_out(tmp_path):
    """All rows have a place in the order: also those with a seed, or with all, that never come back."""
    never = np.nan
    recoveries = {"FedAvg": [10.0, 12.0], "FedProx": [20.0, 22.0], "Scaffold": [30.0, never], "Moon": [never, never]}
    trials = [make_trial(str(number), name, 0.9) for number, name in enumerate(recoveries)]
    curves = {
        str(number): curve(0.9, 2) | {"test/recovery": [[rounds] * 10 for rounds in by_seed]}
        for number, by_seed in enumerate(recoveries.values())
    }
    results = load_study(make_study(tmp_path / "preset", trials, curves=curves))
    world = replace(WORLD, measures=("recovery",))
    published = {
        ("w", name, "recovery"): PublishedValue(rounds, None, None)
        for name, rounds in zip(recoveries, (1, 2, 3, 3), strict=True)
    }
    plan = Paper(name="p", folder=tmp_path, title="P", worlds=(world,), published=published)
    table, order = comparison_parts(plan, world, {"preset": results})[:2]
    assert "| Moon | 3 | never |" in table
    assert "presets: +1.00" in order
    assert "over 4 rows" in order
    assert order.endswith(" Rows with a seed that never gets there share the last place.")


@pytest.mark.parametrize(
    ("stages", "named"), [(["preset"], " --stages preset`"), (["preset", "tuned"], " --worlds w`")]
)
def test_a_page_names_the_stages_that_it_shows(done, tmp_path, stages, named):
    """The command of a page makes that page again, and not a search that it does not have."""
    plan = Paper(name="p", folder=tmp_path, title="P", worlds=(WORLD,), published={})
    page = world_page(plan, WORLD, {stage: done[stage] for stage in stages}, tmp_path)
    assert "`flstudy reproduce p --worlds w" in page
    assert named in page


def test_the_file_beside_the_page_says_the_same(done):
    shown = {column: trial for trial in measured_trials(WORLD, done) for column in trial.shown}
    assert {column: trial.values("accuracy") for column, trial in shown.items()} == {
        "preset": {0: 0.9, 44: 0.9},
        "tuned": dict.fromkeys(NEW, 0.7),
    }


def test_an_ablation_without_a_whole_trial_has_an_empty_table(tmp_path):
    nobody = load_study(make_study(tmp_path / "a", [make_trial("0", "FedAvg", 0.1, status="diverged")]))
    world = World(name="w", title="A world", config=Path(__file__), kind="ablation")
    (table,) = ablation_parts(world, {"preset": nobody}, tmp_path)
    assert [line for line in table.splitlines() if line.startswith("| ")] == ["| algorithm | lr | Accuracy % |"]
