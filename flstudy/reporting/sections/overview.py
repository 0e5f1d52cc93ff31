"""Overview of a study in one picture: ranking, curves and search history; MLflow shows it on its page."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.escaping import for_figure
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, Picture, ReportSection
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.search import history_figure
from flstudy.reporting.style import DPI, finish, new_panels
from flstudy.tracking.content import OVERVIEW


class OverviewSection(ReportSection):
    """Section that writes overview.png beside the summary; the page has its parts."""

    order = 75

    def of_study(self, findings: Findings) -> Content | None:
        ranking, results = findings.ranking, findings.results
        if not ranking.rows:
            return None
        figures = [
            ranking_figure(findings, f"Study {results.name}: each method's best trial"),
            accuracy_figure(findings, title="Round by round"),
            history_figure(findings),
        ]
        drawn = [figure for figure in figures if figure is not None]
        return Content(exports={OVERVIEW: Picture(below_each_other(drawn), "At a glance")})


def ranking_figure(findings: Findings, title: str) -> Figure:
    """Return the figure of the final mean and standard deviation over seeds of each method's best trial, best on
    top."""
    ranking = findings.ranking
    figure, (axes,) = new_panels(1, 1, 0.9 + 0.34 * len(ranking.rows))
    places = range(len(ranking.rows))
    for place, row in zip(places, ranking.rows, strict=True):
        final = ranking.scale * row.final[np.isfinite(row.final)]
        if final.size:
            spread = final.std(ddof=1) if final.size > 1 else 0.0
            look = findings.looks[row.trial.algorithm]
            axes.errorbar(final.mean(), place, xerr=spread, fmt=look.marker, color=look.colour, capsize=3, markersize=7)
            words = f"{ranking.final(row)}{ranking.unit}"
            axes.annotate(words, (final.mean() + spread, place), (8, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row.algorithm for row in ranking.rows])
    axes.set_ylim(len(ranking.rows) - 0.4, -0.6)
    axes.margins(x=0.25)
    axes.set_title(for_figure(title), fontsize=13, loc="left")
    finish(axes, 11, 12, xlabel=f"Final {ranking.shown}{' (%)' if ranking.unit else ''}")
    return figure


def below_each_other(figures: list[Figure]) -> Figure:
    """Combine figures into one, below each other."""
    pixels = [_pixels(figure) for figure in figures]
    width = max(image.shape[1] for image in pixels)
    whole = np.concatenate(
        [np.pad(image, ((0, 0), (0, width - image.shape[1]), (0, 0)), constant_values=255) for image in pixels]
    )
    figure = Figure(figsize=(width / DPI, len(whole) / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.figimage(whole)
    return figure


def _pixels(figure: Figure) -> NDArray[np.uint8]:
    """Render a figure as pixels [height, width, 4]."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
