"""The Pareto front: what is gained against what is paid."""

import itertools
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.reporting.figures.style import GREY, MARKERS, colour, new_figure, plain
from flstudy.reporting.pareto import Front
from flstudy.reporting.tables import percent


def front_figure(front: Front, places: dict[str, int]) -> Figure | None:
    """A panel for each pair of objectives: all trials, those of the front large and, of two objectives, connected."""
    pairs = list(itertools.combinations(range(len(front.objectives)), 2))
    if not pairs:
        return None
    figure = new_figure(4.4, width=9.0 if len(pairs) < 3 else 12.0)
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    for axes, (one, other) in zip(panels, pairs, strict=True):
        _panel(axes, front, one, other, places)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=8, frameon=False, fontsize=10)
    return figure


def _panel(axes: Axes, front: Front, one: int, other: int, places: dict[str, int]) -> None:
    scales = [100 if percent(metric) else 1 for metric, _ in front.objectives]
    values = np.array([trial.values for trial in front.trials]) * scales
    on = np.array(front.on_front)
    for algorithm in sorted({trial.algorithm for trial in front.trials}, key=lambda name: places.get(name, 0)):
        place = places.get(algorithm, 0)
        own = np.array([trial.algorithm == algorithm for trial in front.trials])
        look: dict[str, Any] = {"color": colour(place), "marker": MARKERS[place % len(MARKERS)], "linewidths": 0}
        beaten, best = values[own & ~on], values[own & on]
        axes.scatter(beaten[:, other], beaten[:, one], s=16, alpha=0.4, **look)
        axes.scatter(best[:, other], best[:, one], s=58, label=algorithm, zorder=3, **look)
    if len(front.objectives) == 2:  # with more, a pair's panel shows the shadow of a surface
        line = values[on][np.argsort(values[on][:, other])]
        # Whoever asks for so much of the one gets so much of the other.
        where: Literal["pre", "post"] = "pre" if front.objectives[other][1] else "post"
        axes.step(line[:, other], line[:, one], where=where, color=GREY, linewidth=1.0, zorder=2)
    for axis, index in ((axes.xaxis, other), (axes.yaxis, one)):
        metric, higher = front.objectives[index]
        unit = " (%)" if scales[index] == 100 else ""
        axis.set_label_text(f"{metric}{unit}, {'more' if higher else 'less'} is better", fontsize=11)
    if (values[:, other] > 0).all() and values[:, other].max() > 30 * values[:, other].min():
        axes.set_xscale("log")
    axes.tick_params(labelsize=10)
    plain(axes)
