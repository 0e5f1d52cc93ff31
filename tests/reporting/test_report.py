"""The report's text, its figure and its files."""

import io
import shlex

import matplotlib.image
import numpy as np
import pytest
import yaml
from rich.console import Console

from flstudy.reporting import write_report
from flstudy.reporting.ranking import rank
from flstudy.reporting.sections.ranking import recovery_rounds_text, result_cells
from flstudy.reporting.tables import chosen_values, mean_and_spread
from flstudy.study import load_study


def printed(written, width=100):
    out = io.StringIO()
    written.print(Console(file=out, width=width))
    return out.getvalue()


def markdown_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.slow
def test_the_table_has_the_numbers_of_the_curves(drifting):
    written = write_report(drifting)
    header, _, *body = markdown_rows(written.tables[0].markdown())
    drift = ["Before drift %", "Lowest after %", "Rounds to recovery"]
    assert header == ["#", "Algorithm", "Trial", "Chosen on %", *drift, "Final test %"]
    # std of two values that differ by 2 points: sqrt(2) = 1.4; by 10: 7.1; by 20: 14.1; by 6: 4.2. Flash's mean of
    # three evaluations is within 0.02 of its level before the drift from round 8 on, three rounds after it.
    assert body == [
        ["1", "Flash", "2", "89.0", "91.0 ± 1.4", "55.0 ± 7.1", "3.0 ± 0.0", "89.0 ± 1.4"],
        ["2", "FedAvg", "0", "71.0", "80.0 ± 0.0", "30.0 ± 14.1", "never", "73.0 ± 4.2"],
    ]
    assert markdown_rows(written.tables[1].markdown())[2:] == [
        ["Flash", "2", "lr 0.0316, tau 1e-05"],
        ["FedAvg", "0", "lr 0.1"],
    ]


@pytest.mark.slow
def test_the_terminal_shows_the_same_in_100_columns(drifting):
    text = printed(write_report(drifting))
    assert max(len(line) for line in text.splitlines() if str(drifting) not in line) <= 100
    for piece in ["55.0 ± 7.1", "80.0 ± 0.0", "lr 0.0316, tau 1e-05", "1 diverged, 1 failed", "flstudy ui"]:
        assert piece in text
    assert text.index("Flash") < text.index("FedAvg")


@pytest.mark.slow
def test_eight_algorithms_with_wide_numbers_still_fit(tmp_path, write_study, trial):
    names = ["FedAdaGrad", "FedAvgM", "FedAdam", "FedYogi", "FedProx", "Scaffold", "Flash", "FedAvg"]
    curve = np.array([[1.0] * 10, [0.0] * 10, [0.5] * 10])
    folder = write_study(
        tmp_path / "s",
        [trial(f"{10000 + i}", name) for i, name in enumerate(names)],
        curves={f"{10000 + i}": curve for i in range(8)},
        events=[(2, "drift")],
        seeds=(0, 44, 56),
    )
    text = printed(write_report(folder))
    assert max(len(line.rstrip()) for line in text.splitlines() if str(folder) not in line) <= 100
    assert text.count("50.0 ± 50.0") == 3 * 8


@pytest.mark.slow
def test_without_a_drift_its_columns_are_gone(drifting):
    (drifting / "events.json").unlink()
    written = write_report(drifting)
    assert markdown_rows(written.tables[0].markdown())[0] == [
        "#", "Algorithm", "Trial", "Chosen on %", "Final test %",
    ]  # fmt: skip
    assert not any("drift" in note for note in written.notes)


@pytest.mark.slow
def test_several_drifts_get_a_table_of_their_own(drifting):
    (drifting / "events.json").write_text('[{"round": 5, "label": "there"}, {"round": 9, "label": "back"}]')
    body = markdown_rows(write_report(drifting).tables[1].markdown())[2:]
    assert [row[:3] for row in body] == [
        ["5", "there", "Flash"], ["5", "there", "FedAvg"], ["9", "back", "Flash"], ["9", "back", "FedAvg"],
    ]  # fmt: skip


@pytest.mark.slow
def test_one_seed_has_no_spread(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0")], curves={"0": [[0.5] * 10]}, seeds=[7])
    assert markdown_rows(write_report(folder).summary_path.read_text())[2][-1] == "50.0"
    assert "One seed: no spread." in write_report(folder).summary_path.read_text()


def test_cells():
    assert mean_and_spread(np.array([0.5, 0.7]), 100) == "60.0 ± 14.1"
    assert mean_and_spread(np.array([3.0, np.nan, 5.0])) == "4.0 ± 1.4 (2/3)"
    assert mean_and_spread(np.array([np.nan])) == "–"
    assert recovery_rounds_text(np.array([np.nan, np.nan])) == "never"
    assert recovery_rounds_text(np.array([4.0, np.nan])) == "4.0 (1/2)"
    assert chosen_values({"algorithm": "Flash", "algorithm.lr": 0.031622, "population.participants": 5}) == (
        "lr 0.0316, population.participants 5"
    )
    assert chosen_values({}) == "–"


def test_a_loss_objective_is_not_shown_in_percent(drifting):
    text = (drifting / "study.yaml").read_text().replace("valid/accuracy", "valid/loss").replace("max", "min")
    (drifting / "study.yaml").write_text(text)
    cells = result_cells(rank(load_study(drifting)), "quick")
    assert cells.header[3] == "Chosen\non"
    assert [row[3] for row in cells.rows] == ["0.6", "0.89"]


@pytest.mark.slow
def test_files(drifting):
    written = write_report(drifting)
    assert written.summary_path == drifting / "report" / "summary.md"
    assert "![Accuracy by round, best trial of each algorithm](curves.png)" in written.summary_path.read_text()
    best = yaml.safe_load((drifting / "best" / "Flash.yaml").read_text())
    assert best["algorithm"] == {"class_path": "Flash", "init_args": {"lr": 0.0316227766, "tau": 1e-05}}
    assert "study" not in best
    assert set(written.best_paths) == {"Flash", "FedAvg"}


@pytest.mark.slow
def test_the_next_command_runs_the_best_trial(drifting):
    written = write_report(drifting)
    (_, browse), (purpose, again) = written.next_commands
    shown = printed(written, width=40)  # it is copied whole from the narrowest terminal
    assert f"{again}\n" in shown
    assert f"{written.page_path}\n" in shown
    assert browse == "flstudy ui"
    assert "Flash, trial 2" in purpose
    assert shlex.split(again) == ["flstudy", "run", str(drifting / "best" / "Flash.yaml")]


@pytest.mark.slow
def test_paths_are_told_as_seen_from_the_working_directory(drifting, monkeypatch):
    monkeypatch.chdir(drifting.parent.parent)
    written = write_report(drifting)
    assert written.next_commands[1][1].startswith("flstudy run studies/quick/best/Flash.yaml")
    assert "Curves: studies/quick/report/curves.png" in printed(written)


@pytest.mark.slow
def test_the_figure_shows_a_line_per_algorithm_and_the_drift(drifting):
    path = write_report(drifting).figure_path
    assert path == drifting / "report" / "curves.png"
    image = matplotlib.image.imread(path)
    assert image.shape[0] >= 800
    assert image.shape[1] >= 1500
    pixels = np.round(image[..., :3] * 255).astype(int)

    def share(colour):
        return (np.abs(pixels - colour).max(-1) <= 2).mean()

    assert share((255, 255, 255)) > 0.7
    assert share((0xD5, 0x5E, 0x00)) > 0.001  # the first line, Flash's
    assert share((0x00, 0x72, 0xB2)) > 0.001  # the second, FedAvg's
    assert share((0x00, 0x9E, 0x73)) == 0  # no third
    drift = (np.abs(pixels - 0x44).max(-1) <= 2).sum(0)  # dark grey pixels by column: the dashed line stands out
    assert drift.max() > 200


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 12])
def test_figures_of_one_and_of_many_algorithms(tmp_path, write_study, trial, count):
    rng = np.random.default_rng(0)
    folder = write_study(
        tmp_path / "s",
        [trial(str(i), f"Algorithm{i}") for i in range(count)],
        curves={str(i): rng.uniform(0, 1, (2, 10)) for i in range(count)},
        events=[(2, "a"), (3, "b"), (4, "b"), (9, "c")],
    )
    assert matplotlib.image.imread(write_report(folder).figure_path).std() > 0.05


def test_a_study_without_a_finished_trial_still_has_a_report(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0", status="pruned", rounds=3)])
    written = write_report(folder)
    assert written.figure_path is None
    assert written.tables == ()
    text = printed(written)
    assert "No trial of study s has done all its 10 rounds: no table yet." in text
    assert "1 trial: 1 pruned." in text
    assert "flstudy ui" in text


@pytest.mark.slow
def test_a_later_report_leaves_nothing_of_an_earlier_one(drifting):
    write_report(drifting)
    lines = (drifting / "trials.jsonl").read_text().splitlines(keepends=True)
    (drifting / "trials.jsonl").write_text("".join(line for line in lines if '"algorithm": "Flash"' not in line))
    write_report(drifting)
    assert [path.name for path in (drifting / "best").iterdir()] == ["FedAvg.yaml"]


@pytest.mark.slow
def test_markup_in_names_is_text(tmp_path, write_study, trial):
    overrides = {"algorithm": "A", "task.note": "[red]|x[/red]"}
    folder = write_study(tmp_path / "s", [trial("0", "A", overrides=overrides)], curves={"0": [[0.5] * 10] * 2})
    written = write_report(folder)
    assert "[red]|x[/red]" in printed(written)
    assert r"task.note [red]\|x[/red]" in written.summary_path.read_text()
