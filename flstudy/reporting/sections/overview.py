"""A study at a glance, in one picture: ranking, curves, and what the search found; MLflow shows it on its page."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, Picture, ReportSection
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.search import history_figure
from flstudy.reporting.style import DPI, finish, new_panels
from flstudy.tracking.content import OVERVIEW


class OverviewSection(ReportSection):
    """overview.png beside the summary; the page has its parts."""

    order = 75

    def of_study(self, found: Findings) -> Content | None:
        ranking, results = found.ranking, found.results
        if not ranking.rows:
            return None
        events = [event for event in results.events if event.round <= results.rounds]
        figures = [
            ranking_figure(found, f"Study {results.name}: each method's best trial"),
            accuracy_figure(ranking, events, found.looks, title="Round by round"),
            history_figure(found),
        ]
        return Content(
            exports={OVERVIEW: Picture(below_each_other([one for one in figures if one is not None]), "At a glance")}
        )


def ranking_figure(found: Findings, title: str) -> Figure:
    """Mean and deviation over seeds of each method's best trial at its end, best on top."""
    ranking = found.ranking
    figure, (axes,) = new_panels(1, 1, 0.9 + 0.34 * len(ranking.rows))
    places = range(len(ranking.rows))
    for place, row in zip(places, ranking.rows, strict=True):
        final = ranking.scale * row.final[np.isfinite(row.final)]
        if final.size:
            spread = final.std(ddof=1) if final.size > 1 else 0.0
            look = found.looks[row.trial.algorithm]
            axes.errorbar(final.mean(), place, xerr=spread, fmt=look.marker, color=look.colour, capsize=3, markersize=7)
            words = f"{ranking.final(row)}{ranking.unit}"
            axes.annotate(words, (final.mean() + spread, place), (8, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row.algorithm for row in ranking.rows])
    axes.set_ylim(len(ranking.rows) - 0.4, -0.6)
    axes.margins(x=0.25)
    axes.set_title(title, fontsize=13, loc="left")
    finish(axes, 11, 12, xlabel=f"Final {ranking.shown}{' (%)' if ranking.unit else ''}")
    return figure


def below_each_other(figures: list[Figure]) -> Figure:
    """Figures below each other."""
    pixels = [_pixels(figure) for figure in figures]
    width = max(one.shape[1] for one in pixels)
    whole = np.concatenate(
        [np.pad(one, ((0, 0), (0, width - one.shape[1]), (0, 0)), constant_values=255) for one in pixels]
    )
    figure = Figure(figsize=(width / DPI, len(whole) / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.figimage(whole)
    return figure


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """[height, width, 4] of a figure as it is drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
