"""Algorithms over several studies."""

import numpy as np
from matplotlib.figure import Figure

from flstudy.reporting.comparison import Worlds
from flstudy.reporting.figures.style import MARKERS, colour, new_figure, plain
from flstudy.reporting.tables import percent


def worlds_figure(worlds: Worlds) -> Figure | None:
    """Mean and standard deviation over seeds of each algorithm in each study, side by side."""
    ranked = [standing.algorithm for standing in worlds.standings]
    names = list(dict.fromkeys([*ranked, *(name for comparison in worlds.comparisons for name in comparison.values)]))
    if not names:
        return None
    scale = 100 if percent(worlds.metric) else 1
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    for place, name in enumerate(names):
        shift = 0.6 * ((place + 0.5) / len(names) - 0.5)
        at, means, spreads = [], [], []
        for world, comparison in enumerate(worlds.comparisons):
            values = scale * np.array(list(comparison.values.get(name, {}).values()))
            values = values[np.isfinite(values)]
            if values.size:
                at.append(world + shift)
                means.append(float(values.mean()))
                spreads.append(float(values.std(ddof=1)) if values.size > 1 else 0.0)
        marker = MARKERS[place % len(MARKERS)]
        axes.errorbar(at, means, spreads, fmt=marker, color=colour(place), capsize=3, markersize=7, label=name)
    axes.set_xticks(range(len(worlds.names)), worlds.names, fontsize=11)
    axes.set_xlim(-0.5, len(worlds.names) - 0.5)
    axes.set_ylabel(f"{worlds.metric}{' (%)' if scale == 100 else ''}", fontsize=12)
    axes.legend(frameon=False, fontsize=10, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axes.tick_params(labelsize=11)
    plain(axes)
    axes.grid(visible=False, axis="x")
    return figure
