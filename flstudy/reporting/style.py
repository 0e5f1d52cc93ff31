"""Style of all figures: colours, dashes, lines with their bands, and the writing of files.

Figures are matplotlib `Figure` objects without pyplot: nothing is global, so they work in any thread and without a
display. Optuna's own plots use pyplot and do not distinguish algorithms, by colour or by line.
"""

import io
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.escaping import for_figure
from flstudy.metrics.registry import is_fraction
from flstudy.reporting.tables import metric_label
from flstudy.study.results import WorldEvent
from flstudy.whole_file import whole_file

# Okabe and Ito's palette, distinct in any colour vision; its yellow is too light on white. Dash patterns and
# markers tell lines and points apart where a printer has no colours, and go on where the colours are used up.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH, DPI = 9.0, 180
PAGE_DPI = 90  # for pictures that are committed with a page
GREY, GRID = "#444444", "#d9d9d9"
PALETTE = 64  # colours of a PNG
PANEL = "Darker: the standard error of that mean, which is of a panel of devices."
SHORT = 12  # largest number of characters of names of which six fit into a row


class Look(NamedTuple):
    """Look of a line or of points: colour, dashes and marker."""

    colour: str
    dashes: Any
    marker: str


_svg_settings = threading.Lock()  # matplotlib reads them from a place that all threads share


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Create an empty figure of some inches that can be saved as PNG."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int, columns: int, height: float, extra: float = 0.0, **shared: Any) -> tuple[Figure, list[Axes]]:
    """Create a figure of ``count`` panels in rows of ``columns``, each row of some inches, and extra ones in all."""
    rows = -(-count // columns)
    figure = new_figure(height * rows + extra)
    panels = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in panels[count:]:  # the places that are left over
        axes.remove()
    return figure, panels[:count]


def colour(place: int) -> str:
    """Return the colour of the line or points at a place, from 0."""
    return COLOURS[place % len(COLOURS)]


def dashes(place: int) -> Any:
    """Return the dashes of the line at a place, from 0."""
    return DASHES[place % len(DASHES)]


def marker(place: int) -> str:
    """Return the marker of the points at a place, from 0."""
    return MARKERS[place % len(MARKERS)]


def scale_of(metric: str) -> tuple[int, str]:
    """Return the factor of a metric's values and label of its axis: a fraction is drawn in percent."""
    return 100 if is_fraction(metric) else 1, metric_label(metric)


def look_of(place: int) -> Look:
    """Look at a place, from 0, for lines that are no methods, such as the ways to start a session."""
    return Look(colour(place), dashes(place), marker(place))


def draw_mean(
    axes: Axes,
    x: NDArray[Any],
    values: NDArray[np.float64],
    look: Look,
    label: str,
    *,
    band: bool = False,
    errors: NDArray[np.float64] | None = None,
    **more: Any,
) -> None:
    """Draw the mean over replicas of values [S, T] at x [T] as a line, with ``band`` a band of one standard deviation;
    ``errors`` [S, T], as values on a panel of devices have them, add a darker band of the mean's standard error."""
    mean = values.mean(0)
    axes.plot(x, mean, label=label, **{"color": look.colour, "linestyle": look.dashes, "linewidth": 1.2, **more})
    if band and len(values) > 1:
        deviation = values.std(0, ddof=1)
        axes.fill_between(x, mean - deviation, mean + deviation, color=look.colour, alpha=0.16, linewidth=0)
    if errors is not None:
        error = np.sqrt((errors**2).sum(0)) / len(errors)
        axes.fill_between(x, mean - error, mean + error, color=look.colour, alpha=0.3, linewidth=0)


def mark_events(axes: Axes, events: Iterable[WorldEvent], label: str | None = None) -> None:
    """Draw a dashed line per event; ``label`` names the first in the legend."""
    for number, event in enumerate(events):
        text = None if number else label
        axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0, zorder=2, label=text)


def legend_beside(axes: Axes, **settings: Any) -> None:
    """Draw the legend to the right of the axes."""
    options = {"frameon": False, "fontsize": 10, "loc": "upper left", "bbox_to_anchor": (1.01, 1.0), **settings}
    axes.legend(**options)


def legend_above(figure: Figure, panels: Iterable[Axes], names: Iterable[str], *, below: bool = False) -> None:
    """Draw one legend above all panels, or ``below`` them, of the names that appear in a panel."""
    drawn: dict[str, Any] = {}
    for axes in panels:
        drawn |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    present = [name for name in names if name in drawn]
    columns = min(max(len(present), 1), 4 if max(map(len, present), default=0) > SHORT else 6)
    look: dict[str, Any] = {"loc": f"outside {'lower' if below else 'upper'} center", "frameon": False, "fontsize": 10}
    figure.legend([drawn[name] for name in present], present, ncols=columns, **look)


def as_lines_end(axes: Axes) -> dict[str, Any]:
    """Return the legend handles and labels in the order of the lines' last values, top to bottom: each stands near its
    line."""
    handles, labels = axes.get_legend_handles_labels()
    ends = [float(np.asarray(handle.get_ydata())[-1]) for handle in handles]  # type: ignore[attr-defined]
    order = np.argsort(np.nan_to_num(ends, nan=-1.0))[::-1]
    return {"handles": [handles[i] for i in order], "labels": [labels[i] for i in order]}


def finish(axes: Axes, ticks: int = 10, size: int = 10, *, xlabel: str = "", ylabel: str = "") -> None:
    """Set the axes' labels and a light grid, and remove the top and right frame."""
    axes.set_xlabel(for_figure(xlabel) or axes.get_xlabel(), fontsize=size)
    axes.set_ylabel(for_figure(ylabel) or axes.get_ylabel(), fontsize=size)
    axes.tick_params(labelsize=ticks)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def to_png(figure: Figure, path: str | os.PathLike[str], dpi: float = DPI) -> Path:
    """Write a figure as PNG and return its path; pictures that are committed have ``PAGE_DPI``."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    return small_png(drawn, path)


def small_png(picture: BinaryIO | str | os.PathLike[str], path: str | os.PathLike[str], size: float = 1.0) -> Path:
    """Write a picture, a path or an open file, as a PNG with a palette, a third as large as one without, scaled to
    ``size`` of its width, and return its path."""
    from PIL import Image  # matplotlib's

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(picture) as opened:
        dpi = size * float(opened.info.get("dpi", (DPI, DPI))[0])
        image = opened.convert("RGB")
    if size != 1.0:
        image = image.resize((round(size * image.width), round(size * image.height)), Image.Resampling.HAMMING)
    places, palette = paletted(np.asarray(image))
    small = Image.fromarray(places)
    small.putpalette(palette.tobytes())
    with whole_file(path) as hidden:
        small.save(hidden, "PNG", optimize=True, dpi=(dpi, dpi))
    return path


def paletted(image: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Convert an image [height, width, 3] to indices [height, width] into a palette [up to PALETTE, 3]: exact colours,
    the most frequent ones of all, then that of each eighth of red, green and blue, so that a thin line keeps its own
    beside many shades of grey. All others, which are edges, become the nearest one."""
    codes, back, counts = np.unique(
        image.reshape(-1, 3).astype(np.int64) @ (65536, 256, 1), return_inverse=True, return_counts=True
    )
    shades = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], 1)
    order = np.argsort(-counts, kind="stable")
    _, first = np.unique((shades[order] >> 5) @ (64, 8, 1), return_index=True)
    chosen = dict.fromkeys([*range(min(PALETTE // 4, len(order))), *np.sort(first).tolist(), *range(len(order))])
    palette = shades[order[list(chosen)[:PALETTE]]]
    nearest = np.empty(len(shades), np.uint8)
    for part in np.array_split(np.arange(len(shades)), 1 + len(shades) // 4096):
        nearest[part] = ((shades[part, None] - palette) ** 2).sum(2).argmin(1)
    return nearest[back].reshape(image.shape[:2]), palette.astype(np.uint8)


def to_svg(figure: Figure) -> str:
    """Render a figure as an ``<svg>`` with text as text and a transparent background; equal figures give equal ones."""
    out = io.StringIO()
    nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _svg_settings, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flstudy"}):
        figure.savefig(out, format="svg", transparent=True, metadata=nobody)
    text = out.getvalue()
    return text[text.index("<svg") :].strip()  # without the prologue of a file of its own
