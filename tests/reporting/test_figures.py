"""What is drawn: read from the figures' own axes."""

import xml.etree.ElementTree as ElementTree

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.pareto import front_figure, pareto_front
from flstudy.reporting.sections.search import history_figure, parallel_figure, slice_figure
from flstudy.reporting.sections.sensitivity import importance_figure, sensitivities, sweep_figure
from flstudy.reporting.sections.standings import compare_studies, standings_figure
from flstudy.reporting.style import to_png, to_svg
from flstudy.study import load_study

RANKED = ("Flash", "FedYogi", "FedAvg")


@pytest.fixture(scope="module")
def searched_study(searched):
    return Findings(results=load_study(searched))


def findings(folder):
    return Findings(results=load_study(folder))


def test_curves_are_the_means_with_the_drift_marked(searched_study):
    ranking = searched_study.ranking
    (axes,) = accuracy_figure(searched_study).axes
    drawn = {line.get_label().split("\n")[0]: line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(drawn) == list(RANKED)
    np.testing.assert_allclose(drawn["Flash"].get_ydata(), 100 * ranking.rows[0].accuracy.mean(0))
    assert drawn["Flash"].get_color() == searched_study.looks["Flash"].colour
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_label().startswith("_")]
    assert marks == [5]
    assert [text.get_text() for text in axes.texts] == ["sudden drift, round 5"]
    assert axes.get_legend().get_title().get_text().endswith("over 5 seeds")  # the new ones


def test_colours_are_the_same_in_every_figure(searched_study):
    assert list(searched_study.looks) == list(RANKED)
    (axes,) = history_figure(searched_study).axes
    colours = {line.get_label(): line.get_color() for line in axes.lines if not line.get_label().startswith("_")}
    assert colours == {name: searched_study.looks[name].colour for name in RANKED}


def test_history_is_the_best_so_far_without_what_never_leads(searched_study):
    (axes,) = history_figure(searched_study).axes
    line = next(line for line in axes.lines if line.get_label() == "FedAvg")
    trials = [
        t for t in searched_study.results.searched if t.algorithm == "FedAvg" and t.status == "finished" and t.feasible
    ]
    expected = np.maximum.accumulate([100 * t.objective for t in trials])
    np.testing.assert_allclose(line.get_ydata(), [*expected, expected[-1]])
    assert line.get_xdata()[-1] == 13  # all its trials, the diverged one included
    assert max(line.get_ydata()) < 99


def test_history_of_a_loss_falls(tmp_path, write_study, trial):
    study = {"objective": {"metric": "valid/loss", "mode": "min"}}
    trials = [trial(str(i), "A", value) for i, value in enumerate([3.0, 1.0, 2.0])]
    (axes,) = history_figure(findings(write_study(tmp_path / "s", trials, study=study))).axes
    assert list(axes.lines[0].get_ydata()) == [3, 1, 1, 1]


def test_slices_have_a_panel_per_key_and_the_scale_of_its_domain(searched_study):
    figure = slice_figure(searched_study)
    panels = {axes.get_xlabel(): axes for axes in figure.axes if axes.get_visible()}
    assert set(panels) == {"lr", "tau", "momentum"}
    assert panels["lr"].get_xscale() == "log"
    assert panels["momentum"].get_xscale() == "linear"
    assert [text.get_text() for text in panels["momentum"].get_xticklabels()] == ["0.0", "0.5", "0.9"]
    points = [len(drawn.get_offsets()) for drawn in panels["lr"].collections]
    assert points == [11, 11, 11]  # trials that did all rounds within the constraints, Flash first
    assert len(panels["tau"].collections) == 2  # FedAvg has none


def test_parallel_coordinates_go_through_the_values(searched_study):
    figure = parallel_figure(searched_study.results, "Flash")
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]  # lr, tau, result
    assert len(lines) == 11
    best = lines[-1]
    assert best.get_linewidth() > lines[0].get_linewidth()
    best_trial = max(
        (t for t in searched_study.results.searched if t.algorithm == "Flash" and t.status == "finished"),
        key=lambda t: t.objective,
    )
    place = (np.log10(best_trial.overrides["algorithm.lr"]) + 3) / 3
    assert best.get_ydata()[0] == pytest.approx(place)
    assert best.get_ydata()[-1] == pytest.approx(1)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["lr (log)", "tau (log)", "Accuracy (validation), %"]


def test_importances_have_a_panel_per_algorithm(searched_study):
    figure = importance_figure(searched_study)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == list(RANKED)
    bars = [bar.get_width() for bar in panels[0].patches]
    assert bars == pytest.approx(sorted(100 * share for share in sensitivities(searched_study)[0].importances.values()))


def test_the_front_is_drawn_large_and_connected(searched_study):
    front = pareto_front(searched_study.results)
    (axes,) = front_figure(front, searched_study.looks).axes
    large = sum(len(drawn.get_offsets()) for drawn in axes.collections if drawn.get_sizes()[0] > 40)
    small = sum(len(drawn.get_offsets()) for drawn in axes.collections if drawn.get_sizes()[0] < 40)
    assert (large, large + small) == (len(front.best), len(front.trials))
    (line,) = axes.lines
    assert len(line.get_xdata()) == len(front.best)
    assert axes.get_ylabel() == "Accuracy (validation), %, more is better"


def test_studies_beside_each_other(searched_study):
    panels = standings_figure(compare_studies([searched_study] * 2)).axes
    assert [len(axes.containers) for axes in panels] == [3, 3]
    (point,) = panels[0].containers[0].lines[0].get_xdata()
    assert point == pytest.approx(100 * searched_study.ranking.rows[0].final.mean())
    assert [text.get_text() for text in panels[0].get_yticklabels()] == list(RANKED)
    assert [line.get_ydata()[0] for line in (bar.lines[0] for bar in panels[0].containers)] == [0, 1, 2]  # not moved


def test_nothing_to_show_is_no_figure(tmp_path, write_study, trial):
    search = {"algorithm.lr": {"loguniform": [1e-3, 1]}}
    empty = findings(write_study(tmp_path / "none", [], study={"search": search}))
    early = findings(write_study(tmp_path / "early", [trial("0", status="pruned", rounds=3)], study={"search": search}))
    for study in (empty, early):
        assert accuracy_figure(study) is None
        assert history_figure(study) is None
        assert slice_figure(study) is None
        assert parallel_figure(study.results, "FedAvg") is None
        assert importance_figure(study) is None


@pytest.mark.slow
def test_svg_is_one_element_the_same_every_time(searched_study, tmp_path):
    def draw():
        return to_svg(history_figure(searched_study))

    text = draw()
    assert text == draw()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("}svg")
    words = {element.text for element in root.iter() if element.tag.endswith("}text")}
    assert {"Flash", "Best so far", "Trials of the algorithm"} <= words  # text, not outlines
    assert "<metadata" not in text
    png = to_png(history_figure(searched_study), tmp_path / "deep" / "history.png")
    assert matplotlib.image.imread(png).std() > 0.05


def test_a_sweep_has_every_run_of_every_algorithm(tmp_path, trial, write_study):
    rising = np.linspace(0.1, 0.9, 10)[None]
    curves = {str(k): {"valid/accuracy": rising * (k % 3 + 1) / 3, "test/accuracy": rising} for k in range(6)}
    curves["5"]["valid/accuracy"] = np.full((1, 10), np.nan)  # diverged
    trials = [trial(name, algorithm="FedAvg" if int(name) < 3 else "Flash") for name in curves]
    figure = sweep_figure(findings(write_study(tmp_path / "s", trials, curves=curves, seeds=[0])))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["FedAvg, 3 trials", "Flash, 3 trials"]
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines]
    assert ends == sorted(ends)  # the best is drawn last, over the others
    lightness = [sum(matplotlib.colors.to_rgb(line.get_color())) for line in figure.axes[0].lines]
    assert lightness == sorted(lightness)
    alone = write_study(tmp_path / "t", [trial("0")], curves={"0": {"valid/accuracy": np.array([[0.5]])}}, seeds=[0])
    assert sweep_figure(findings(alone)) is None


def test_a_sweep_is_ranked_by_its_final_losses(tmp_path, trial, write_study):
    losses = {"0": 0.3, "1": 2.0, "2": 0.9}  # the last has the second accuracy, and the first one the least
    curves = {
        name: {"valid/accuracy": np.linspace(0.1, end, 10)[None]}
        for name, end in zip("012", (0.5, 0.9, 0.7), strict=True)
    }
    trials = [trial(name, metrics={"valid/loss": loss, "test/loss": loss}) for name, loss in losses.items()]
    (axes,) = sweep_figure(findings(write_study(tmp_path / "s", trials, curves=curves, seeds=[0]))).axes
    drawn = {line.get_ydata()[-1]: sum(matplotlib.colors.to_rgb(line.get_color())) for line in axes.lines}
    assert sorted(drawn, key=drawn.get) == pytest.approx([90, 70, 50])  # dark to light
