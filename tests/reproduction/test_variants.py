"""A world whose rows are variants, each with a study of its own: its table beside the paper's figures."""

from pathlib import Path

import numpy as np

from flstudy.reproduction.pages import variant_parts
from flstudy.reproduction.plan import Paper, PublishedValue, World
from flstudy.study import load_study

from ..reporting.conftest import is_drawn, make_study, make_trial


def study(folder, values, mean):
    """One of FedOmd's, whose trials have these validation values; the mean accuracy of each is ``mean`` per trial."""
    trials = [make_trial(str(n), "FedOmd", value) for n, value in enumerate(values)]
    curves = {
        str(n): {"test/accuracy": [[accuracy] * 10] * 2, "test/loss": [[1.0] * 10] * 2,
                 "test/mean_accuracy": [[np.nan] * 9 + [accuracy]] * 2}
        for n, accuracy in enumerate(mean)
    }  # fmt: skip
    return load_study(make_study(folder, trials, curves=curves, events=[(5, "drift to concept 1")]))


def test_a_row_for_each_variant_the_best_first(tmp_path):
    names = {"Alone": (), "Under a master": (), "Nobody": ()}
    world = World(name="w", title="A world", config=Path(__file__), kind="variants", measures=("mean", "delay"),
                  variants=names, compared="Alone")  # fmt: skip
    paper = {("w", "Alone", "mean"): PublishedValue(0.5, None, None)}
    plan = Paper(name="p", folder=tmp_path, title="P", worlds=(world,), published=paper)
    done = {
        "Alone": study(tmp_path / "a", [0.6, 0.7], [0.9, 0.65]),  # chosen on validation data, not on test data
        "Under a master": study(tmp_path / "b", [0.6, 0.1], [0.8, 0.1]),
        "Nobody": load_study(make_study(tmp_path / "c", [make_trial("0", "FedOmd", 0.1, status="diverged")])),
    }
    table, chosen, lost, *pictures = variant_parts(plan, world, done, tmp_path)
    head, *rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert head.strip("| ").split(" | ") == [
        "Method", "Mean accuracy %, paper", "Mean accuracy %", "Rounds to detection"
    ]  # fmt: skip
    assert [row.strip("| ").split(" | ")[:3] for row in rows] == [
        ["Under a master", "–", "80.00 ± 0.00"], ["Alone", "50.00", "65.00 ± 0.00"]
    ]  # fmt: skip
    assert "Under a master" in chosen
    assert lost == "No trial did all its rounds: Nobody."
    assert len(pictures) == 2
    assert all(is_drawn(tmp_path / f"w-{kind}.png") for kind in ("curves", "losses"))
