"""Accuracy by round: a line for each algorithm's best trial, with drifts and sessions marked."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.escaping import for_figure
from flstudy.reporting.multiples import Line, line_figure, same_note
from flstudy.reporting.ranking import Findings, Ranking
from flstudy.reporting.section import Content, Picture, ReportSection
from flstudy.reporting.style import GREY, PANEL, mark_events
from flstudy.study.results import WorldEvent

CHARACTER = 0.0118  # width of a label's character, as a fraction of the axes
LINE = 14  # points from one row of labels to the next
TOLD = 3  # largest number of events listed above many panels


class CurvesSection(ReportSection):
    """Section with the curves on the page, and as curves.png beside the summary."""

    order = 40

    def of_study(self, findings: Findings) -> Content | None:
        results, ranking = findings.results, findings.ranking
        figure = accuracy_figure(findings)
        titled = accuracy_figure(findings, title=f"Study {results.name}: best trial of each algorithm")
        if figure is None or titled is None:
            return None
        what, named = ("accuracy", "Accuracy") if ranking.shows_accuracy else (ranking.shown, ranking.shown)
        caption = "Best trial of each algorithm: mean over seeds with a band of one standard deviation."
        if any(row.errors is not None for row in ranking.rows):
            caption += f" {PANEL}"
        if findings.events:
            caption += " Dashed lines: what happened to the world, at the first round that felt it."
        caption += same_note(accuracy_lines(ranking))
        return Content(
            name="Curves",
            title=f"How did {what} go, round by round?",
            pictures=[Picture(figure, caption)],
            exports={"curves.png": Picture(titled, f"{named} by round, best trial of each algorithm")},
        )


def accuracy_figure(findings: Findings, title: str = "") -> Figure | None:
    """Return the figure of accuracy or the ranking's other metric by round: mean over seeds, band of one standard
    deviation."""
    ranking, events = findings.ranking, findings.events
    lines = accuracy_lines(ranking)
    if not lines:
        return None
    replicas = max(row.accuracy.shape[0] for row in ranking.rows)
    spread = f"mean ± std over {replicas} seeds" if replicas > 1 else "of one seed"
    what = ranking.shown.capitalize() if ranking.shows_accuracy else ranking.shown
    figure = line_figure(
        lines,
        findings.looks,
        height=4.8,
        heading=f"Final, {spread.replace(' over', chr(10) + 'over')}",
        on_axes=lambda axes: mark_events(axes, events),
        xlabel="Round",
        ylabel=f"{what}, mean over devices{' (%)' if ranking.unit else ''}",
    )
    panels = figure.axes
    for axes in panels:
        axes.margins(x=0.01)
    if ranking.unit:
        low, high = panels[0].get_ylim()
        panels[0].set_ylim(max(low, -2.0), min(high, 102.0))  # panels share their limits
    if len(panels) == 1:
        label_rows = _label_events(panels[0], events)
        panels[0].set_title(title, fontsize=13, loc="left", pad=8 + LINE * label_rows)
    else:
        stretches = groupby(events, key=lambda event: event.label)
        texts = [f"{label}, {_rounds_text([event.round for event in alike])}" for label, alike in stretches]
        some = [*texts[:TOLD], f"{len(texts) - TOLD} more"] if len(texts) > TOLD else texts
        above = [title] * bool(title) + [f"On the right: final, {spread}."]
        above += [f"Dashed: {'; '.join(some)}."] if some else []
        figure.suptitle("\n".join(above), fontsize=11, x=0.01, ha="left")
    return figure


def accuracy_lines(ranking: Ranking) -> dict[str, Line]:
    """Return the line of each algorithm's best trial that has a curve, in the units shown."""
    return {
        row.algorithm: Line(
            row.rounds,
            ranking.scale * row.accuracy,
            f"{ranking.final(row)}{ranking.unit}",
            None if row.errors is None else ranking.scale * row.errors,
        )
        for row in ranking.rows
        if row.rounds.size
    }


def _rounds_text(rounds: Sequence[int]) -> str:
    """Format rounds as ``round 31``, ``rounds 31, 61`` or ``rounds 31 to 90``."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    return "rounds " + (", ".join(map(str, rounds)) if len(rounds) <= TOLD else f"{rounds[0]} to {rounds[-1]}")


def _label_events(axes: Axes, events: Sequence[WorldEvent]) -> int:
    """Write labels of events above the axes in as many rows as they need; returns the number of rows.

    A label that repeats, as in an incremental drift, is written once.
    """
    left, right = axes.get_xlim()
    ends: list[float] = []  # end of the last label in each row, in fractions of the axes
    for label, alike in groupby(events, key=lambda event: event.label):
        first = next(alike).round
        text = for_figure(f"{label}, round {first}")
        at, half = (first - left) / (right - left), CHARACTER * len(text) / 2
        middle = min(max(at, half), max(1 - half, half))  # within the axes
        row = next((i for i, end in enumerate(ends) if end < middle - half), len(ends))
        ends[row : row + 1] = [middle + half]
        look: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": GREY}
        axes.annotate(text, (middle, 1.0), (0, 4 + LINE * row), ha="center", va="bottom", fontsize=10, **look)
    return len(ends)
