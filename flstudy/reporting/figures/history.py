"""How the search went: the best value so far, trial by trial."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flstudy.reporting.figures.style import DASHES, MARKERS, colour, new_figure, order, plain
from flstudy.reporting.load import StudyResults
from flstudy.reporting.selection import comparable, selection_metric, value_of
from flstudy.reporting.tables import percent


def history(results: StudyResults, ranked: tuple[str, ...] = ()) -> Figure | None:
    """Each trial that did all rounds as a point, and the best so far of its algorithm as a line; the axis counts the
    algorithm's own trials, so that equal searches are seen side by side."""
    metric, higher = selection_metric(results), results.objective[1]
    scale = 100 if percent(metric) else 1
    places = order(results, ranked)
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    for algorithm, place in places.items():
        own = [trial for trial in results.searched if trial.algorithm == algorithm]
        points = [
            (number, scale * value_of(results, trial))
            for number, trial in enumerate(own, start=1)
            if comparable(results, trial)
        ]
        if not points:
            continue
        at, values = np.array(points).T
        best = np.maximum.accumulate(values) if higher else np.minimum.accumulate(values)
        look: dict[str, Any] = {"color": colour(place), "zorder": 3}
        axes.step(
            [*at, len(own)],
            [*best, best[-1]],
            where="post",
            linestyle=DASHES[place % len(DASHES)],
            linewidth=1.9,
            label=algorithm,
            **look,
        )
        axes.plot(at, values, linestyle="none", marker=MARKERS[place % len(MARKERS)], markersize=4, alpha=0.55, **look)
    if not axes.lines:
        return None
    axes.set_xlabel("Trials of the algorithm", fontsize=12)
    axes.set_ylabel(f"{metric}{' (%)' if scale == 100 else ''}", fontsize=12)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=10, title="Best so far", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes.tick_params(labelsize=11)
    plain(axes)
    return figure
