"""What all figures share: colours, dashes, and the way to a file."""

import io
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flstudy.reporting.load import StudyResults

# Okabe and Ito's palette, told apart with any colour vision; its yellow is too light on white. Dash patterns and
# markers tell lines and points apart where a printer has no colours, and go on where the colours are used up.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH, DPI = 9.0, 180
GREY, GRID = "#444444", "#d9d9d9"

_svg_settings = threading.Lock()  # matplotlib reads them from a place that all threads share


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of some inches that can be saved as PNG."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def order(results: StudyResults, first: Iterable[str] = ()) -> dict[str, int]:
    """Each algorithm's place, and so its colour in every figure: the ranked ones first, in the order of the ranking."""
    names = dict.fromkeys([*first, *(trial.algorithm for trial in results.searched)])
    return {name: place for place, name in enumerate(names)}


def plain(axes: Axes) -> None:
    """A light grid, and no frame where nothing is to be read."""
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def to_png(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure and returns its file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def to_svg(figure: Figure) -> str:
    """A figure as an ``<svg>`` element for a page: its text is text, its ground transparent; the same figure gives the
    same element."""
    out = io.StringIO()
    nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _svg_settings, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flstudy"}):
        figure.savefig(out, format="svg", transparent=True, metadata=nobody)
    text = out.getvalue()
    return text[text.index("<svg") :].strip()  # without the prologue of a file of its own
