"""Methods beside each other: none hides another, and each has its colour everywhere."""

import itertools

import numpy as np
import pytest

import flstudy.algorithms
from flstudy.reporting.looks import HOMES, METHOD_COLOURS, looks_of
from flstudy.reporting.multiples import BEHIND, CROWD, Line, line_figure, same_lines, thinned
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.pareto import front_figure, pareto_front
from flstudy.reporting.sections.search import history_figure, slice_figure, stands_aside
from flstudy.study import load_study

MANY = HOMES[:18]
PANELS = HOMES[: CROWD + 2]
X = np.arange(1, 11)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Two methods more than one panel shows, of two trials each, with two objectives; the first two are the same."""
    from tests.reporting.conftest import make_study, make_trial

    trials, curves = [], {}
    for place, name in enumerate(PANELS):
        for again in range(2):
            number, level = str(2 * place + again), 0.9 - 0.02 * max(place, 1) - 0.1 * again
            chosen = {"algorithm": name, "algorithm.lr": 0.1 / (1 + again), "algorithm.momentum": [0.0, 0.9][again]}
            values = [level, 1e6 * (1 + place % 5)]
            trials.append(make_trial(number, name, level, overrides=chosen, values=values))
            curves[number] = np.full((2, 10), level) + np.array([[0.01], [-0.01]])
    study = {
        "objective": {"metric": "valid/accuracy", "mode": "max"},
        "objectives": [{"metric": "traffic/bits", "mode": "min"}],
        "search": {
            "algorithm": {"choice": list(PANELS)},
            "algorithm.lr": {"loguniform": [1e-3, 1.0]},
            "algorithm.momentum": {"choice": [0.0, 0.9]},
        },
    }
    folder = tmp_path_factory.mktemp("home") / "studies" / "crowd"
    return Findings(results=load_study(make_study(folder, trials, curves=curves, events=[(5, "a drift")], study=study)))


def test_methods_of_papers_have_colours_of_their_own():
    assert len(set(HOMES)) == len(HOMES) <= len(METHOD_COLOURS) == len(set(METHOD_COLOURS))
    algorithms = [name for name in HOMES if not name.startswith("Master-FL-")]  # a controller over another one
    assert all(issubclass(getattr(flstudy.algorithms, name), flstudy.algorithms.Algorithm) for name in algorithms)


def test_a_colour_does_not_depend_on_what_else_is_there():
    everywhere = [looks_of(names) for names in (MANY, MANY[::-1], ["Flash", "FedAvg", "Mine"], ["Mine", "Flash"])]
    for looks, other in itertools.combinations(everywhere, 2):
        assert all(looks[name].colour == other[name].colour for name in set(looks) & set(other))
    assert len({look.colour for look in looks_of([*MANY, *(f"Own{i}" for i in range(6))]).values()}) == 24


def test_few_lines_are_told_apart_also_where_they_are_the_same():
    lines = {name: Line(X, np.full((2, 10), 0.5)) for name in MANY[:CROWD]}
    looks = looks_of(lines)
    assert len({(look.colour, look.marker) for look in looks.values()}) == CROWD
    assert len({str(look.dashes) for look in list(looks.values())[:4]}) == 4
    (axes,) = line_figure(lines, looks, xlabel="x", ylabel="y").axes
    legend, panel = axes.get_legend(), axes.get_window_extent()
    axes.figure.draw_without_rendering()
    assert legend.get_window_extent().x0 >= panel.x1 - 1  # beside the data, not over them
    assert same_lines(lines) == [tuple(MANY[:CROWD])]


@pytest.mark.slow
def test_each_of_many_methods_has_a_panel_in_which_it_stands_out(crowd):
    for figure in (
        accuracy_figure(crowd),
        history_figure(crowd),
    ):
        assert [axes.get_title(loc="left") for axes in figure.axes] == [row.algorithm for row in crowd.ranking.rows]
        for axes, row in zip(figure.axes, crowd.ranking.rows, strict=True):
            colours = {line.get_color() for line in axes.lines}
            assert crowd.looks[row.algorithm].colour in colours
            others = {look.colour for name, look in crowd.looks.items() if name != row.algorithm}
            assert not others & colours
            assert BEHIND.colour in colours
            assert axes.get_legend() is None


@pytest.mark.slow
def test_trials_of_many_methods_have_panels_of_their_own(crowd):
    slices = slice_figure(crowd)
    assert len(slices.axes) == 2 * len(PANELS)  # a learning rate and a momentum of each
    assert not stands_aside(crowd)
    at = {value for axes in slices.axes[1::2] for drawn in axes.collections for value in drawn.get_offsets()[:, 0]}
    assert at == {0.0, 1.0}  # the options' own places
    front = front_figure(pareto_front(crowd.results), crowd.looks)
    assert [axes.get_title(loc="left") for axes in front.axes] == list(crowd.looks)


def test_options_that_stand_aside_are_told(searched):
    findings = Findings(results=load_study(searched))
    assert not stands_aside(findings)  # FedAvg alone has a momentum
    assert max(len(axes.collections) for axes in slice_figure(findings).axes) == 3


def test_thinning_keeps_ends_and_extremes():
    values = np.sin(np.linspace(0, 40, 5000))
    values[1234], values[3210] = -3.0, 4.0
    indices = thinned(values, 200)
    assert len(indices) <= 202
    assert {0, 1234, 3210, 4999} <= set(indices)
    assert (np.diff(indices) > 0).all()
    assert thinned(values[:50], 200).tolist() == list(range(50))
