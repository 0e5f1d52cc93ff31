"""A world whose rows are algorithms under variants: what its page says of the leader and of each variant."""

from pathlib import Path

import numpy as np

from flstudy.reproduction.crossed import crossed_parts, crossed_rows
from flstudy.reproduction.measured import measured_trials
from flstudy.reproduction.plan import World
from flstudy.study import load_study

from ..reporting.conftest import is_drawn, make_study, make_trial

SEEDS = [1000, 1001, 1002, 1003]
NOISE = np.array([-0.02, 0.0, 0.01, 0.01])


def study(folder, means):
    """Two algorithms, whose trials are confirmed on four seeds with these mean accuracies, and tell their bits."""
    trials, curves = [], {}
    for place, (algorithm, mean) in enumerate(means.items()):
        overrides = {"algorithm": algorithm, "algorithm.lr": 0.1}
        trials.append(make_trial(str(2 * place), algorithm, mean, overrides=overrides))
        again = make_trial(str(2 * place + 1), algorithm, mean, overrides={**overrides, "seeds": SEEDS})
        trials.append({**again, "stage": "confirm", "confirms": 2 * place})
        values = mean + NOISE * (1 + 0.1 * place)
        curves[str(2 * place + 1)] = {
            "test/accuracy": [[value] * 10 for value in values],
            "test/mean_accuracy": [[np.nan] * 9 + [value] for value in values],
            "traffic/bits": [[np.nan] * 9 + [2.5e9]] * 4,
        }
    return load_study(make_study(folder, trials, curves=curves, events=[(4, "session 2"), (6, "drift to concept 1")]))


def test_rows_are_ordered_by_what_chose_them_and_compared_in_two_families(tmp_path):
    world = World(name="w", title="A world", config=Path(__file__), kind="crossed", measures=("mean", "bits"),
                  variants={"alone": (), "watched": ()}, compared="alone", shown=("FedAvg",))  # fmt: skip
    done = {
        "alone": study(tmp_path / "a", {"FedAvg": 0.5, "Flash": 0.7}),
        "watched": study(tmp_path / "b", {"FedAvg": 0.8, "Flash": 0.70}),
    }
    rows = crossed_rows(world, done)
    assert [row.name for row in rows] == ["FedAvg (watched)", "Flash", "Flash (watched)", "FedAvg"]
    summary, picture, table, how, _, *rest = crossed_parts(world, done, tmp_path)
    assert summary.startswith("**FedAvg (watched) leads**: 80.0 ± 1.4 %. The next by validation data is Flash, 70.0 ±")
    assert summary.endswith("Of 3 others it is shown to be better than 3.")
    assert is_drawn(tmp_path / "w-curves.png")
    assert "(w-curves.png)" in picture
    head, *lines = [line for line in table.splitlines() if line.startswith("| ")]
    assert head == "| Method | Mean accuracy %, preset | Mean accuracy % | Traffic, Gbit |"
    assert lines[0] == "| FedAvg (watched) | – | 80.00 ± 1.41 | 2.50 ± 0.00 |"
    assert how == (
        "Trials of every method: 1 on the seeds 0, 44, nobody stopped early; the best of each once more on the new "
        "seeds 1000, 1001, 1002, 1003, which chose nothing: its row is of these."
    )
    measured = {trial.row: trial.values("mean") for trial in measured_trials(world, done) if trial.shown == ("tuned",)}
    assert measured == {row.name: row.by_seed("test/mean_accuracy") for row in rows}
    whole = "\n".join(rest)
    assert "| FedAvg (watched) - FedAvg | 4 | +30.0 | " in whole
    assert whole.count("FedAvg (watched) - Flash |") == 1  # with the leader, and not among what a variant does
    assert "| Flash (watched) - Flash | 4 | +0.0 | +0.0 to +0.0 | 1.000 | no difference shown |" in whole


def test_first_trials_have_a_column_of_their_own(tmp_path):
    world = World(name="w", title="A world", config=Path(__file__), kind="crossed", measures=("mean", "bits"),
                  variants={"alone": ()}, compared="alone")  # fmt: skip
    tried = [make_trial(str(n), "FedAvg", value) for n, value in enumerate((0.5, 0.8))]
    curves = {str(n): {"test/accuracy": [[value] * 10] * 2, "test/mean_accuracy": [[value] * 10] * 2}
              for n, value in enumerate((0.4, 0.7))}  # fmt: skip
    done = {"alone": load_study(make_study(tmp_path / "a", tried, curves=curves))}
    (table,) = [part for part in crossed_parts(world, done, tmp_path) if "| Method | Mean accuracy %, preset |" in part]
    assert "| FedAvg | 40.00 ± 0.00 | 70.00 ± 0.00 |" in table
    assert [trial.shown for trial in measured_trials(world, done)] == [("preset",), ("tuned",)]


def test_a_world_without_a_whole_trial_says_so(tmp_path):
    world = World(name="w", title="A world", config=Path(__file__), kind="crossed", variants={"alone": ()},
                  compared="alone")  # fmt: skip
    nobody = load_study(make_study(tmp_path / "a", [make_trial("0", "FedAvg", 0.1, status="diverged")]))
    assert crossed_parts(world, {"alone": nobody}, tmp_path) == ["No trial did all its rounds."]
