"""Figures of several methods: a few in one panel with their names beside it, many in a panel each, with all others in
grey behind, so that none hides another."""

import itertools
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.escaping import for_figure
from flstudy.reporting.style import Look, as_lines_end, draw_mean, finish, legend_beside, new_panels

CROWD = 6  # largest number of methods in one panel
COLUMNS = 3
BEHIND = Look("#cfcfcf", "-", "o")  # look of the other methods in a method's panel
THIN = 60  # points of a grey line
SAME = 1e-9  # largest difference of means that are the same
LONG = 64  # characters of a title above a panel with names beside it


class Line(NamedTuple):
    """Values of one method's replicas along an axis."""

    x: NDArray[Any]  # [T]
    values: NDArray[np.float64]  # [S, T]
    note: str = ""  # a number shown below its name
    errors: NDArray[np.float64] | None = None  # [S, T] standard errors of values measured on a panel of devices


Draw = Callable[[Axes, str, Look], None]
"""Function that draws one method in a panel; the look is `BEHIND` in another method's panel."""


def method_figure(looks: Mapping[str, Look], draw: Draw, *, height: float, title: str = "", **labels: str) -> Figure:
    """Return the figure with one panel of ``height`` inches for few methods, without a legend, or with a panel for each
    of many; ``labels`` are those of the axes."""
    if len(looks) <= CROWD:
        figure, (axes,) = new_panels(1, 1, height)
        for name, look in looks.items():
            draw(axes, name, look)
        axes.set_title("\n".join(textwrap.wrap(for_figure(title), LONG)), fontsize=13, loc="left")
        finish(axes, 11, 12, **labels)
        return figure
    figure, panels = new_panels(len(looks), COLUMNS, 1.85, 0.5, sharex=True, sharey=True)
    for place, (axes, method) in enumerate(zip(panels, looks, strict=True)):
        for name in looks:
            if name != method:
                draw(axes, name, BEHIND)
        draw(axes, method, looks[method]._replace(dashes="-"))
        axes.set_title(method, fontsize=10, loc="left", color=looks[method].colour, fontweight="bold")
        axes.tick_params(labelbottom=place + COLUMNS >= len(panels))  # also where the row below is not full
        finish(axes, 9)
    figure.supxlabel(labels.get("xlabel", ""), fontsize=11)
    figure.supylabel(for_figure(labels.get("ylabel", "")), fontsize=11)
    if title:
        figure.suptitle(for_figure(title), fontsize=12, x=0.01, ha="left")
    return figure


def line_figure(
    lines: Mapping[str, Line],
    looks: Mapping[str, Look],
    *,
    height: float = 4.4,
    band: bool = True,
    heading: str = "",
    on_axes: Callable[[Axes], None] = lambda axes: None,
    **labels: str,
) -> Figure:
    """Return the figure of means over replicas with bands of one standard deviation. Few lines have their names in a
    legend beside the panel, in the order of their last values, below its ``heading``; ``on_axes`` adds to a panel."""

    def draw(axes: Axes, name: str, look: Look) -> None:
        x, values, note, errors = lines[name]
        if look is BEHIND:
            mean = values.mean(0)
            places = thinned(mean, THIN)
            axes.plot(x[places], mean[places], color=look.colour, linewidth=0.7, zorder=1.5)
        else:
            label = f"{name}\n{note}" if note else name
            draw_mean(axes, x, values, look, label, band=band, errors=errors, linewidth=1.9, zorder=3)

    shown = {name: looks[name] for name in lines}
    figure = method_figure(shown, draw, height=height, **labels)
    for axes in figure.axes:
        on_axes(axes)
    if len(shown) <= CROWD:
        (axes,) = figure.axes
        look: dict[str, Any] = {"handlelength": 2.8, "labelspacing": 0.9, "borderaxespad": 0.0, "alignment": "left"}
        legend_beside(axes, **as_lines_end(axes), **look, title=heading, title_fontsize=10, fontsize=11)
    else:
        for axes, line in zip(figure.axes, lines.values(), strict=True):
            if line.note:
                axes.set_title(line.note, fontsize=9, loc="right")
    return figure


def thinned(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Return the indices, ascending, of about ``most`` of the values [T] that draw the same line: the first, the last,
    and the lowest and highest of each stretch."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, most // 2).round().astype(np.int64)
    filled = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    places = {0, count - 1}
    for begin, end in itertools.pairwise(edges.tolist()):
        if end > begin:
            stretch = filled[begin:end]
            places |= {int(begin + stretch.argmin()), int(begin + stretch.argmax())}
    return np.array(sorted(places))


def same_lines(lines: Mapping[str, Line]) -> list[tuple[str, ...]]:
    """Return the groups of methods whose means are the same in every round, so that their lines coincide."""
    groups: list[list[str]] = []
    for name, line in lines.items():
        for group in groups:
            first = lines[group[0]]
            alike = np.array_equal(first.x, line.x)
            if alike and np.allclose(first.values.mean(0), line.values.mean(0), rtol=0, atol=SAME, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    return [tuple(group) for group in groups if len(group) > 1]


def same_note(lines: Mapping[str, Line]) -> str:
    """Return the sentence on lines that coincide; empty where none do."""
    groups = same_lines(lines)
    return "".join(f" The same curve: {', '.join(group)}." for group in groups)
