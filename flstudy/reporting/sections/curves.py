"""Accuracy round by round: a line per algorithm's best trial, drifts and sessions marked."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.reporting.ranking import Findings, Ranking
from flstudy.reporting.section import Content, Picture, ReportSection
from flstudy.reporting.style import (
    GREY,
    PANEL,
    as_lines_end,
    draw_mean,
    finish,
    legend_beside,
    mark_events,
    new_panels,
)
from flstudy.study.results import WorldEvent

CHARACTER = 0.0118  # width of a label's character, as a fraction of the axes
LINE = 14  # points from one row of labels to the next
ROOMY = 9  # legend entries that still fit with two lines each


class CurvesSection(ReportSection):
    """The curves on the page, and as curves.png beside the summary."""

    order = 40

    def of_study(self, found: Findings) -> Content | None:
        results, ranking = found.results, found.ranking
        events = [event for event in results.events if event.round <= results.rounds]
        figure = accuracy_figure(ranking, events)
        titled = accuracy_figure(ranking, events, title=f"Study {results.name}: best trial of each algorithm")
        if figure is None or titled is None:
            return None
        what, named = ("accuracy", "Accuracy") if ranking.shows_accuracy else (ranking.shown, ranking.shown)
        caption = "Best trial of each algorithm: mean over seeds with a band of one standard deviation."
        if any(row.errors is not None for row in ranking.rows):
            caption += f" {PANEL}"
        if events:
            caption += " Dashed lines: what happened to the world, at the first round that felt it."
        return Content(
            name="Curves",
            title=f"How did {what} go, round by round?",
            pictures=[Picture(figure, caption)],
            exports={"curves.png": Picture(titled, f"{named} by round, best trial of each algorithm")},
        )


def accuracy_figure(ranking: Ranking, events: Sequence[WorldEvent], title: str = "") -> Figure | None:
    """Accuracy by round in percent, or what else the ranking shows: mean over seeds, band of one standard deviation."""
    if not any(row.rounds.size for row in ranking.rows):
        return None
    figure, (axes,) = new_panels(1, 1, max(4.8, 0.27 * len(ranking.rows) + 0.9))  # so that the whole legend is on it
    between, size = ("\n", 11) if len(ranking.rows) <= ROOMY else ("  ", 9)
    for place, row in enumerate(ranking.rows):
        if row.rounds.size:
            label = f"{row.algorithm}{between}{ranking.final(row)}{ranking.unit}"
            errors = None if row.errors is None else ranking.scale * row.errors
            given = row.rounds, ranking.scale * row.accuracy, place, label
            draw_mean(axes, *given, band=True, errors=errors, linewidth=1.9, zorder=3)
    replicas = max(row.accuracy.shape[0] for row in ranking.rows)
    heading = "Final, mean ± std\n" + (f"over {replicas} seeds" if replicas > 1 else "of one seed")
    look: dict[str, Any] = {"handlelength": 2.8, "labelspacing": 0.9, "borderaxespad": 0.0, "alignment": "left"}
    legend_beside(axes, **as_lines_end(axes), **look, title=heading, title_fontsize=10, fontsize=size)
    axes.margins(x=0.01)
    mark_events(axes, events)
    label_rows = _label_events(axes, events)
    axes.set_title(title, fontsize=13, loc="left", pad=8 + LINE * label_rows)
    what = ranking.shown.capitalize() if ranking.shows_accuracy else ranking.shown
    finish(axes, 11, 12, xlabel="Round", ylabel=f"{what}, mean over devices{' (%)' if ranking.unit else ''}")
    if ranking.unit:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))
    return figure


def _label_events(axes: Axes, events: Sequence[WorldEvent]) -> int:
    """Labels of events above the axes, in as many rows as they need; returns the number of rows.

    A label is written once where it repeats, as in an incremental drift.
    """
    left, right = axes.get_xlim()
    ends: list[float] = []  # per row of labels, where the last one ends, in fractions of the axes
    for label, alike in groupby(events, key=lambda event: event.label):
        first = next(alike).round
        text = f"{label}, round {first}"
        at, half = (first - left) / (right - left), CHARACTER * len(text) / 2
        middle = min(max(at, half), max(1 - half, half))  # not over the edge of the axes
        row = next((i for i, end in enumerate(ends) if end < middle - half), len(ends))
        ends[row : row + 1] = [middle + half]
        look: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": GREY}
        axes.annotate(text, (middle, 1.0), (0, 4 + LINE * row), ha="center", va="bottom", fontsize=10, **look)
    return len(ends)
