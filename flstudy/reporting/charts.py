"""Interactive figures of a study in Plotly's form, ``{"data": traces, "layout": ...}`` of plain values: the page beside
a report shows all of them, and `Study.figure` returns each as a Plotly figure.

Entries of a figure's menu restyle its traces and leave their visibility alone, so that a method hidden in the legend
stays hidden. Labels are HTML to Plotly: `plain` escapes every text that a user can choose.
"""

import html
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flstudy.reporting.multiples import Line, thinned
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import history_of, is_log, parallels_of, searched_domains, varied_keys
from flstudy.reporting.sections.sensitivity import LEAST_TRIALS, METHOD, sensitivities
from flstudy.reporting.sections.traffic import SENT, traffic_of
from flstudy.reporting.style import Look, scale_of
from flstudy.reporting.tables import NOTHING
from flstudy.study import Domain, Trial
from flstudy.study.records import curve, metric_names
from flstudy.study.results import WorldEvent

POINTS = 240  # of a curve, about: a screen has no pixels for more
DIGITS = 5  # significant digits of a number
SHOWN = ("test/accuracy", "valid/accuracy", "test/loss", "valid/loss", "train/loss")
"""Metrics by round that are shown where they are recorded, beside those of the ranking and of the search."""
MARK = "#888888"  # colour of events and parallel axes, visible on white and on black
BAND = 0.15  # opacity of bands
STEPS = 4  # points from one parallel axis to the next, at which the pointer can hover over a line
ROOM = 0.05  # margin above and below the trials that did all rounds, as a share of their range
MENU = {"y": 1.03, "yanchor": "bottom", "bgcolor": "#f6f7f8", "font": {"color": "#1b1f23"}}
"""Style of menus, light on a dark page too, since Plotly's colour of the active entry is light and cannot be set."""
LEGEND = {"tracegroupgap": 0}
EMPTY = Line(np.empty(0), np.empty((1, 0)))

Figure = dict[str, Any]
Trace = dict[str, Any]


class Chart(NamedTuple):
    """Kind of interactive figure that a study may have."""

    title: str  # on the page
    lead: str  # how it is to be read
    needs: str  # condition that a study must meet for it
    draw: Callable[[Findings], Figure | None]  # None where a study does not meet it


class View(NamedTuple):
    """Lines of all methods for one metric: an entry of the menu of curves."""

    label: str
    xlabel: str
    lines: Mapping[str, Line]
    menu: str = ""  # text of the entry, where it is not the label
    events: Sequence[WorldEvent] = ()
    step: bool = False


class MenuEntry(NamedTuple):
    """Entry of a figure's menu: the attributes that it sets."""

    label: str
    traces: Mapping[str, Sequence[Any]]  # dotted attribute -> values that the traces take in turn, cyclically
    layout: Mapping[str, Any]


def curves_chart(findings: Findings) -> Figure | None:
    """Curves of every metric that best trials recorded, by round; accuracy by traffic; best value by trial."""
    views = [*_by_round(findings), *_by_traffic(findings), *_by_trial(findings)]
    if not views:
        return None
    looks = {name: look for name, look in findings.looks.items() if any(name in view.lines for view in views)}
    common: Trace = {"type": "scatter", "mode": "lines"}
    hidden: Trace = {**common, "hoverinfo": "skip", "showlegend": False, "fill": "toself", "opacity": BAND}
    bands: list[Trace] = [
        {**hidden, **_named(name), "line": {"width": 0}, "fillcolor": look.colour} for name, look in looks.items()
    ]
    lines: list[Trace] = [
        {**common, **_named(name), "line": {"width": 2, "color": look.colour, "dash": _dash(look)}}
        for name, look in looks.items()
    ]
    happened: Trace = {**common, "yaxis": "y2", "name": "What happened"}
    happened["line"] = {"width": 1, "color": MARK, "dash": "4px,4px"}
    layout = {
        "hovermode": "x unified",
        "hoversort": "value descending",
        "hoverdistance": 60,
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    }
    figure = _with_menu([*bands, *lines, happened], layout, [_curves_entry(view, looks) for view in views])
    if any(len(line.values) > 1 for view in views for line in view.lines.values()):
        buttons = [
            {"label": label, "method": "restyle", "args": [{"opacity": opacity}, list(range(len(bands)))]}
            for label, opacity in (("± std", BAND), ("means", 0))
        ]
        place = {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", **MENU}
        figure["layout"]["updatemenus"].append({"buttons": buttons, **place})
    return figure


def _by_round(findings: Findings) -> list[View]:
    """View for each shown metric that a best trial recorded."""
    results = findings.results
    wanted = dict.fromkeys([findings.ranking.accuracy_metric, results.selection_metric, *SHOWN])
    lines: dict[str, dict[str, Line]] = {metric: {} for metric in wanted}
    for row in findings.ranking.rows:
        try:
            table = results.records(row.speaker)
        except (ValueError, OSError):  # a trial without records
            continue
        for metric in [metric for metric in wanted if metric in metric_names(table)]:
            rounds, values = curve(table, metric)
            if rounds.size:
                lines[metric][row.algorithm] = Line(rounds, scale_of(metric)[0] * values)
    events = [event for event in results.events if event.round <= results.rounds]
    return [View(scale_of(metric)[1], "Round", curves, events=events) for metric, curves in lines.items() if curves]


def _by_traffic(findings: Findings) -> list[View]:
    traffic = traffic_of(findings)
    if traffic is None:
        return []
    scale, label = scale_of(traffic.metric)
    lines = {method.algorithm: Line(method.sent.mean(0), scale * method.values) for method in traffic.curves}
    return [View(label, SENT, lines, f"{label}, by traffic")]


def _by_trial(findings: Findings) -> list[View]:
    """View of the best value of each method after each of its trials."""
    scale, label = scale_of(findings.results.selection_metric)
    lines = {}
    for name in findings.looks:
        history = history_of(findings.results, name)
        if history is not None:
            at = np.arange(history.at[0], history.trials + 1)
            best = history.best[np.searchsorted(history.at, at, side="right") - 1]
            lines[name] = Line(at, scale * best[None])
    return [View(label, "Trials of the method", lines, f"{label}, best so far", step=True)] if lines else []


def _curves_entry(view: View, looks: Mapping[str, Look]) -> MenuEntry:
    """Menu entry with a view's values for the traces of bands, of lines, and of events."""
    # All lines keep the same points, so that the values listed under the pointer are of one round.
    share = max(POINTS // len(view.lines), 2)
    places = np.concatenate([line.x[thinned(line.values.mean(0), share)] for line in view.lines.values()])
    thin_lines = [_thinner(view.lines.get(name, EMPTY), places) for name in looks]
    where = "" if view.xlabel != SENT else " at %{x:.4~g}"  # the methods have no common points
    bands, lines = zip(*(_band_and_line(line, where) for line in thin_lines), strict=True)
    events: Trace = {
        "x": [at for event in view.events for at in (event.round, event.round, None)],
        "y": [0, 1, None] * len(view.events),
        "customdata": [plain(event.label) for event in view.events for _ in range(3)],
        "hovertemplate": "%{customdata}",
    }
    traces: dict[str, list[Any]] = {key: [trace.get(key) for trace in (*bands, *lines, events)] for key in events}
    traces["line.shape"] = ["hv" if view.step else "linear"]
    layout = {
        "xaxis.title.text": view.xlabel,
        "xaxis.unifiedhovertitle.text": f"{view.xlabel} %{{x}}",
        "yaxis.title.text": plain(view.label),
        "xaxis.autorange": True,
        "yaxis.autorange": True,
    }
    return MenuEntry(view.menu or view.label, traces, layout)


def _thinner(line: Line, places: Any) -> Line:
    seen = np.isin(line.x, places)
    return Line(line.x[seen], line.values[:, seen])


def _band_and_line(line: Line, where: str) -> tuple[Trace, Trace]:
    """Traces of a band of one standard deviation, empty for one replica, and of the mean with its values on hover."""
    mean = line.values.mean(0)
    drawn = {"x": _rounded(line.x), "y": _rounded(mean), "hovertemplate": f"%{{y:.4~g}}{where}"}
    if len(line.values) == 1:
        return {"x": [], "y": []}, drawn
    deviation = line.values.std(0, ddof=1)
    finite = np.isfinite(mean + deviation)
    x, low, high = line.x[finite], (mean - deviation)[finite], (mean + deviation)[finite]
    around = {"x": _rounded([*x, *x[::-1]]), "y": _rounded([*high, *low[::-1]])}
    hover = {"customdata": _rounded(deviation, 2), "hovertemplate": f"%{{y:.4~g}} ± %{{customdata}}{where}"}
    return around, drawn | hover


def trials_chart(findings: Findings) -> Figure | None:
    """Scatter plot of the trials with a value, by number or by any hyper-parameter; trials that stopped early are
    hollow, and left out where they lie outside the range of those that did all rounds."""
    results = findings.results
    scale, label = scale_of(results.selection_metric)
    values = {trial.number: scale * results.value_of(trial) for trial in results.searched}
    valued = [trial for trial in results.searched if np.isfinite(values[trial.number])]
    whole = [trial for trial in valued if results.eligible(trial)]
    ends = [values[trial.number] for trial in whole or valued]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    room = ROOM * (high - low)
    trials = [trial for trial in valued if low - room <= values[trial.number] <= high + room]
    trials.sort(key=results.eligible, reverse=True)  # the legend shows the mark of a method's first trial
    groups = {name: group for name in findings.looks if (group := [t for t in trials if t.algorithm == name])}
    domains, traces = searched_domains(results), []
    for name, group in groups.items():
        keys = [key for key in domains if any(key in trial.overrides for trial in group)]
        symbols = ["circle" if results.eligible(trial) else "circle-open" for trial in group]
        trace = {
            "type": "scatter",
            "mode": "markers",
            "y": _rounded(values[trial.number] for trial in group),
            "customdata": [_told(trial, values[trial.number], keys) for trial in group],
            "hovertemplate": _telling(label, keys, "customdata"),
            "marker": {"color": findings.looks[name].colour, "size": 9, "opacity": 0.8, "symbol": symbols},
        }
        traces.append({**trace, **_named(name)})
    layout: dict[str, Any] = {"xaxis.title.text": "Trial", "xaxis.type": "linear", "scattermode": "overlay"}
    layout |= {"xaxis.autorange": True, "yaxis.autorange": True}
    entries = [MenuEntry("by number", {"x": [[trial.number for trial in group] for group in groups.values()]}, layout)]
    for key in varied_keys(trials, domains):
        entries.append(_by_key(key, domains[key], groups.values(), layout))
    return _with_menu(traces, {"hovermode": "closest", "yaxis": {"title": {"text": plain(label)}}}, entries)


def _by_key(key: str, domain: Domain, groups: Iterable[Sequence[Trial]], layout: Mapping[str, Any]) -> MenuEntry:
    """Menu entry that shows the trials by one hyper-parameter; at an option they stand side by side by method."""
    name = key.removeprefix("algorithm.")
    layout = {**layout, "xaxis.title.text": plain(name)}
    x = [[trial.overrides.get(key) for trial in group] for group in groups]
    if domain.kind == "choice":
        options = [plain(option) for option in domain.options]
        layout |= {"xaxis.type": "category", "xaxis.categoryarray": options, "scattermode": "group"}
        return MenuEntry(f"by {name}", {"x": [[None if at is None else plain(at) for at in row] for row in x]}, layout)
    if is_log(domain):
        layout["xaxis.type"] = "log"
    return MenuEntry(f"by {name}", {"x": [_rounded(np.nan if at is None else at for at in row) for row in x]}, layout)


def parallel_chart(findings: Findings) -> Figure | None:
    """Parallel coordinates of one method's trials that did all rounds; a line is a trial, the stronger the better."""
    results = findings.results
    scale, label = scale_of(results.selection_metric)
    drawn = {name: parallels for name in findings.looks if (parallels := parallels_of(results, name)) is not None}
    if not drawn:
        return None
    most = max(len(parallels.trials) for parallels in drawn.values())
    entries = []
    for name, (trials, keys, names, heights, ticks) in drawn.items():
        last = len(keys)
        rest: list[list[Any]] = [[]] * (most - len(trials))
        at = np.linspace(0, last, STEPS * last + 1)
        hovers = [_told(trial, scale * results.value_of(trial), keys) for trial in trials]
        strength = 0.15 + 0.75 * np.linspace(0, 1, len(trials)) ** 2
        traces: dict[str, list[Any]] = {
            "y": [*rest, *(_rounded(np.interp(at, range(last + 1), row), 3) for row in heights[::-1])],
            "meta": [*rest, *hovers[::-1]],
            "opacity": [*(0 for _ in rest), *_rounded(strength, 2)],
            "hovertemplate": [_telling(label, keys, "meta")],
            "line.color": [findings.looks[name].colour],
        }
        marks = [
            {"x": column, "y": height, "text": plain(text), "showarrow": False, "xanchor": "left", "xshift": 3}
            for column, marks in enumerate(ticks)
            for height, text in marks
        ]
        layout = {"annotations": marks, "xaxis.tickvals": list(range(last + 1)), "xaxis.range": [-0.1, last + 0.3]}
        entries.append(MenuEntry(name, traces, {**layout, "xaxis.ticktext": [plain(text) for text in names]}))
    line = {"type": "scatter", "mode": "lines", "x0": 0, "dx": 1 / STEPS}
    lines = [{**line, "line": {"width": 1.5 if index < most - 1 else 3.5}} for index in range(most)]  # the best on top
    layout = {
        "hovermode": "closest",
        "hoverdistance": 40,
        "showlegend": False,
        "xaxis": {"gridcolor": MARK, "zeroline": False},
        "yaxis": {"range": [-0.06, 1.06], "visible": False},
    }
    return _with_menu(lines, layout, entries)


def sensitivity_chart(findings: Findings) -> Figure | None:
    """Bars of how much each hyper-parameter decided whether a trial was among the best of its method."""
    drawn = [method for method in findings.once(sensitivities) if method.importances]
    if not drawn:
        return None
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "x": _rounded(100 * share for share in method.importances.values()),
            "y": [plain(key.removeprefix("algorithm.")) for key in method.importances],
            "marker": {"color": findings.looks[method.algorithm].colour},
            "hovertemplate": "%{y}: %{x:.0f} %",
            **_named(method.algorithm),
        }
        for method in drawn
    ]
    order = dict.fromkeys(plain(key.removeprefix("algorithm.")) for method in drawn for key in method.importances)
    xaxis = {"title": {"text": f"Share of the importance ({METHOD}), %"}}
    yaxis = {"type": "category", "categoryorder": "array", "categoryarray": list(order), "autorange": "reversed"}
    return {"data": bars, "layout": {"xaxis": xaxis, "yaxis": yaxis, "legend": LEGEND, "margin": {"t": 20}}}


CHARTS: Mapping[str, Chart] = {
    "curves": Chart(
        "Best trial of each method",
        "Mean over seeds and one standard deviation around it; dashed lines: what happened to the world.",
        "a best trial with records, or a trial that did all rounds",
        curves_chart,
    ),
    "trials": Chart(
        "Every trial of the search",
        "Filled: all rounds done. Hollow: stopped early or failed; far worse ones are left out.",
        "a trial with a value",
        trials_chart,
    ),
    "parallel": Chart(
        "Parallel coordinates",
        "A line is a trial of the method that did all rounds; the stronger the better.",
        "two trials of a method that did all rounds and differ in a hyper-parameter",
        parallel_chart,
    ),
    "sensitivity": Chart(
        "What mattered most",
        f"What decided whether a trial was among the best of its method, by {METHOD}.",
        f"{LEAST_TRIALS} trials of a method that did all rounds, and two hyper-parameters that vary",
        sensitivity_chart,
    ),
}


def plain(text: Any) -> str:
    """Escape a text so that Plotly shows it as it stands."""
    return html.escape(str(text), quote=False)


def _named(method: str) -> Trace:
    """Attributes for a method's name in the legend, and for the group that the legend hides and shows as one."""
    return {"name": plain(method), "legendgroup": method}


def _told(trial: Trial, value: float, keys: Sequence[str]) -> list[Any]:
    """Values of a trial's hover text, in the order of `_telling`."""
    chosen = [trial.overrides.get(key, NOTHING) for key in keys]
    numbers = [_rounded([cell])[0] if isinstance(cell, float) else plain(cell) for cell in [value, *chosen]]
    return [trial.number, plain(trial.algorithm), f"{trial.status}, {trial.rounds} rounds", *numbers]


def _telling(label: str, keys: Sequence[str], attribute: str) -> str:
    """Hover template of a trial; ``attribute`` is that of the trace or the point that holds `_told`'s values."""
    names = [label, *(key.removeprefix("algorithm.") for key in keys)]
    lines = [f"<b>Trial %{{{attribute}[0]}}, %{{{attribute}[1]}}</b>", f"%{{{attribute}[2]}}"]
    lines += [f"{plain(name)}: %{{{attribute}[{place}]}}" for place, name in enumerate(names, 3)]
    return "<br>".join(lines) + "<extra></extra>"


def _with_menu(traces: list[Trace], layout: dict[str, Any], entries: Sequence[MenuEntry]) -> Figure:
    """Figure in the state of its first entry, with a menu of all entries."""
    for key, values in entries[0].traces.items():
        for trace, value in zip(traces, itertools.cycle(values), strict=False):
            _set(trace, key, value)
    for key, value in entries[0].layout.items():
        _set(layout, key, value)
    buttons = [
        {"label": plain(entry.label), "method": "update", "args": [dict(entry.traces), dict(entry.layout)]}
        for entry in entries
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", **MENU}
    return {"data": traces, "layout": {**layout, "legend": LEGEND, "updatemenus": [menu]}}


def _set(place: dict[str, Any], key: str, value: Any) -> None:
    """Set the value that a dotted key names."""
    *path, last = key.split(".")
    for name in path:
        place = place.setdefault(name, {})
    place[last] = value


def _rounded(values: Iterable[Any], digits: int = DIGITS) -> list[float | int | None]:
    """Round each number to the digits that a screen can show; None for NaN and infinity, which JSON lacks."""
    numbers = [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
    return [int(n) if n is not None and n.is_integer() and abs(n) < 1e15 else n for n in numbers]


def _dash(look: Look) -> str:
    """Convert matplotlib's dashes to Plotly's, for a line of two pixels."""
    return "solid" if isinstance(look.dashes, str) else ",".join(f"{3 * length:g}px" for length in look.dashes[1])
