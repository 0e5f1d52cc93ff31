"""What is drawn: read from the figures' own axes."""

import xml.etree.ElementTree as ElementTree

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest

from flstudy.reporting import figures, load_study
from flstudy.reporting.comparison import compare_worlds
from flstudy.reporting.figures.style import COLOURS, order
from flstudy.reporting.findings import find
from flstudy.reporting.pareto import front
from flstudy.reporting.ranking import rank
from flstudy.reporting.sensitivity import sensitivities

RANKED = ("Flash", "FedYogi", "FedAvg")


@pytest.fixture(scope="module")
def results(searched):
    return load_study(searched)


def test_curves_are_the_means_with_the_drift_marked(results):
    ranking = rank(results)
    (axes,) = figures.curves(ranking, results.events).axes
    drawn = {line.get_label().split("\n")[0]: line for line in axes.lines if not line.get_label().startswith("_")}
    assert list(drawn) == list(RANKED)
    np.testing.assert_allclose(drawn["Flash"].get_ydata(), 100 * ranking.rows[0].accuracy.mean(0))
    assert drawn["Flash"].get_color() == COLOURS[0]
    marks = [line.get_xdata()[0] for line in axes.lines if line.get_label().startswith("_")]
    assert marks == [5]
    assert [text.get_text() for text in axes.texts] == ["sudden drift, round 5"]
    assert axes.get_legend().get_title().get_text().endswith("over 5 seeds")  # the new ones


def test_colours_are_the_same_in_every_figure(results):
    assert order(results, RANKED) == {"Flash": 0, "FedYogi": 1, "FedAvg": 2}
    (axes,) = figures.history(results, RANKED).axes
    colours = {line.get_label(): line.get_color() for line in axes.lines if not line.get_label().startswith("_")}
    assert colours == dict(zip(RANKED, COLOURS, strict=False))


def test_history_is_the_best_so_far_without_what_never_leads(results):
    (axes,) = figures.history(results, RANKED).axes
    line = next(line for line in axes.lines if line.get_label() == "FedAvg")
    own = [t for t in results.searched if t.algorithm == "FedAvg" and t.status == "finished" and t.feasible]
    expected = np.maximum.accumulate([100 * t.objective for t in own])
    np.testing.assert_allclose(line.get_ydata(), [*expected, expected[-1]])
    assert line.get_xdata()[-1] == 13  # all its trials, the diverged one included
    assert max(line.get_ydata()) < 99


def test_history_of_a_loss_falls(tmp_path, write_study, trial):
    study = {"objective": {"metric": "valid/loss", "mode": "min"}}
    trials = [trial(str(i), "A", value) for i, value in enumerate([3.0, 1.0, 2.0])]
    (axes,) = figures.history(load_study(write_study(tmp_path / "s", trials, study=study))).axes
    assert list(axes.lines[0].get_ydata()) == [3, 1, 1, 1]


def test_slices_have_a_panel_per_key_and_the_scale_of_its_domain(results):
    figure = figures.slices(results, RANKED)
    panels = {axes.get_xlabel(): axes for axes in figure.axes if axes.get_visible()}
    assert set(panels) == {"lr", "tau", "momentum"}
    assert panels["lr"].get_xscale() == "log"
    assert panels["momentum"].get_xscale() == "linear"
    assert [text.get_text() for text in panels["momentum"].get_xticklabels()] == ["0.0", "0.5", "0.9"]
    points = [len(drawn.get_offsets()) for drawn in panels["lr"].collections]
    assert points == [11, 11, 11]  # trials that did all rounds within the constraints, Flash first
    assert len(panels["tau"].collections) == 2  # FedAvg has none


def test_parallel_coordinates_go_through_the_values(results):
    figure = figures.parallel(results, "Flash")
    (axes,) = figure.axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]  # lr, tau, result
    assert len(lines) == 11
    best = lines[-1]
    assert best.get_linewidth() > lines[0].get_linewidth()
    own = max(
        (t for t in results.searched if t.algorithm == "Flash" and t.status == "finished"), key=lambda t: t.objective
    )
    place = (np.log10(own.overrides["algorithm.lr"]) + 3) / 3
    assert best.get_ydata()[0] == pytest.approx(place)
    assert best.get_ydata()[-1] == pytest.approx(1)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["lr (log)", "tau (log)", "valid/accuracy (%)"]


def test_importances_have_a_panel_per_algorithm(results):
    found = sensitivities(results)
    figure = figures.importances(found, order(results, RANKED))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["FedAvg", "FedYogi", "Flash"]
    bars = [bar.get_width() for bar in panels[2].patches]
    assert bars == pytest.approx(sorted(100 * share for share in found[2].importances.values()))


def test_the_front_is_drawn_large_and_connected(results):
    found = front(results)
    (axes,) = figures.front_figure(found, order(results, RANKED)).axes
    large = sum(len(drawn.get_offsets()) for drawn in axes.collections if drawn.get_sizes()[0] > 40)
    small = sum(len(drawn.get_offsets()) for drawn in axes.collections if drawn.get_sizes()[0] < 40)
    assert (large, large + small) == (len(found.best), len(found.trials))
    (line,) = axes.lines
    assert len(line.get_xdata()) == len(found.best)
    assert axes.get_ylabel() == "valid/accuracy (%), more is better"


def test_worlds_beside_each_other(searched, results):
    found = find(results)
    worlds = compare_worlds([(found.results, found.ranking)] * 2)
    (axes,) = figures.worlds_figure(worlds).axes
    assert len(axes.containers) == 3
    np.testing.assert_allclose(axes.containers[0].lines[0].get_ydata()[0], 100 * found.ranking.rows[0].final.mean())


def test_nothing_to_show_is_no_figure(tmp_path, write_study, trial):
    search = {"algorithm.lr": {"loguniform": [1e-3, 1]}}
    empty = load_study(write_study(tmp_path / "none", [], study={"search": search}))
    early = load_study(
        write_study(tmp_path / "early", [trial("0", status="pruned", rounds=3)], study={"search": search})
    )
    for results in (empty, early):
        assert figures.curves(rank(results), ()) is None
        assert figures.history(results) is None
        assert figures.slices(results) is None
        assert figures.parallel(results, "FedAvg") is None
        assert figures.importances(sensitivities(results), {}) is None


def test_svg_is_one_element_the_same_every_time(results, tmp_path):
    def draw():
        return figures.to_svg(figures.history(results, RANKED))

    text = draw()
    assert text == draw()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("}svg")
    words = {element.text for element in root.iter() if element.tag.endswith("}text")}
    assert {"Flash", "Best so far", "Trials of the algorithm"} <= words  # text, not outlines
    assert "<metadata" not in text
    png = figures.to_png(figures.history(results, RANKED), tmp_path / "deep" / "history.png")
    assert matplotlib.image.imread(png).std() > 0.05


def test_a_sweep_has_every_run_of_every_algorithm(tmp_path, trial, write_study):
    rising = np.linspace(0.1, 0.9, 10)[None]
    made = {str(k): {"valid/accuracy": rising * (k % 3 + 1) / 3, "test/accuracy": rising} for k in range(6)}
    made["5"]["valid/accuracy"] = np.full((1, 10), np.nan)  # diverged
    trials = [trial(name, algorithm="FedAvg" if int(name) < 3 else "Flash") for name in made]
    figure = figures.sweep(load_study(write_study(tmp_path / "s", trials, curves=made, seeds=[0])))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["FedAvg, 3 trials", "Flash, 3 trials"]
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines]
    assert ends == sorted(ends)  # the best is drawn last, over the others
    lightness = [sum(matplotlib.colors.to_rgb(line.get_color())) for line in figure.axes[0].lines]
    assert lightness == sorted(lightness)
    alone = write_study(tmp_path / "t", [trial("0")], curves={"0": {"valid/accuracy": np.array([[0.5]])}}, seeds=[0])
    assert figures.sweep(load_study(alone)) is None


def test_a_sweep_is_ranked_by_its_final_losses(tmp_path, trial, write_study):
    losses = {"0": 0.3, "1": 2.0, "2": 0.9}  # the last has the second accuracy, and the first one the least
    curves = {
        name: {"valid/accuracy": np.linspace(0.1, end, 10)[None]}
        for name, end in zip("012", (0.5, 0.9, 0.7), strict=True)
    }
    trials = [trial(name, metrics={"valid/loss": loss, "test/loss": loss}) for name, loss in losses.items()]
    (axes,) = figures.sweep(load_study(write_study(tmp_path / "s", trials, curves=curves, seeds=[0]))).axes
    drawn = {line.get_ydata()[-1]: sum(matplotlib.colors.to_rgb(line.get_color())) for line in axes.lines}
    assert sorted(drawn, key=drawn.get) == pytest.approx([90, 70, 50])  # dark to light
