"""Which hyper-parameters matter, algorithm by algorithm."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from flstudy.reporting.figures.style import colour, new_figure, plain
from flstudy.reporting.sensitivity import METHOD, Sensitivity

COLUMNS = 3


def importances(found: Sequence[Sensitivity], places: dict[str, int]) -> Figure | None:
    """A panel of bars per algorithm that has enough trials, the most important on top."""
    told = [one for one in found if one.importances]
    if not told:
        return None
    columns = min(COLUMNS, len(told))
    rows = math.ceil(len(told) / columns)
    longest = max(len(one.importances) for one in told)
    figure = new_figure(rows * (1.1 + 0.28 * longest))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    for axes, one in zip(panels, told, strict=False):
        names = [key.removeprefix("algorithm.") for key in one.importances][::-1]
        shares = [100 * share for share in one.importances.values()][::-1]
        axes.barh(names, shares, color=colour(places.get(one.algorithm, 0)), height=0.62)
        for place, share in enumerate(shares):
            axes.annotate(f"{share:.0f}", (share, place), (3, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_title(one.algorithm, fontsize=12, loc="left")
        axes.set_xlim(0, 112)
        axes.set_xticks([0, 50, 100])
        axes.tick_params(labelsize=10)
        plain(axes)
        axes.grid(visible=False, axis="y")
    for axes in list(panels):  # the places that are left over
        axes.set_visible(False)
    figure.supxlabel(f"Share of the importance ({METHOD}, %)", fontsize=11)
    return figure
