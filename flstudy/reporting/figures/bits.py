"""Accuracy against what was sent for it (FedAda², Lee et al. 2024, Fig. 2)."""

import numpy as np
from matplotlib.figure import Figure

from flstudy.reporting.bits import Bits
from flstudy.reporting.figures.style import DASHES, colour, new_figure, plain
from flstudy.reporting.tables import percent


def bits_figure(found: Bits | None, places: dict[str, int]) -> Figure | None:
    """A line for the best trial of each algorithm, mean over seeds with a band of one standard deviation, by the bits
    sent down and up so far, in rounds of FedAvg; each ends where its rounds do."""
    if found is None:
        return None
    figure = new_figure(4.4)
    axes = figure.add_subplot()
    scale = 100 if percent(found.metric) else 1
    for line in found.lines:
        place = places.get(line.algorithm, 0)
        sent, values = line.sent.mean(0), scale * line.values
        look = {"color": colour(place), "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(sent, values.mean(0), linewidth=1.9, label=line.algorithm, **look)  # type: ignore[arg-type]
        if len(values) > 1:
            deviation = values.std(0, ddof=1)
            low, high = values.mean(0) - deviation, values.mean(0) + deviation
            axes.fill_between(sent, low, high, color=colour(place), alpha=0.16, linewidth=0)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("Bits sent, down and up, in rounds of FedAvg", fontsize=12)
    axes.set_ylabel(f"{found.metric}{' (%)' if scale == 100 else ''}", fontsize=12)
    ends = [float(np.nan_to_num(line.values.mean(0)[-1], nan=-1.0)) for line in found.lines]
    handles, labels = axes.get_legend_handles_labels()
    order = np.argsort(ends)[::-1]  # as the lines end, top to bottom
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=10)
    plain(axes)
    return figure
